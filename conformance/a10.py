#!/usr/bin/env python3
"""A10: a storm of kills under load loses nothing that was acknowledged, and service comes back by itself.

Writers on all nodes go as fast as they can. Every 5 s one, two or all nodes are killed, and each starts again after 0 to 5 s,
so that some are killed while they start. Never may a majority be up for 20 s without an acknowledgement, and 20 s after the
last start every node takes publishes.
"""
from __future__ import annotations

import asyncio
import time

from lib.checks import Acked, equal, live
from lib.client import Ack, Client, Refused, connect
from lib.cluster import Cluster, Node
from lib.program import Run, program
from lib.writers import Writers

_STREAM = "storm"
_EACH = 10
"""Writers on each node."""
_LIVE = 20.0


class Storm:
    """The kills and starts."""

    def __init__(self, run: Run, cluster: Cluster, writers: Writers, every: float) -> None:
        self.run = run
        self.cluster = cluster
        self.writers = writers
        self.every = every
        self.up = set(cluster.nodes)
        """Those that serve clients."""
        self.back: dict[Node, asyncio.Task[None]] = {}
        self.kills = 0
        self.launched = 0.0
        """When the latest start began."""

    def _tell(self) -> None:
        self.writers.majority(2 * len(self.up) > self.cluster.size)

    async def _return(self, node: Node, after: float) -> None:
        await asyncio.sleep(after)
        node.launch()
        self.launched = time.monotonic()
        await node.wait_listening(_LIVE)
        self.up.add(node)
        self._tell()

    async def strike(self) -> None:
        """Kill one, two or all of them; who is down already is down for longer."""
        victims = self.run.random.sample(self.cluster.nodes, self.run.random.randint(1, self.cluster.size))
        delays = [self.run.random.uniform(0.0, self.every) for _ in victims]
        for node in victims:
            if task := self.back.pop(node, None):
                if task.done():
                    task.result()
                task.cancel()
            self.up.discard(node)
        self._tell()
        running = [node for node in victims if node.process is not None]
        for node in running:
            assert node.process is not None
            code = node.process.poll()
            self.run.check(code is None, f"{node.name} ended by itself, with {code}: see {node.log.name}")
        await asyncio.gather(*(node.kill() for node in running))
        self.kills += len(running)
        self.back |= {node: asyncio.create_task(self._return(node, delay)) for node, delay in zip(victims, delays, strict=True)}

    async def rage(self, seconds: float) -> None:
        """All of it; ends when the last one has been started again."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                next_at = time.monotonic() + self.every
                await self.strike()
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            await asyncio.gather(*self.back.values())
        finally:
            for task in self.back.values():
                task.cancel()


async def main(run: Run) -> None:
    """60 s with a kill every 5 s, or 8 s with one every 2 s."""
    seconds, every = (8.0, 2.0) if run.short else (60.0, 5.0)
    async with Cluster(run, 3) as cluster, run.part("kill storm"):
        acked = Acked()

        async def put(client: Client) -> Ack | Refused:
            acked.sent.add(text := f"live-{client.node.name}-{time.monotonic_ns()}")
            return await client.publish("storm.it", text.encode(), timeout=1)

        async with await connect(cluster.nodes[0]) as client:
            await client.create({"name": _STREAM, "subjects": ["storm.*"], "storage": "file", "num_replicas": 3, "allow_direct": True})
        async with Writers(cluster, acked, "storm.it", _EACH) as writers:
            storm = Storm(run, cluster, writers, every)
            await storm.rage(seconds)
            await live(cluster, storm.launched + _LIVE - time.monotonic(), put)
            took = time.monotonic() - storm.launched
        run.note(f"{storm.kills} kills, {len(acked.acked)} of {len(acked.sent)} publishes acknowledged, live {took:.1f} s after the last start, longest stall {writers.stalled:.1f} s")
        run.check(len(acked.acked) > 100, f"only {len(acked.acked)} publishes were acknowledged")
        run.check(writers.stalled <= _LIVE, f"LIVE({_LIVE:g}): a majority was up for {writers.stalled:.1f} s without an acknowledgement")
        await cluster.ready()
        await equal(cluster, _STREAM)
        await acked.verify(run, _STREAM, cluster.nodes)


if __name__ == "__main__":
    program("A10", main)
