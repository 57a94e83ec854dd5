#!/usr/bin/env python3
"""A6: reads never go back, whichever node answers and whatever node is down.

A writer raises a key 1,000 times a second, a reader on each node reads it, and every 5 s one node is
killed and started again. No reader may see a lower revision than one that it, or anyone, saw before.
"""
from __future__ import annotations

import asyncio
import time

from lib.client import Client, Unknown, connect
from lib.cluster import Cluster
from lib.history import Operation, save, stale_reads
from lib.kv import create_bucket, outcomes
from lib.program import Failed, Run, program

_SUBJECT = "$KV.up.counter"
_RATE = 1000.0


class Watch:
    """Everything that the clients saw."""

    def __init__(self) -> None:
        self.history: list[Operation] = []
        self.stop = asyncio.Event()

    def _add(self, kind: str, client: str, begin: int, outcome: str, revision: int = 0, value: str = "", error: str = "") -> None:
        self.history.append(Operation(kind, client, "counter", begin, time.monotonic_ns(), outcome, revision=revision, value=value, error=error))

    async def raise_one(self, client: Client, number: int) -> None:
        """One put."""
        begin = time.monotonic_ns()
        try:
            answer = await client.publish(_SUBJECT, b"%d" % number, timeout=5)
        except Unknown as why:
            self._add("put", "writer", begin, "unknown", value=str(number), error=str(why))
            return
        seq = getattr(answer, "seq", None)
        if seq is None:
            self._add("put", "writer", begin, "unknown", value=str(number), error=str(answer))
        else:
            self._add("put", "writer", begin, "ok", seq, str(number))

    async def write(self, client: Client) -> None:
        """1,000 a second, whether or not the last has been answered."""
        begin = time.monotonic()
        open_tasks: set[asyncio.Task[None]] = set()
        number = 0
        while not self.stop.is_set():
            while number < (time.monotonic() - begin) * _RATE and len(open_tasks) < 2000:
                number += 1
                task = asyncio.create_task(self.raise_one(client, number))
                open_tasks.add(task)
                task.add_done_callback(open_tasks.discard)
            await asyncio.sleep(0.005)
        await asyncio.gather(*open_tasks)

    async def read(self, client: Client) -> None:
        """As fast as the answers come, through one node."""
        name = f"reader on {client.node.name}"
        while not self.stop.is_set():
            begin = time.monotonic_ns()
            try:
                message = await client.last("KV_up", _SUBJECT, timeout=2)
            except (Unknown, Failed) as why:
                self._add("get", name, begin, "unknown", error=str(why))
                await asyncio.sleep(0.02)
                continue
            self._add("get", name, begin, "ok", message.seq if message else 0, message.data.decode() if message else "")
            await asyncio.sleep(0.001)


async def crashes(run: Run, cluster: Cluster, seconds: float, every: float) -> None:
    """SIGKILL and restart of one node after the other; the writer's node keeps out of it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        node = run.random.choice(cluster.nodes[1:])
        next_at = time.monotonic() + every
        await node.kill()
        await node.start()
        await cluster.ready(nodes=[node])
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def main(run: Run) -> None:
    """One bucket, one writer, three readers, one node down at a time."""
    async with Cluster(run, 3) as cluster, run.part("reads"):
        watch = Watch()
        clients = [await connect(node) for node in (cluster.nodes[0], *cluster.nodes)]
        await create_bucket(clients[0], "up")
        tasks = [asyncio.create_task(watch.write(clients[0])), *(asyncio.create_task(watch.read(c)) for c in clients[1:])]
        await crashes(run, cluster, 8.0 if run.short else 60.0, 3.0 if run.short else 5.0)
        watch.stop.set()
        await asyncio.gather(*tasks)
        for client in clients:
            await client.close()
        run.note(outcomes(watch.history))
        save(watch.history, cluster.folder / "history.jsonl")
        for node in cluster.nodes:
            reads = sum(op.client == f"reader on {node.name}" and op.outcome == "ok" for op in watch.history)
            run.check(reads > 100, f"the reader on {node.name} got {reads} answers only")
        stale = stale_reads(watch.history)
        run.check(not stale, f"{len(stale)} reads went back, first: {stale[0] if stale else ''}")


if __name__ == "__main__":
    program("A6", main)
