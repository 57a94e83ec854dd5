#!/usr/bin/env python3
"""The acceptance walk of the `nats` tool, on the real server and on the server under test, side by side.

Every step runs on both, on one node and on three (the short form: on three, which has all the steps). Where the tool prints
JSON, the answers are compared field by field (`lib/compare.py` says what may differ); of text the exit code
counts, and of a failure the line that tells why.
"""
from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lib import TOOLS
from lib.cli import Output, nats, tool
from lib.cluster import BASE_PORT, Cluster
from lib.compare import differences
from lib.program import Failed, Run, program, until


@dataclass(frozen=True)
class Step:
    """One command of the walk.

    `json` parses its output; a step that starts something which waits (a subscriber) names in `beside` the command
    that is run again and again until the first has ended, or has printed `shows`.
    `free` marks a step that only prepares the next one: its outcome is a matter of chance and not compared.
    `settle` (a regular expression) repeats the command until its output matches: what comes some time after an acknowledgement.
    """

    words: tuple[str, ...]
    json: bool = False
    system: bool = False
    stdin: str | None = None
    beside: tuple[str, ...] = ()
    shows: str = ""
    settle: str = ""
    free: bool = False

    @property
    def name(self) -> str:
        """As typed."""
        return "nats " + " ".join(self.words)


def text(*words: str, **rest: Any) -> Step:
    """A step whose exit code counts."""
    return Step(words, **rest)


def data(*words: str, **rest: Any) -> Step:
    """A step whose JSON counts."""
    return Step((*words, "--json"), json=True, **rest)


def raw(subject: str, body: str = "", **rest: Any) -> Step:
    """A request whose answer counts, field by field."""
    return Step(("req", "--raw", subject, body), json=True, **rest)


def walk(replicas: int, files: Path) -> list[Step]:
    """All steps, in order."""
    copies = ("--replicas", str(replicas))
    return [
        *_core(), *_streams(copies), *_consumers(copies), *_key_value(copies), *_objects(copies, files), *_bench(copies), *_servers(),
        *(_cluster() if replicas > 1 else []), *_removal(),
    ]


def _core() -> list[Step]:
    return [
        text("pub", "greet", "hello"),
        text("sub", "greet", "--count", "1", "--raw", beside=("pub", "greet", "hello")),
        text("sub", "work", "--queue", "q", "--count", "1", "--raw", beside=("pub", "work", "hello")),
        text("reply", "svc", "pong", "--count", "1", beside=("req", "svc", "ping", "--timeout", "1s")),
        text("req", "nobody.home", "hello", "--timeout", "1s"),
        text("pub", "greet", "with header", "-H", "A:1", "-H", "B:2"),
        text("rtt", "1"),
    ]


