#!/usr/bin/env python3
"""A1: what left a work-queue stays gone on every replica, and nothing reaches the other side twice.

A work-queue `src` of 2, 3 or 5 replicas feeds a stream that sources it, or mirrors it. Messages
flow, the leader of `src` is killed while they do and again when they are through, and comes back.
"""
from __future__ import annotations

import asyncio
import itertools
from typing import Any

from lib.checks import equal, leader
from lib.client import MESSAGE_ID, Ack, Unknown, connect
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, program, until


class Flow:
    """One pair of streams and the messages between them."""

    def __init__(self, run: Run, cluster: Cluster, replicas: int, kind: str, count: int) -> None:
        self.run = run
        self.cluster = cluster
        self.replicas = replicas
        self.kind = kind
        self.count = count
        name = f"{kind}{replicas}x{count}"
        self.src, self.dst = f"src-{name}", f"dst-{name}"
        self.subject = f"{name}.item"

    async def create(self) -> None:
        """Both streams; a mirror has the sequences of its origin, a source counts by itself."""
        config: dict[str, Any] = {
            "name": self.src, "subjects": [self.subject], "retention": "workqueue", "storage": "file", "discard": "old",
            "num_replicas": self.replicas, "duplicate_window": 600_000_000_000, "allow_direct": True,
        }
        other: dict[str, Any] = {"name": self.dst, "storage": "file", "num_replicas": self.replicas, "allow_direct": True}
        other |= {"mirror": {"name": self.src}} if self.kind == "mirror" else {"sources": [{"name": self.src}]}
        async with await connect(self.cluster.nodes[0]) as client:
            await client.create(config)
            await client.create(other)

    async def publish(self) -> None:
        """Every message, with an id, again and again until it is acknowledged; the leader dies half-way."""
        gate = asyncio.Semaphore(200)
        killed: asyncio.Task[Node] | None = None
        node = self.cluster.nodes[0]
        async with await connect(node) as client:

            async def one(number: int) -> None:
                nonlocal killed
                async with gate:
                    if number == self.count // 2 and self.count > 1:
                        killed = asyncio.create_task(self.strike(spare=node))

                    async def probe() -> bool:
                        try:
                            done = await client.publish(self.subject, b"%d" % number, {MESSAGE_ID: f"{self.src}-{number}"}, timeout=3)
                        except Unknown as why:
                            raise Failed(str(why)) from None
                        return isinstance(done, Ack)

                    await until(f"message {number} is acknowledged", 40, probe)

            await asyncio.gather(*(one(n) for n in range(self.count)))
        if killed is not None and not (struck := await killed).running:
            await struck.start()
        await self.cluster.ready()

    async def kill_leader(self, spare: Node) -> Node:
        """SIGKILL of the leader, or of another node of the group if the publisher's own node leads."""
        node = await leader(self.cluster, self.src)
        if node is spare:
            async with await connect(node) as client:
                replicas = (await client.stream(self.src))["cluster"].get("replicas") or []
            node = self.cluster.node(self.run.random.choice(replicas)["name"])
        await node.kill()
        return node

    async def strike(self, spare: Node) -> Node:
        """`kill_leader` while messages flow. Two replicas have no majority without one of them, so it comes back at once."""
        node = await self.kill_leader(spare)
        if self.replicas == 2:
            await node.start()
        return node

    async def through(self, when: str) -> None:
        """`src` is empty and `dst` has each message once."""

        async def probe() -> bool:
            async with await connect(self.cluster.nodes[0]) as client:
                src, dst = (await client.stream(self.src))["state"], (await client.stream(self.dst))["state"]
            if src["messages"] or dst["messages"] < self.count:
                raise Failed(f"src {src['messages']}, dst {dst['messages']} of {self.count}")
            return True

        await until(f"{when}: everything moved", 30 + self.count / 1000, probe, every=0.2)
        async with await connect(self.cluster.nodes[0]) as client:
            got = [int(m.data) async for m in client.read(self.dst, limit=30 + self.count / 500)]
        twice = len(got) - len(set(got))
        missing = set(range(self.count)) - set(got)
        self.run.check(not twice and not missing, f"{when}: dst has {twice} twice and lacks {len(missing)} of {self.count}")

    async def whole(self) -> None:
        """The scenario."""
        await self.create()
        await self.publish()
        await self.through("after the flow")
        node = await self.kill_leader(spare=self.cluster.nodes[0])
        if self.replicas > 2:  # two replicas have no majority left
            await leader(self.cluster, self.src)
        await node.start()
        await self.cluster.ready()
        await leader(self.cluster, self.src)
        await self.through("after the kill")
        await equal(self.cluster, self.src)
        await equal(self.cluster, self.dst)


async def main(run: Run) -> None:
    """Each number of replicas with each kind."""
    pairs = [(3, "source"), (2, "mirror"), (5, "source")] if run.short else list(itertools.product((2, 3, 5), ("source", "mirror")))
    counts = (300,) if run.short else (1, 10, 1_000, 100_000)
    for replicas, kind in pairs:
        for count in counts:
            name = f"{kind} R{replicas}, {count} messages"
            if not run.wanted(name):
                continue
            async with run.part(name):
                async with Cluster(run, 5 if replicas == 5 else 3, name=f"{kind}-{replicas}-{count}") as cluster:
                    await Flow(run, cluster, replicas, kind, count).whole()


if __name__ == "__main__":
    program("A1", main)
