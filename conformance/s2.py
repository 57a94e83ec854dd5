#!/usr/bin/env python3
"""S2: compare-and-set at speed by one writer a key never conflicts, and no reader ever sees the past.

Three keys, each with one writer on its own node, and a reader of all keys on each node. Without
faults no conflict is allowed at all, and no request may go without its answer. With faults,
requests may time out or find no responders; what became of them must fit into one linearizable
history of each key, and progress must resume within 20 s of the end of the faults.

Long form: 20,000 updates a writer without faults, 60 s for each fault.
"""
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lib.checks import leader, live, step_down
from lib.client import Ack, Client, Refused, connect
from lib.cluster import Cluster, Node
from lib.history import Operation, save, stale_reads, verify
from lib.kv import LANGUAGES, Load, create_bucket, explained, outcomes
from lib.program import Run, program

_ALLOWED = ("timeout", "no responders", "disconnected")
_LIVE = 20.0


class Scenario:
    """Buckets, loads and verdicts on one cluster."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.run = run
        self.cluster = cluster
        self.buckets = 0

    async def bucket(self) -> str:
        """A new bucket."""
        self.buckets += 1
        name = f"b{self.buckets}"
        async with await connect(self.cluster.nodes[0]) as client:
            await create_bucket(client, name)
        return name

    async def quiet(self, language: str, mode: str, count: int) -> None:
        """No fault: `count` updates a writer, and not one conflict."""
        bucket, load = await self.bucket(), Load()
        try:
            await self._start(load, bucket, language, mode, count)
            await load.finished(60 + count / 25, slice(3))
            history = await load.collect()
        finally:
            load.end()
        self.run.note(f"{language}, revision from {mode}: {outcomes(history)}")
        save(history, self.run.folder / f"{bucket}.jsonl")
        conflicts = [op for op in history if op.outcome == "conflict"]
        self.run.check(not conflicts, f"{_count(conflicts, 'conflict')} without any fault")
        unknown = [op for op in history if op.outcome == "unknown"]
        self.run.check(not unknown, f"{_count(unknown, 'request')} without an answer, without any fault")
        done = sum(op.kind == "cas" and op.outcome == "ok" for op in history)
        self.run.check(done == 3 * count, f"{done} updates in place of {3 * count}")
        self._consistent(history)

    async def faulty(self, language: str, mode: str, faults: Callable[[str, float], Awaitable[int]], seconds: float) -> None:
        """Faults for `seconds` under load; then everything has to go on, and the history has to be one."""
        bucket, load = await self.bucket(), Load()
        try:
            await self._start(load, bucket, language, mode, 0)
            made = await faults(f"KV_{bucket}", seconds)
            self.run.check(made > 0, "no fault was made")
            took = await live(self.cluster, _LIVE, lambda client: _advance(client, bucket))
            history = await load.collect()
        finally:
            load.end()
        self.run.note(f"{language}, {made} faults, live again in {took:.1f} s: {outcomes(history)}")
        save(history, self.run.folder / f"{bucket}.jsonl")
        good, bad = explained(history)
        if good:
            self.run.note(f"{len(good)} conflicts with an own update whose answer never came")
        self.run.check(not bad, f"{_count(bad, 'conflict')} that no earlier time-out explains")
        strange = [op for op in history if op.outcome == "unknown" and not op.error.startswith(_ALLOWED)]
        self.run.check(not strange, f"{_count(strange, 'outcome')} that is neither time-out nor no responders")
        for client in ("w1", "w2", "w3"):
            self.run.check(any(op.client == client and op.outcome == "ok" for op in history), f"writer {client} never got anything done")
        self._consistent(history)

    async def _start(self, load: Load, bucket: str, language: str, mode: str, count: int) -> None:
        for index, node in enumerate(self.cluster.nodes, 1):
            await load.start(language, node, bucket, f"key{index}", f"w{index}", mode, count)
        for index, node in enumerate(self.cluster.nodes, 1):
            await load.start("python", node, bucket, "key1,key2,key3", f"r{index}", "read")

    def _consistent(self, history: list[Operation]) -> None:
        stale = stale_reads(history)
        self.run.check(not stale, f"{len(stale)} stale reads, first: {stale[0] if stale else ''}")
        wrong = verify(history)
        self.run.check(not wrong, f"HIST: {wrong}")

    async def step_downs(self, stream: str, seconds: float) -> int:
        """Another leader each second."""
        made = 0

        async def fault() -> None:
            nonlocal made
            nodes = [n for n in self.cluster.nodes if n.running]
            async with await connect(self.run.random.choice(nodes)) as client:
                await step_down(client, stream)
            made += 1

        await self._every(1.0, seconds, fault)
        return made

    async def pauses(self, stream: str, seconds: float) -> int:
        """SIGSTOP of the leader for 1 to 10 s (1 to 4 s in the short form)."""
        longest = 4.0 if self.run.short else 10.0

        async def fault() -> None:
            node = await leader(self.cluster, stream)
            node.pause()
            try:
                await asyncio.sleep(self.run.random.uniform(1.0, longest))
            finally:
                node.resume()
            await self.cluster.ready()

        return await self._repeat(seconds, fault)

    async def cuts(self, stream: str, seconds: float) -> int:
        """The leader cut from both followers, while the clients of its node stay connected to it."""
        links = self.cluster.require_links()

        async def fault() -> None:
            links.isolate((await leader(self.cluster, stream)).index)
            try:
                await asyncio.sleep(self.run.random.uniform(2.0, 5.0))
            finally:
                links.heal()
            await self.cluster.ready()

        return await self._repeat(seconds, fault)

    async def one_way_cuts(self, stream: str, seconds: float) -> int:
        """The leader hears its followers, and they do not hear it, or the other way round."""
        links = self.cluster.require_links()

        async def fault() -> None:
            node = await leader(self.cluster, stream)
            deaf = self.run.random.random() < 0.5
            for other in self.cluster.others(node):
                links.cut_one_way(*((other.index, node.index) if deaf else (node.index, other.index)))
            try:
                await asyncio.sleep(self.run.random.uniform(2.0, 5.0))
            finally:
                links.heal()
            await self.cluster.ready()

        return await self._repeat(seconds, fault)

    async def kills(self, stream: str, seconds: float) -> int:
        """SIGKILL of the leader, and its restart once another one leads."""

        async def fault() -> None:
            node = await leader(self.cluster, stream)
            await node.kill()
            try:
                await leader(self.cluster, stream)
            finally:
                await node.start()
            await self.cluster.ready()

        return await self._repeat(seconds, fault)

    async def _repeat(self, seconds: float, fault: Callable[[], Awaitable[None]]) -> int:
        return await self._every(0.5, seconds, fault)

    async def _every(self, pause: float, seconds: float, fault: Callable[[], Awaitable[None]]) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        made = 0
        while loop.time() < deadline:
            next_at = loop.time() + pause
            await fault()
            made += 1
            await asyncio.sleep(max(0.0, next_at - loop.time()))
        return made


async def _advance(client: Client, bucket: str) -> Ack | Refused:
    """One more update of a key of its own, through this client."""
    subject = f"$KV.{bucket}.live"
    message = await client.last(f"KV_{bucket}", subject, timeout=1)
    return await client.compare_and_set(subject, b"on", message.seq if message else 0, timeout=1)


def _count(operations: list[Operation], noun: str) -> str:
    if not operations:
        return f"0 {noun}s"
    codes = sorted({op.error for op in operations})
    return f"{len(operations)} {noun}(s) ({', '.join(codes)}), first {operations[0].line()},"


async def _variant(run: Run, name: str, links: bool, act: Callable[[Scenario], Awaitable[None]]) -> None:
    if not run.wanted(name):
        return
    async with run.part(name):
        async with Cluster(run, 3, links=links and run.isolated, name=name.replace(" ", "-")) as cluster:
            await act(Scenario(run, cluster))


async def main(run: Run) -> None:
    """All variants, each on a cluster of its own."""
    for language in LANGUAGES:
        for mode in ("get", "ack"):
            count = {"python": 400, "java": 400, "rust": 600}[language] if run.short else 20_000
            await _variant(run, f"{language} {mode}", False, lambda s, a=language, m=mode, c=count: s.quiet(a, m, c))
    seconds = 3.0 if run.short else 60.0
    faults: list[tuple[str, Callable[[Scenario], Callable[[str, float], Awaitable[int]]], bool]] = [
        ("step-down", lambda s: s.step_downs, False), ("pause", lambda s: s.pauses, False), ("cut", lambda s: s.cuts, True),
        ("one-way cut", lambda s: s.one_way_cuts, True), ("kill", lambda s: s.kills, False),
    ]
    for number, (name, fault, links) in enumerate(faults):
        languages = [LANGUAGES[number % 3]] if run.short else LANGUAGES
        for language in languages:
            mode = run.random.choice(("get", "ack"))
            await _variant(run, f"{name} {language}", links, lambda s, a=language, m=mode, f=fault: s.faulty(a, m, f(s), seconds))


if __name__ == "__main__":
    program("S2", main)
