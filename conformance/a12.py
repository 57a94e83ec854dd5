#!/usr/bin/env python3
"""A12: one node loses power, and a majority of it and of a node that has slept is to know what the third one was told.

A is paused while B and C acknowledge; then B loses power, C is paused, A goes on and B starts. Had B forgotten anything, A and B
would be a majority without it, and would acknowledge something else in its place. At last C is back.
"""
from __future__ import annotations

import asyncio
import time
from itertools import permutations

from lib import power
from lib.checks import Acked, equal, leader, step_down
from lib.client import connect
from lib.cluster import Cluster, Node
from lib.program import Run, program, until
from lib.writers import Writers

_STREAM = "pauses"
_LIVE = 30.0


class Order:
    """One cluster, and what was acknowledged on it."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.run = run
        self.cluster = cluster
        self.acked = Acked()

    async def _write(self, nodes: list[Node], seconds: float) -> None:
        """Acknowledged writes through these nodes for this long."""
        async with Writers(self.cluster, self.acked, f"{_STREAM}.it", 8, pause=0.02, nodes=nodes):
            await self._acknowledges()
            await asyncio.sleep(seconds)

    async def _acknowledges(self) -> None:
        begin = len(self.acked.acked)

        async def probe() -> bool:
            return len(self.acked.acked) > begin

        await until(f"LIVE({_LIVE:g}): something is acknowledged", _LIVE, probe)

    async def round(self, order: tuple[int, ...], loss: str, seconds: float) -> None:
        """The scenario; `order` says which node is A, B and C."""
        run, (a, b, c) = self.run, (self.cluster.nodes[at] for at in order)
        led = (await leader(self.cluster, _STREAM)).name
        a.pause()
        async with Writers(self.cluster, self.acked, f"{_STREAM}.it", 8, pause=0.02, nodes=[b, c]):
            await self._acknowledges()
            await asyncio.sleep(seconds)
            power.strike([b], loss)
            c.pause()
        before = len(self.acked.acked)
        lost = await power.gone([b])
        a.resume()
        await b.start(_LIVE)
        begin = time.monotonic()
        async with Writers(self.cluster, self.acked, f"{_STREAM}.it", 8, pause=0.02, nodes=[a, b]):
            await asyncio.sleep(seconds / 3)
        alone = len(self.acked.acked) - before
        c.resume()
        run.note(
            f"A, B, C are {a.name}, {b.name}, {c.name}, led by {led}, {loss}: {before} acknowledged; lost {dict(lost)}; "
            f"then A and B {alone} in {time.monotonic() - begin:.1f} s"
        )

    async def verify(self) -> None:
        """Service is back, and EQUAL and ACKSET hold."""
        await self.cluster.ready()
        await self._write(self.cluster.nodes, 0.2)
        await equal(self.cluster, _STREAM)
        await self.acked.verify(self.run, _STREAM, self.cluster.nodes)


async def main(run: Run) -> None:
    """All six orders with 30 s of writes each, or one with 5 s; the leader is A, B and C in turn."""
    orders = list(permutations(range(3)))
    run.random.shuffle(orders)
    orders, seconds = (orders[:1], 5.0) if run.short else (orders, 30.0)
    async with run.part(f"{len(orders)} orders"), Cluster(run, 3, power=True) as cluster:
        async with await connect(cluster.nodes[0]) as client:
            await client.create({"name": _STREAM, "subjects": [f"{_STREAM}.*"], "storage": "file", "num_replicas": 3, "allow_direct": True})
        for number, order in enumerate(orders):
            async with await connect(cluster.nodes[0]) as client:
                await client.demand(f"STREAM.PURGE.{_STREAM}")
                await step_down(client, _STREAM, cluster.nodes[order[number % 3]])
            scenario = Order(run, cluster)
            await scenario.round(order, power.some(run.random) if number % 2 else power.ALL, seconds)
            await scenario.verify()


if __name__ == "__main__":
    program("A12", main, power.extra)
