#!/usr/bin/env python3
"""A2: a work-queue that is scaled while its consumer works goes on, and consumed messages go on every node.

With a durable push consumer and a live subscriber, and with a durable pull consumer and a worker that
fetches; R1 to R3, then to R1 and to R3 again. After each step messages are published, and each replica's
own page has to say within 2 s of the last acknowledgement that the stream is empty.
"""
from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lib.checks import equal, view
from lib.client import Ack, Client, connect
from lib.cluster import Cluster
from lib.program import Failed, Run, program, until

_GONE = 2.0
"""Seconds until consumed messages have left every replica."""


class Queue:
    """A work-queue and its one worker."""

    def __init__(self, run: Run, cluster: Cluster, kind: str) -> None:
        self.run = run
        self.cluster = cluster
        self.kind = kind
        self.stream = f"jobs-{kind}"
        self.got: list[int] = []
        self.sent = 0

    async def create(self, client: Client) -> None:
        """R1, with a durable consumer that has to acknowledge each message."""
        await client.create({
            "name": self.stream, "subjects": [f"{self.stream}.>"], "retention": "workqueue", "storage": "file", "num_replicas": 1,
        })
        consumer: dict[str, Any] = {"durable_name": "worker", "ack_policy": "explicit", "deliver_policy": "all", "ack_wait": 30_000_000_000}
        if self.kind == "push":
            consumer["deliver_subject"] = f"deliver.{self.stream}"
        await client.demand(f"CONSUMER.CREATE.{self.stream}.worker", {"stream_name": self.stream, "config": consumer})

    async def work(self, client: Client) -> None:
        """Take and acknowledge, until cancelled."""
        if self.kind == "push":
            subscription = await client.raw.subscribe(f"deliver.{self.stream}")
            async for message in subscription.messages:
                self.got.append(int(message.data))
                await message.ack()
            return
        while True:
            async for message in client.fetch(self.stream, "worker", 50, expires=1.0):
                self.got.append(int(message.data))
                await message.ack()

    async def round(self, client: Client, when: str, count: int) -> None:
        """Publish, see all of it worked off, and gone everywhere."""
        for _ in range(count):
            answer = await client.publish(f"{self.stream}.job", b"%d" % self.sent)
            self.run.check(isinstance(answer, Ack), f"{when}: publish refused: {answer}")
            self.sent += 1

        async def worked() -> bool:
            return len(set(self.got)) == self.sent

        await until(f"{when}: all {self.sent} worked off ({len(set(self.got))} so far)", 20, worked)
        await self.gone(when)

    async def gone(self, when: str) -> None:
        """Each replica's own page, within 2 s."""
        left: dict[str, Any] = {}

        async def probe() -> bool:
            left.clear()
            for node in self.cluster.nodes:
                page = await view(node, self.stream)
                if page is not None:
                    left[node.name] = page["messages"]
            return bool(left) and not any(left.values())

        try:
            await until("gone", _GONE, probe)
        except Failed:
            raise Failed(f"{when}: consumed messages are still there after {_GONE:g} s: {left}") from None

    async def scale(self, client: Client, replicas: int) -> None:
        """Edit, and wait until all replicas are there and current."""
        config = (await client.stream(self.stream))["config"] | {"num_replicas": replicas}
        await client.demand(f"STREAM.UPDATE.{self.stream}", config)

        async def probe() -> bool:
            cluster = (await client.stream(self.stream))["cluster"]
            others = cluster.get("replicas") or []
            return bool(cluster.get("leader")) and len(others) == replicas - 1 and all(r["current"] for r in others)

        await until(f"{self.stream} has {replicas} current replicas", 30, probe, every=0.1)

    async def whole(self, count: int) -> None:
        """The scenario."""
        async with await connect(self.cluster.nodes[0]) as client, await connect(self.cluster.nodes[1]) as other:
            await self.create(client)
            worker = asyncio.create_task(self.work(other))
            try:
                await self.round(client, "R1", count)
                for replicas in (3, 1, 3):
                    await self.scale(client, replicas)
                    await self.round(client, f"R{replicas}", count)
            finally:
                worker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await worker
            self.run.check(len(self.got) == len(set(self.got)), f"{len(self.got) - len(set(self.got))} messages were delivered twice")
            await equal(self.cluster, self.stream)


async def main(run: Run) -> None:
    """Both kinds of consumer, side by side."""
    count = 50 if run.short else 1_000

    async def one(kind: str) -> None:
        async with run.part(f"{kind} consumer"):
            await Queue(run, cluster, kind).whole(count)

    async with Cluster(run, 3) as cluster:
        await asyncio.gather(*(one(kind) for kind in ("push", "pull") if run.wanted(kind)))


if __name__ == "__main__":
    program("A2", main)
