#!/usr/bin/env python3
"""A13: bits that rot on one node are noticed and made good by the others, and nobody is ever shown a wrong byte.

Under load, every 10 s two bits turn over in a file of each kind of data and log of one node, while it runs or while it is
down, and every 5 s a node is killed, mostly that one. Messages are read through it all the time: each read gives the right
message or an error. Then everything is to be right within 60 s: every message through the damaged node, all replicas there
and equal, and the log has told of the damage.
"""
from __future__ import annotations

import asyncio
import contextlib
import time

from lib.checks import Acked, equal
from lib.client import Client, Unknown, connect
from lib.cluster import Cluster
from lib.damage import KEPT, by_kind, fill, flip, flow, group_of, store, told, whole
from lib.program import Failed, Run, program, until
from lib.writers import Writers

_KINDS = ("log segment", "log control", "metadata checkpoint", "stream checkpoint", "block")
_HEAL = 60.0


class Rot:
    """The node that rots, and what is read through it."""

    def __init__(self, run: Run, cluster: Cluster, acked: Acked) -> None:
        self.run = run
        self.cluster = cluster
        self.acked = acked
        self.node = run.random.choice(cluster.nodes)
        self.flips = 0
        self.right = 0
        self.refused = 0
        self.stop = asyncio.Event()

    def spoil(self) -> None:
        """Two bits in one file of each kind, of each stream where the kind is of streams."""
        state = "running" if self.node.process else "down"
        kinds = by_kind(self.node)
        for kind in _KINDS:
            for group in sorted({group_of(name) for name in kinds[kind]}):
                name = self.run.random.choice([name for name in kinds[kind] if group_of(name) == group])
                with contextlib.suppress(FileNotFoundError):  # the server has just removed it
                    where = flip(self.run, store(self.node) / name)
                    self.flips += 1
                    self.run.note(f"{self.node.name}, {state}: {name}: {where}")

    async def kill(self, spoil: bool) -> None:
        """Kill a node and start it again; if it is the one that rots, that may happen to it meanwhile."""
        others = self.cluster.others(self.node)
        node = self.node if spoil else self.run.random.choice([self.node, self.node, *others])
        self.run.check(node.process is not None and node.process.poll() is None, f"{node.name} ended by itself: see {node.log.name}")
        await node.kill()
        if spoil:
            await asyncio.to_thread(self.spoil)
        await node.start()

    async def storm(self, rounds: int, every: float) -> None:
        """In each round the bits, and two kills, of which one may be together with the bits."""
        for _ in range(rounds):
            together = self.run.random.random() < 0.5
            if not together:
                await asyncio.to_thread(self.spoil)
            for number in range(2):
                next_at = time.monotonic() + every / 2
                await self.kill(together and number == 0)
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def read(self) -> None:
        """Messages from all over through the node, until told; a wrong one fails."""
        async with await connect(self.node) as client:
            while not self.stop.is_set():
                known = list(self.acked.acked.items())
                for data, seq in self.sample(known):
                    try:
                        await self._get(client, data, seq)
                        self.right += 1
                    except (Unknown, Failed):
                        self.refused += 1
                        await asyncio.sleep(0.02)
                await asyncio.sleep(0.02)

    @staticmethod
    def sample(known: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Some from all over; which ones is no matter of chance, so that reads do not use up the seed's choices."""
        return known[:: max(1, len(known) // 50)]

    async def _get(self, client: Client, data: str, seq: int) -> None:
        answer = await client.request(f"$JS.API.DIRECT.GET.{KEPT}", b'{"seq":%d}' % seq, timeout=2)
        header = dict(answer.headers or {})
        if "Nats-Sequence" not in header:
            raise Failed(f"{seq} through {client.node.name}: {header}")
        if answer.data.decode(errors="replace") != data or header["Nats-Sequence"] != str(seq):
            raise WrongError(f"{client.node.name} shows {answer.data[:60]!r} as {seq}, which is {data[:60]!r}")

    async def every_one(self) -> None:
        """Each message through the node, in `_HEAL` seconds all together."""
        deadline = time.monotonic() + _HEAL
        gate = asyncio.Semaphore(50)
        async with await connect(self.node) as client:

            async def one(data: str, seq: int) -> None:
                async def probe() -> bool:
                    try:
                        await self._get(client, data, seq)
                    except Unknown as why:
                        raise Failed(str(why)) from None
                    return True

                async with gate:
                    await until(f"{seq} can be read through {self.node.name}", deadline - time.monotonic(), probe, every=0.2)

            await asyncio.gather(*(one(data, seq) for data, seq in self.acked.acked.items()))


class WrongError(Exception):
    """A message that is not the one that was stored."""


async def scenario(run: Run, cluster: Cluster, rounds: int, every: float) -> None:
    """Load and rot, then all checks."""
    acked = Acked()
    await fill(run, cluster, acked)
    rot = Rot(run, cluster, acked)
    async with flow(cluster), Writers(cluster, acked, "kept.it", 4, pause=0.01, size=900):
        reader = asyncio.create_task(rot.read())
        try:
            await rot.storm(rounds, every)
        finally:
            rot.stop.set()
            await reader
    run.note(f"{len(acked.acked)} of {len(acked.sent)} publishes acknowledged; {rot.right} right reads through {rot.node.name}, {rot.refused} without a message")
    begin = time.monotonic()
    await whole(cluster, _HEAL)
    await rot.every_one()
    await whole(cluster, _HEAL)  # what a read finds is made good, too
    run.note(f"right again after {time.monotonic() - begin:.1f} s")
    await equal(cluster, KEPT)
    await whole(cluster, _HEAL)
    await acked.verify(run, KEPT, cluster.nodes)
    lines = told(rot.node)
    run.note(f"{rot.flips} files damaged, {len(lines)} lines of {rot.node.name} tell of damage")
    run.check(bool(lines), f"{rot.flips} files of {rot.node.name} were damaged, and no log tells of it")
    for other in cluster.others(rot.node):
        run.check(not told(other), f"{other.name} was not damaged, and says so: {told(other)[:1]}")


async def main(run: Run) -> None:
    """60 s, or two rounds with a pace of 4 s."""
    async with Cluster(run, 3) as cluster, run.part("bit rot"):
        await (scenario(run, cluster, 2, 4.0) if run.short else scenario(run, cluster, 12, 10.0))


if __name__ == "__main__":
    program("A13", main)