def _streams(copies: tuple[str, ...]) -> list[Step]:
    limits = ("--max-msgs", "1000", "--max-bytes", "10MB", "--max-age", "1h", "--dupe-window", "1m", "--max-msg-size", "1MB")
    return [
        data("stream", "add", "orders", "--subjects", "orders.>", "--storage", "file", *copies, "--defaults"),
        data("stream", "add", "limited", "--subjects", "limited.*", *limits, "--discard", "new", "--max-msgs-per-subject", "5", *copies, "--defaults"),
        data("stream", "add", "jobs", "--subjects", "jobs.*", "--retention", "work", "--storage", "memory", *copies, "--defaults"),
        data("stream", "add", "interested", "--subjects", "int.*", "--retention", "interest", *copies, "--defaults", "--metadata", "team=a"),
        data("stream", "add", "copy", "--mirror", "orders", *copies, "--defaults"),
        data("stream", "add", "merged", "--source", "orders", "--source", "limited", *copies, "--defaults"),
        data("stream", "add", "twice", "--subjects", "orders.x", *copies, "--defaults"),
        data("stream", "add", "orders", "--subjects", "other.>", *copies, "--defaults"),
        raw("$JS.API.STREAM.CREATE.bad", '{"name":"bad","subjects":["b..d"]}'),
        raw("$JS.API.STREAM.CREATE.bad", '{"name":"other"}'),
        raw("$JS.API.STREAM.CREATE.bad", '{"name":"bad","num_replicas":9}'),
        raw("$JS.API.STREAM.CREATE.bad", '{"name":"bad","nonsense":1}'),
        text("pub", "orders.new", "order {{Count}}", "--count", "20"),
        raw("orders.paid", "paid"),
        text("req", "orders.header", "with header", "-H", "Nats-Msg-Id:one", "--raw"),
        Step(("req", "orders.header", "again", "-H", "Nats-Msg-Id:one", "--raw"), json=True),
        Step(("req", "orders.header", "x", "-H", "Nats-Expected-Last-Sequence:3", "--raw"), json=True),
        Step(("req", "orders.header", "x", "-H", "Nats-Expected-Last-Subject-Sequence:1", "--raw"), json=True),
        Step(("req", "orders.header", "x", "-H", "Nats-Expected-Stream:other", "--raw"), json=True),
        data("stream", "info", "orders", settle='"messages": 22'),
        data("stream", "info", "copy", settle='"messages": 22'),
        data("stream", "info", "merged", settle='"messages": 22'),
        data("stream", "info", "limited"), data("stream", "info", "jobs"), data("stream", "info", "interested"),
        data("stream", "info", "missing"),
        data("stream", "state", "orders"),
        data("stream", "subjects", "orders"),
        data("stream", "get", "orders", "3"), data("stream", "get", "orders", "-S", "orders.paid"), data("stream", "get", "orders", "99"),
        raw("$JS.API.STREAM.MSG.GET.orders", '{"seq":2,"next_by_subj":"orders.paid"}'),
        raw("$JS.API.STREAM.MSG.GET.orders", "{}"),
        data("stream", "ls"), text("stream", "ls"), text("stream", "ls", "--names"), text("stream", "report"),
        text("stream", "find", "--empty"), text("stream", "view", "orders", "5", stdin=""),
        raw("$JS.API.STREAM.NAMES"), raw("$JS.API.STREAM.LIST"), raw("$JS.API.STREAM.NAMES", '{"subject":"orders.new"}'),
        data("stream", "edit", "limited", "--max-msgs", "500", "--description", "less", "-f"),
        raw("$JS.API.STREAM.UPDATE.limited", '{"name":"limited","storage":"memory"}'),
        text("stream", "rmm", "orders", "2", "-f"), text("stream", "rmm", "orders", "2", "-f"),
        data("stream", "info", "orders"), text("stream", "gaps", "orders", "--progress", "-f"),
        data("stream", "purge", "orders", "--subject", "orders.paid", "-f"), data("stream", "purge", "orders", "--keep", "5", "-f"),
        data("stream", "purge", "limited", "-f"), data("stream", "purge", "missing", "-f"),
        data("stream", "state", "orders"),
    ]


def _consumers(copies: tuple[str, ...]) -> list[Step]:
    pull = ("--pull", "--deliver", "all", "--ack", "explicit", "--defaults")
    push = ("--target", "deliver.orders", "--deliver", "all", "--ack", "explicit", "--defaults")
    return [
        text("consumer", "add", "orders", "pull", *pull),
        text("consumer", "add", "orders", "filtered", *pull, "--filter", "orders.new", "--max-deliver", "3", "--max-pending", "10"),
        text("consumer", "add", "orders", "push", *push),
        text("consumer", "add", "orders", "grouped", *push, "--deliver-group", "g", "--heartbeat", "10s"),
        text("consumer", "add", "jobs", "worker", *pull), text("consumer", "add", "jobs", "second", *pull),
        text("consumer", "add", "missing", "c", *pull),
        raw("$JS.API.CONSUMER.CREATE.orders.bad", '{"stream_name":"orders","config":{"durable_name":"bad","ack_policy":"sometimes"}}'),
        raw("$JS.API.CONSUMER.CREATE.orders.bad", '{"stream_name":"orders","config":{"durable_name":"bad","deliver_policy":"by_start_sequence"}}'),
        data("consumer", "info", "orders", "pull"),
        data("consumer", "info", "orders", "filtered"),
        data("consumer", "info", "orders", "push"),
        data("consumer", "info", "orders", "grouped"), data("consumer", "info", "orders", "missing"),
        text("consumer", "next", "orders", "pull", "--count", "2", "--raw", "--ack"),
        text("consumer", "next", "orders", "pull", "--nak"), text("consumer", "next", "orders", "pull", "--term"),
        text("consumer", "next", "orders", "filtered", "--count", "1", "--no-ack"),
        text("consumer", "sub", "orders", "push", "--raw", beside=("pub", "orders.new", "for the subscriber"), shows="for the subscriber"),
        data("consumer", "info", "orders", "pull"), data("consumer", "info", "orders", "filtered"),
        data("consumer", "ls", "orders"),
        text("consumer", "ls", "orders"),
        text("consumer", "report", "orders"),
        text("consumer", "state", "orders", "pull"),
        raw("$JS.API.CONSUMER.NAMES.orders"), raw("$JS.API.CONSUMER.LIST.orders"),
        text("consumer", "edit", "orders", "filtered", "--description", "new", "-f"),
        text("consumer", "pause", "orders", "pull", "1h", "-f"),
        data("consumer", "info", "orders", "pull"),
        text("consumer", "resume", "orders", "pull", "-f"),
        text("pub", "jobs.a", "job {{Count}}", "--count", "5"), text("consumer", "next", "jobs", "worker", "--count", "5", "--raw"),
        data("stream", "state", "jobs", settle='"messages": 0'),
        text("consumer", "rm", "orders", "grouped", "-f"), text("consumer", "rm", "orders", "grouped", "-f"),
        raw("$JS.API.CONSUMER.DELETE.orders.missing"),
    ]


