#!/usr/bin/env python3
"""A8: a publish with a message id that is sent again is stored once, whatever became of the leader.

Publishes with ids go to the leader, which is killed, or cut off, within 5 ms, and some more while that happens. Each id
is sent again through the other nodes until it is acknowledged. Whatever was acknowledged, by the old leader or the new one, names
the same message, a `duplicate` one a message that can be read at that moment, and each id is there once on every node.
"""
from __future__ import annotations

import asyncio
import base64
from collections import defaultdict

from lib.checks import equal, leader
from lib.client import MESSAGE_ID, Ack, Client, Unknown, connect
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, program, until

_STREAM = "once"
_AT_ONCE, _PACE = 4, 0.0005
"""Publishes, and the seconds until the next ones, whether or not these are answered."""
_LIVE = 30.0


class Ids:
    """All ids, and what was said of each."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.run = run
        self.cluster = cluster
        self.sent: set[str] = set()
        self.acks: dict[str, set[int]] = defaultdict(set)
        self.first = 0
        """Acknowledged at the first try, then or later."""
        self.hit = 0
        """Without an answer when the leader was struck."""
        self.duplicates = 0

    async def publish(self, client: Client, ident: str, timeout: float) -> bool:
        """Send it once; an acknowledgement of a duplicate is looked after at once."""
        self.sent.add(ident)
        try:
            answer = await client.publish("once.it", ident.encode(), {MESSAGE_ID: ident}, timeout=timeout)
        except Unknown as why:
            raise Failed(str(why)) from None
        if not isinstance(answer, Ack):
            if answer.code == 503:
                raise Failed(str(answer))
            raise RuntimeError(f"{ident}: {answer}")
        self.acks[ident].add(answer.seq)
        if answer.duplicate:
            self.duplicates += 1
            await self._readable(client, ident, answer.seq)
        return True

    async def _readable(self, client: Client, ident: str, seq: int) -> None:
        got = await client.demand(f"STREAM.MSG.GET.{_STREAM}", {"seq": seq})
        data = base64.b64decode(got["message"]["data"]).decode()
        if data != ident:
            raise RuntimeError(f"{ident} is a duplicate of {seq}, which is {data}")

    async def first_try(self, client: Client, ident: str) -> None:
        """Through the leader that is about to be struck: an answer may come, at any time until the client gives up."""
        try:
            await self.publish(client, ident, timeout=3)
        except Failed:
            return
        self.first += 1

    async def again(self, client: Client, ident: str) -> None:
        """Until it is acknowledged."""
        await until(f"{ident} is acknowledged on {client.node.name}", _LIVE, lambda: self.publish(client, ident, timeout=2))

    async def verify(self) -> None:
        """Each id once, where every acknowledgement said, on every node."""
        split = {ident: seqs for ident, seqs in self.acks.items() if len(seqs) > 1}
        self.run.check(not split, f"{len(split)} ids were acknowledged under several sequences, first {next(iter(split.items()), None)}")
        silent = self.sent - self.acks.keys()
        self.run.check(not silent, f"{len(silent)} ids were never acknowledged")
        for node in self.cluster.nodes:
            async with await connect(node) as client:
                found: dict[str, int] = {}
                async for message in client.read(_STREAM):
                    ident = message.data.decode()
                    self.run.check(message.header.get(MESSAGE_ID) == ident, f"{node.name}: {message.seq} has the id {message.header} and the body {ident!r}")
                    self.run.check(ident in self.sent, f"{node.name} has {ident!r}, which nobody sent")
                    self.run.check(ident not in found, f"{node.name} has {ident} at {found.get(ident)} and {message.seq}")
                    found[ident] = message.seq
            wrong = [(i, s, found.get(i)) for i, s in self.acks.items() if s != {found.get(i)}]
            self.run.check(not wrong, f"{node.name}: {len(wrong)} ids are not where the acknowledgement said, first {wrong[:1]}")


async def round_of(ids: Ids, number: int, kind: str) -> None:
    """Publishes, the fault, the second try of each."""
    run, cluster = ids.run, ids.cluster
    node = await leader(cluster, _STREAM)
    others = cluster.others(node)
    names: list[str] = []
    tries: list[asyncio.Task[None]] = []
    clients = [await connect(other) for other in others]
    async with await connect(node) as first:

        async def flow() -> None:
            while True:
                for _ in range(_AT_ONCE):
                    names.append(f"{number}-{len(names)}")
                    tries.append(asyncio.create_task(ids.first_try(first, names[-1])))
                await asyncio.sleep(_PACE)

        flowing = asyncio.create_task(flow())
        await asyncio.sleep(run.random.uniform(0.0, 0.005))
        await strike(cluster, node, kind)
        await asyncio.sleep(run.random.uniform(0.0, 0.005))
        flowing.cancel()
        ids.hit += sum(not one.done() for one in tries)
        try:
            await asyncio.gather(*(ids.again(run.random.choice(clients), name) for name in names))
        finally:
            await mend(cluster, node, kind)
        await asyncio.gather(*tries)
    for client in clients:
        await client.close()
    await cluster.ready()


async def strike(cluster: Cluster, node: Node, kind: str) -> None:
    """KILL or CUT."""
    if kind == "kill":
        await node.kill()
    else:
        await asyncio.to_thread(cluster.require_links().isolate, node.index)


async def mend(cluster: Cluster, node: Node, kind: str) -> None:
    """Undo it."""
    if kind == "kill":
        await node.start()
    else:
        cluster.require_links().heal()


async def main(run: Run) -> None:
    """Rounds with a kill, and rounds with a cut."""
    for kind in ("kill", "cut"):
        rounds = (4 if kind == "kill" else 2) if run.short else 50
        if not run.wanted(kind):
            continue
        async with run.part(kind), Cluster(run, 3, links=kind == "cut", name=kind) as cluster:
            async with await connect(cluster.nodes[0]) as client:
                await client.create({
                    "name": _STREAM, "subjects": ["once.*"], "storage": "file", "num_replicas": 3, "allow_direct": True, "duplicate_window": 3_600_000_000_000,
                })
            ids = Ids(run, cluster)
            for number in range(rounds):
                await round_of(ids, number, kind)
            run.note(f"{kind}: {len(ids.sent)} ids, {ids.hit} open at the fault, {ids.first} acknowledged at the first try, {ids.duplicates} duplicates")
            run.check(ids.hit > 0, f"{kind}: no publish was ever hit")
            await ids.verify()
            await equal(cluster, _STREAM)


if __name__ == "__main__":
    program("A8", main)
