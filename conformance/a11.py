#!/usr/bin/env python3
"""A11: the power goes under load, in all nodes at once or in one after the other: nothing that was acknowledged is missing.

Writers on all nodes publish into a stream of three replicas and into three of one, while large messages keep log, checkpoints and
blocks at work. Then nodes get SIGKILL and their disks forget what was not synced: all of it, or what a seed has them forget, with
single sectors that are kept or torn. Sometimes the power goes again while they start. After each round everything is read back.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

from lib import power
from lib.checks import Acked, equal, leader
from lib.client import connect
from lib.cluster import Cluster, Node
from lib.program import Run, program, until
from lib.writers import Writers

_REPLICATED, _BULK = "power", "bulk"
_SINGLE = ("single1", "single2", "single3")
_LIVE = 30.0
_PURGE = 5
"""Rounds between two purges, so that reading back stays short."""


class Blackouts:
    """The cluster, what was acknowledged, and what was lost."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.run = run
        self.cluster = cluster
        self.acked = {name: Acked() for name in (_REPLICATED, *_SINGLE)}
        self.lost: Counter[str] = Counter()
        self.count = 0
        """Acknowledged in all rounds."""

    async def create(self) -> None:
        """All streams; the large messages leave theirs again, so that blocks are removed as well."""
        async with await connect(self.cluster.nodes[0]) as client:
            config = {"storage": "file", "allow_direct": True}
            await client.create(config | {"name": _BULK, "subjects": ["bulk.*"], "max_bytes": 30_000_000}, place=3)
            await client.create(config | {"name": _REPLICATED, "subjects": [f"{_REPLICATED}.*"]}, place=3)
            for name in _SINGLE:
                await client.create(config | {"name": name, "subjects": [f"{name}.*"]}, place=1)

    @contextlib.asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        """Publishers on all nodes, into all streams."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(Writers(self.cluster, Acked(), "bulk.it", 2, size=100_000))
            for name, acked in self.acked.items():
                each = 3 if name == _REPLICATED else 1
                await stack.enter_async_context(Writers(self.cluster, acked, f"{name}.it", each, pause=0.01))
            yield

    async def round(self, number: int, victims: list[Node]) -> None:
        """Load, no power, power again, and everything is read back."""
        run, names = self.run, "all" if len(victims) > 1 else victims[0].name
        loss = power.ALL if number % 2 else power.some(run.random)
        again = run.random.random() < 0.3
        before = self._counts()
        async with self.load():
            await asyncio.sleep(run.random.uniform(0.5, 2.0))
            self._still_there()
            power.strike(victims, loss)
            lost = await power.gone(victims)
            during = self._counts()
            if again:
                await self._start_in_vain(victims, loss)
            for node in victims:
                node.launch()
            for node in victims:
                await node.wait_listening(_LIVE)
            await self._served(during)
        self.lost += lost
        run.check(all(during[name] > before[name] for name in before), f"round {number}: nothing was acknowledged of some stream: {during - before}")
        await self.verify()
        run.note(f"round {number}, {names}{', twice' if again else ''}, {loss}: {sum(during.values()) - sum(before.values())} acknowledged; lost {dict(lost)}")

    async def _start_in_vain(self, victims: list[Node], loss: str) -> None:
        """The power goes again some time after the start has begun."""
        for node in victims:
            node.launch()
        await asyncio.sleep(self.run.random.uniform(0.0, 0.5))
        power.strike(victims, loss)
        self.lost += await power.gone(victims)

    async def _served(self, before: Counter[str]) -> None:
        """LIVE: every stream acknowledges again."""

        async def probe() -> bool:
            now = self._counts()
            return all(now[name] > before[name] for name in now)

        await until(f"LIVE({_LIVE:g}): every stream acknowledges again", _LIVE, probe)

    def _counts(self) -> Counter[str]:
        return Counter({name: len(acked.acked) for name, acked in self.acked.items()})

    def _still_there(self) -> None:
        for node in self.cluster.nodes:
            assert node.process is not None
            code = node.process.poll()
            self.run.check(code is None, f"{node.name} ended by itself, with {code}: see {node.log.name}")

    async def verify(self) -> None:
        """EQUAL and ACKSET."""
        await self.cluster.ready()
        for name in (_REPLICATED, _BULK):
            await leader(self.cluster, name)
            await equal(self.cluster, name, by_leader=name == _REPLICATED)
        await asyncio.gather(*(acked.verify(self.run, name, self.cluster.nodes) for name, acked in self.acked.items()))

    async def purge(self) -> None:
        """All streams are empty, and nothing is known of any."""
        async with await connect(self.cluster.nodes[0]) as client:
            for name in self.acked:
                await client.demand(f"STREAM.PURGE.{name}")
        self.count += sum(self._counts().values())
        self.acked = {name: Acked() for name in self.acked}


async def whole(run: Run, rounds: int, everyone: bool) -> None:
    """All rounds on one cluster, of all nodes or of each in turn."""
    async with Cluster(run, 3, power=True, name="all" if everyone else "one") as cluster:
        blackouts = Blackouts(run, cluster)
        await blackouts.create()
        for number in range(1, rounds + 1):
            victims = cluster.nodes if everyone else [cluster.nodes[number % cluster.size]]
            await blackouts.round(number, victims)
            if number % _PURGE == 0 or number == rounds:
                await blackouts.purge()
    run.note(f"{blackouts.count} publishes acknowledged; lost in all {dict(blackouts.lost)}")


def extra(parser: argparse.ArgumentParser) -> None:
    """The flags of this program."""
    power.extra(parser)
    parser.add_argument("--rounds", type=int, help="power losses of all nodes, and as many of single ones (default 20, short 3)")


async def main(run: Run) -> None:
    """20 rounds of each, or three."""
    rounds = run.args.rounds or (3 if run.short else 20)
    for everyone, name in ((True, "all at once"), (False, "one at a time")):
        if run.wanted(name):
            async with run.part(f"{name}, {rounds} rounds"):
                await whole(run, rounds, everyone)


if __name__ == "__main__":
    program("A11", main, extra)