def _key_value(copies: tuple[str, ...]) -> list[Step]:
    return [
        text("kv", "add", "config", "--history", "5", *copies), text("kv", "add", "ttl", "--ttl", "1h", "--storage", "memory", *copies),
        data("stream", "info", "KV_config"), data("stream", "info", "KV_ttl"),
        text("kv", "put", "config", "a", "1"),
        text("kv", "put", "config", "a", "2"),
        text("kv", "get", "config", "a", "--raw"),
        text("kv", "get", "config", "a"),
        text("kv", "get", "config", "missing"), text("kv", "create", "config", "b", "1"), text("kv", "create", "config", "b", "2"),
        text("kv", "update", "config", "a", "3", "2"), text("kv", "update", "config", "a", "4", "2"), text("kv", "history", "config", "a"),
        text("kv", "watch", "config", shows="hello", beside=("kv", "put", "config", "watched", "hello")),
        text("kv", "ls"),
        text("kv", "ls", "config"),
        text("kv", "info", "config"),
        text("kv", "del", "config", "b", "-f"),
        text("kv", "get", "config", "b"),
        text("kv", "create", "config", "b", "again"), text("kv", "purge", "config", "b", "-f"), text("kv", "revert", "config", "a", "1"),
        text("kv", "compact", "config", "-f"), text("kv", "del", "config", "-f"), text("kv", "ls", "config"),
        raw("$JS.API.DIRECT.GET.KV_ttl.$KV.ttl.none"),
    ]


def _objects(copies: tuple[str, ...], files: Path) -> list[Step]:
    source, target = str(files / "source.bin"), str(files / "target.bin")
    return [
        text("object", "add", "files", *copies), data("stream", "info", "OBJ_files"),
        text("object", "put", "files", source, "--name", "data", "--no-progress", "-f"),
        text("object", "ls"), text("object", "ls", "files"), text("object", "info", "files"), text("object", "info", "files", "data"),
        text("object", "get", "files", "data", "--output", target, "--no-progress", "-f"),
        text("object", "get", "files", "missing", "--output", target, "--no-progress", "-f"),
        text("object", "rm", "files", "data", "-f"),
        text("object", "ls", "files"),
        text("object", "seal", "files", "-f"),
        text("object", "rm", "files", "-f"),
    ]


def _bench(copies: tuple[str, ...]) -> list[Step]:
    quick = ("--no-progress", "--size", "64")
    return [
        data("stream", "add", "benchstream", "--subjects", "bench.>", *copies, "--defaults"),
        text("bench", "pub", "bench-core", "--msgs", "1000", *quick),
        text("bench", "js", "pub", "sync", "bench.js", "--msgs", "200", *quick),
        text("bench", "js", "pub", "async", "bench.js", "--msgs", "1000", *quick),
        data("stream", "state", "benchstream", settle='"messages": 1200'),
        text("bench", "js", "ordered", "--msgs", "1000", *quick),
        text("bench", "js", "fetch", "--msgs", "1000", *quick),
        text("bench", "js", "consume", "--consumer", "second", "--msgs", "1000", *quick),
        text("kv", "add", "benchbucket", *copies), text("bench", "kv", "put", "--msgs", "200", *quick),
    ]


