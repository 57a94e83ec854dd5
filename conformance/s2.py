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
import time
from collections.abc import Awaitable, Callable
from functools import partial

from lib.checks import leader, live, step_down
from lib.client import Ack, Client, Refused, connect
from lib.cluster import Cluster
from lib.history import Operation, save, stale_reads, verify
from lib.kv import LANGUAGES, Load, create_bucket, explained, outcomes
from lib.program import Run, program

_ALLOWED = ("timeout", "no responders", "disconnected")
_LIVE = 20.0
_READS = 300.0
"""Gets a second of each reader: enough to catch a stale one, and the writers keep the machine."""


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
            await load.finished(60 + count / 25, slice(3, 6))
            history = await load.collect()
        finally:
            load.end()
        self.run.note(f"{language}, revision from {mode}: {outcomes(history)}")
        save(history, self.cluster.folder / f"{bucket}.jsonl")
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
            healed = time.monotonic_ns()
            history = await load.collect()
        finally:
            load.end()
        self.run.note(f"{language}, {made} faults, live again in {took:.1f} s: {outcomes(history)}")
        save(history, self.cluster.folder / f"{bucket}.jsonl")
        good, bad = explained(history)
        if good:
            self.run.note(f"{len(good)} conflicts with an own update whose answer never came")
        self.run.check(not bad, f"{_count(bad, 'conflict')} that no earlier time-out explains")
        strange = [op for op in history if op.outcome == "unknown" and not op.error.startswith(_ALLOWED)]
        self.run.check(not strange, f"{_count(strange, 'outcome')} that is neither time-out nor no responders")
        for client in ("w1", "w2", "w3"):
            done = any(op.client == client and op.outcome == "ok" and op.returned > healed for op in history)
            self.run.check(done, f"writer {client} got nothing done after the faults")
        self._consistent(history)

    async def _start(self, load: Load, bucket: str, language: str, mode: str, count: int) -> None:
        for index, node in enumerate(self.cluster.nodes, 1):
            await load.start("python", node, bucket, "key1,key2,key3", f"r{index}", "read", rate=_READS)
        for index, node in enumerate(self.cluster.nodes, 1):
            await load.start(language, node, bucket, f"key{index}", f"w{index}", mode, count)
        await load.started()

    def _consistent(self, history: list[Operation]) -> None:
        stale = stale_reads(history)
        self.run.check(not stale, f"{len(stale)} stale reads, first: {stale[0] if stale else ''}")
        wrong = verify(history)
        self.run.check(not wrong, f"HIST: {wrong}")

    async def step_downs(self, stream: str, seconds: float) -> int:
        """Another leader each second."""

        async def fault() -> None:
            async with await connect(self.run.random.choice(self.cluster.nodes)) as client:
                await step_down(client, stream)

        return await self._every(1.0, seconds, fault)

    async def pauses(self, stream: str, seconds: float) -> int:
        """SIGSTOP of the leader for 1 to 10 s (1 to 3 s in the short form)."""
        longest = 3.0 if self.run.short else 10.0

        async def fault() -> None:
            node = await leader(self.cluster, stream)
            node.pause()
            try:
                await asyncio.sleep(self.run.random.uniform(1.0, longest))
            finally:
                node.resume()
            await self.cluster.ready()

        return await self._every(0.5, seconds, fault)

    async def cuts(self, stream: str, seconds: float) -> int:
        """The leader cut from both followers, while the clients of its node stay connected to it."""
        links = self.cluster.require_links()

        async def fault() -> None:
            links.isolate((await leader(self.cluster, stream)).index)
            try:
                await asyncio.sleep(self.run.random.uniform(2.0, 3.0 if self.run.short else 5.0))
            finally:
                links.heal()
            await self.cluster.ready()

        return await self._every(0.5, seconds, fault)

    async def one_way_cuts(self, stream: str, seconds: float) -> int:
        """The leader hears its followers, and they do not hear it, or the other way round."""
        links = self.cluster.require_links()

        async def fault() -> None:
            node = await leader(self.cluster, stream)
            deaf = self.run.random.random() < 0.5
            for other in self.cluster.others(node):
                links.cut_one_way(*((other.index, node.index) if deaf else (node.index, other.index)))
            try:
                await asyncio.sleep(self.run.random.uniform(2.0, 3.0 if self.run.short else 5.0))
            finally:
                links.heal()
            await self.cluster.ready()

        return await self._every(0.5, seconds, fault)

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


async def main(run: Run) -> None:
    """The variants without faults on one cluster, those with faults each on its own."""
    modes = [(language, mode) for language in LANGUAGES for mode in ("get", "ack") if not run.short or mode == "get" or language == "python"]
    quiet = [(language, mode) for language, mode in modes if run.wanted(f"{language} {mode}")]
    if quiet:
        async with Cluster(run, 3, name="quiet") as cluster:
            scenario = Scenario(run, cluster)
            for language, mode in quiet:
                async with run.part(f"{language} {mode}"):
                    await scenario.quiet(language, mode, 200 if run.short else 20_000)
    seconds = 1.0 if run.short else 60.0
    for number, name in enumerate(_FAULTS):
        for language in [LANGUAGES[number % 3]] if run.short else LANGUAGES:
            part = f"{name} {language}"
            mode = run.random.choice(("get", "ack"))
            if not run.wanted(part):
                continue
            async with run.part(part):
                async with Cluster(run, 3, links=_FAULTS[name][1] and run.isolated, name=part.replace(" ", "-")) as cluster:
                    scenario = Scenario(run, cluster)
                    await scenario.faulty(language, mode, partial(_FAULTS[name][0], scenario), seconds)


_FAULTS: dict[str, tuple[Callable[[Scenario, str, float], Awaitable[int]], bool]] = {
    "step-down": (Scenario.step_downs, False),
    "pause": (Scenario.pauses, False),
    "cut": (Scenario.cuts, True),
    "one-way cut": (Scenario.one_way_cuts, True),
    "kill": (Scenario.kills, False),
}
"""Each fault, and whether it needs links that can be cut."""


if __name__ == "__main__":
    program("S2", main)