def _servers() -> list[Step]:
    request = ("server", "request")
    return [
        text("account", "info"), text("account", "report", "connections", system=True), raw("$JS.API.INFO"),
        raw("$SYS.REQ.USER.INFO"),
        text("server", "ls", system=True),
        data("server", "ls", system=True),
        text("server", "ping", "1", system=True),
        text("server", "info", system=True),
        text("server", "report", "jetstream", system=True),
        text("server", "report", "connections", system=True),
        text("server", "report", "accounts", system=True),
        text("server", "report", "routes", system=True),
        text("server", "report", "health", system=True),
        text("server", "report", "jetstream"),
        data("server", "report", "connections", system=True), data("server", "report", "accounts", system=True),
        Step((*request, "variables", "--name", "node1"), json=True, system=True),
        Step((*request, "jetstream", "--name", "node1"), json=True, system=True),
        Step((*request, "connections", "--name", "node1"), json=True, system=True),
        Step((*request, "subscriptions", "--name", "node1"), json=True, system=True),
        Step((*request, "accounts", "--name", "node1"), json=True, system=True),
        Step((*request, "routes", "--name", "node1"), json=True, system=True),
        Step((*request, "leafnodes", "--name", "node1"), json=True, system=True),
        Step((*request, "jetstream-health", "--name", "node1"), json=True, system=True),
        text("server", "check", "connection"),
        text("server", "check", "stream", "--stream", "orders"),
        text("server", "check", "jetstream", system=True),
        text("events", "--js-advisory", "--short", shows="Stream", beside=("stream", "edit", "limited", "--description", "event {{Count}}", "-f")),
    ]


def _cluster() -> list[Step]:
    return [
        text("stream", "cluster", "step-down", "orders"), data("stream", "info", "orders", settle='"leader"'),
        text("consumer", "cluster", "step-down", "orders", "pull"), text("server", "cluster", "step-down", "-f", system=True),
        text("stream", "cluster", "step-down", "orders", "--preferred=node3", free=True),
        text("stream", "cluster", "step-down", "orders", "--preferred=node2"),
        text("stream", "cluster", "step-down", "missing"),
        data("stream", "edit", "limited", "--replicas", "1", "-f"), data("stream", "edit", "limited", "--replicas", "3", "-f"),
        data("stream", "info", "limited", settle=r'^(?![\s\S]*("desired"|"current": false))[\s\S]*"replicas"'),
        text("stream", "cluster", "evacuate", "orders", "node9", "-f"), raw("$JS.API.STREAM.PEER.REMOVE.orders", '{"peer":"node9"}'),
        raw("$JS.API.STREAM.PEER.REMOVE.orders", '{"peer":"node3"}'), raw("$JS.API.STREAM.LEADER.STEPDOWN.missing"),
        text("stream", "cluster", "evacuate", "limited", "node3", "-f"),
        text("stream", "cluster", "balance"),
    ]


def _removal() -> list[Step]:
    names = ("copy", "merged", "orders", "limited", "jobs", "interested", "benchstream")
    return [*(text("stream", "rm", name, "-f") for name in names), text("stream", "rm", "orders", "-f"), raw("$JS.API.STREAM.NAMES", settle="")]


class Walker:
    """Runs the steps on one server."""

    def __init__(self, run: Run, cluster: Cluster, home: Path) -> None:
        self.run = run
        self.cluster = cluster
        self.node = cluster.nodes[0]
        self.home = home

    async def step(self, step: Step) -> Output:
        """One step, its way of waiting included."""
        if step.beside:
            return await self._beside(step)
        for attempt in range(50):
            done = await nats(self.node, *step.words, home=self.home, stdin=step.stdin, system=step.system, limit=40)
            if not step.settle or re.search(step.settle, done.out) or attempt == 49:
                break
            await asyncio.sleep(0.1)
        return done

    async def _beside(self, step: Step) -> Output:
        """A command that waits, and another one again and again until the first is through."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), "NO_COLOR": "1"}
        login = ["--user", "admin", "--password", "password"] if step.system else []
        log = self.home / "beside.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                tool(), "-s", self.node.url, *login, *step.words, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
            )
        try:
            async for _ in _tries(15.0):
                if process.returncode is not None or (step.shows and step.shows in log.read_text(errors="replace")):
                    break
                await nats(self.node, *step.beside, home=self.home)
            shown = log.read_text(errors="replace")
            ended = process.returncode
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if step.shows:
            return Output(list(step.words), 0 if step.shows in shown else 1, shown, "")
        return Output(list(step.words), 124 if ended is None else ended, shown, "" if ended is not None else "it did not end")


async def _tries(limit: float) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit
    while loop.time() < deadline:
        yield
        await asyncio.sleep(0.2)


_UNSTABLE = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\d\d:\d\d:\d\d|0x[0-9a-f]+|\b[A-Z0-9]{22,}\b|(?<=:)\d{4,5}\b|\bnode\d\b|/tmp/\S+")


def reason(done: Output) -> str:
    """The line with which the tool gave up, without what is of the moment."""
    lines = [line for line in (done.error + done.out).splitlines() if "error:" in line.lower()]
    return _UNSTABLE.sub("_", lines[-1]) if lines else ""


def parsed(done: Output) -> Any:
    """The JSON of an output, after the lines for people that the tool puts before it; several documents become a list."""
    begin = re.search(r"^[\[{]", done.out, re.MULTILINE)
    if begin is None:
        raise ValueError("no JSON")
    decoder, found, rest = json.JSONDecoder(), [], done.out[begin.start():].strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].lstrip()
    return found[0] if len(found) == 1 else found


def judge(step: Step, real: Output, ours: Output) -> list[str]:
    """What differs between the two outcomes of a step."""
    if step.free:
        return []
    if real.code != ours.code:
        texts = [(output.error or output.out).strip()[-300:] for output in (real, ours)]
        return [f"exit {real.code}, here {ours.code}: {texts[0]}", f"here: {texts[1]}"]
    if real.code != 0:
        return [] if reason(real) == reason(ours) else [f"says {reason(real)!r}, here {reason(ours)!r}"]
    if not step.json:
        return []
    try:
        wanted = parsed(real)
    except ValueError:
        return [] if real.out.strip() == ours.out.strip() else [f"says {real.out.strip()[:200]!r}, here {ours.out.strip()[:200]!r}"]
    try:
        return differences(wanted, parsed(ours), step.name)
    except ValueError:
        return [f"no JSON: {ours.out[:200]!r}"]


async def outcomes(run: Run, binary: Path, size: int, name: str, base: int) -> list[Output]:
    """The whole walk on one server, whose ports count from `base`."""
    files = run.folder / f"files-{name}"
    files.mkdir()
    (files / "source.bin").write_bytes(bytes(range(256)) * 1200)
    async with Cluster(replace(run, binary=binary), size, name=name, base=base) as cluster:
        walker = Walker(run, cluster, run.folder / f"home-{name}")
        walker.home.mkdir()
        await settled(cluster)
        done = [await walker.step(step) for step in walk(size, files)]
    if (files / "target.bin").read_bytes() != (files / "source.bin").read_bytes():
        raise Failed(f"{name}: the object came back different")
    return done


async def settled(cluster: Cluster) -> None:
    """The links between the servers are the same for two seconds.

    The real server dials its routes again a second after its start, finds that they are there, and counts the others as
    offline for a moment, in which it places no replicas.
    """
    seen: list[set[int]] = []
    since = time.monotonic()

    async def probe() -> bool:
        nonlocal seen, since
        pages = [(await node.page("/routez"))[1] for node in cluster.nodes]
        now = [{route["rid"] for route in page.get("routes") or []} for page in pages]
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= 2

    if cluster.size > 1:
        await until("the links between the servers are settled", 30, probe, every=0.1)


def extra(parser: argparse.ArgumentParser) -> None:
    """The flags of this program."""
    parser.add_argument("--real", type=Path, default=TOOLS / "venv" / "bin" / "nats-server", help="the real server (default %(default)s)")
    parser.add_argument("--show", action="store_true", help="print what the real server said wherever something differs")


async def main(run: Run) -> None:
    """One node, then three."""
    for size in (1, 3):
        if not run.wanted(f"{size} node") or (run.short and size == 1):
            continue
        async with run.part(f"{size} node{'s' if size > 1 else ''}"):
            real, ours = await asyncio.gather(
                outcomes(run, run.args.real, size, f"real{size}", BASE_PORT), outcomes(run, run.binary, size, f"ours{size}", BASE_PORT + 300),
            )
            wrong = 0
            steps = walk(size, Path("FILES"))
            for step, there, here in zip(steps, real, ours, strict=True):
                found = judge(step, there, here)
                wrong += bool(found)
                if found:
                    run.note("\n             ".join([step.name, *found]))
                if found and run.args.show:
                    run.note(f"real: {there.out.strip()}{there.error.strip()}\n ours: {here.out.strip()}{here.error.strip()}")
            run.note(f"{len(steps) - wrong} of {len(steps)} steps are as on the real server; {sum(o.code != 0 for o in real)} of them are refusals")
            run.check(not wrong, f"{wrong} of {len(steps)} steps differ")


if __name__ == "__main__":
    program("cli_walk", main, extra)
