#!/usr/bin/env python3
"""Rolling restarts as operators do them: each server is stopped once `/healthz` of the one before, and nothing else, is 200.

All the time, on all nodes, messages are published into streams of three replicas on disk and in memory and into one of a
single replica, a work-queue is filled and emptied, and keys are written by compare-and-set. Nothing that was acknowledged is
missing afterwards, not even from memory; no writer that is alone on its key is ever refused, and none reads what is older than
what it wrote; no message of the work-queue is lost, or comes again after its acknowledgement was confirmed.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from lib.checks import Acked, equal
from lib.client import Ack, Client, Unknown, connect, stream_sequence
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, program, until
from lib.writers import Writers

_FILE, _MEMORY, _SINGLE, _WORK, _KEYS = "file", "memory", "single", "work", "keys"
_CONSUMER = "worker"
_SIZE = 1000
"""Bytes of a message, so that a replica in memory is not filled again at once."""


class Queue:
    """Workers on all nodes that empty the work-queue."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.seen: set[str] = set()
        self.confirmed: dict[int, float] = {}
        """When the acknowledgement of a message was confirmed, by sequence."""
        self.stop = asyncio.Event()

    async def work(self, client: Client) -> None:
        """Pull and acknowledge, until told."""
        while not self.stop.is_set():
            asked = time.monotonic()
            try:
                async for message in client.fetch(_WORK, _CONSUMER, 50, expires=1.0):
                    await self._take(client, message.reply, stream_sequence(message), message.data.decode(), asked)
            except Unknown:
                await asyncio.sleep(0.05)

    async def _take(self, client: Client, reply: str, seq: int, text: str, asked: float) -> None:
        known = self.confirmed.get(seq, asked)
        self.run.check(known >= asked, f"{seq} of the work-queue came again on {client.node.name}, {asked - known:.2f} s after it was acknowledged")
        self.seen.add(text)
        with contextlib.suppress(Unknown):  # it comes again
            answer = await client.request(reply, b"+ACK", timeout=2)
            if not answer.data and not (answer.headers or {}).get("Status"):
                self.confirmed.setdefault(seq, time.monotonic())


class Keys:
    """A writer on each node, each alone on its key."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.stop = asyncio.Event()
        self.writes = 0

    async def write(self, client: Client) -> None:
        """Compare-and-set, with the revision of the last one, or as read where that is unknown."""
        key, number = f"keys.{client.node.name}", 0
        revision, known = 0, True
        while not self.stop.is_set():
            number += 1
            if not known:
                read = await self._read(client, key, revision)
                if read is None:
                    continue
                revision, known = read, True
            try:
                answer = await client.compare_and_set(key, b"%d" % number, revision, timeout=2)
            except Unknown:
                known = False
                await asyncio.sleep(0.02)
                continue
            if isinstance(answer, Ack):
                revision = answer.seq
                self.writes += 1
            else:
                self.run.check(answer.code == 503, f"{key}: the only writer, with revision {revision}, is refused: {answer}")
                known = False

    async def _read(self, client: Client, key: str, least: int) -> int | None:
        # What is unknown has to have its outcome first: requests of one connection come in order.
        try:
            message = await client.last(_KEYS, key, timeout=2)
        except Unknown:
            await asyncio.sleep(0.02)
            return None
        revision = message.seq if message else 0
        self.run.check(revision >= least, f"{key}: read revision {revision} on {client.node.name} after {least} was acknowledged")
        return revision


async def create(cluster: Cluster) -> None:
    """All streams, and the consumer of the work-queue."""
    async with await connect(cluster.nodes[0]) as client:
        for name, storage, replicas, more in (
            (_FILE, "file", 3, {}),
            (_MEMORY, "memory", 3, {}),
            (_SINGLE, "file", 1, {}),
            (_WORK, "file", 3, {"retention": "workqueue"}),
            (_KEYS, "file", 3, {"max_msgs_per_subject": 5}),
        ):
            await client.create({"name": name, "subjects": [f"{name}.*"], "storage": storage, "allow_direct": True} | more, place=replicas)
        config = {"durable_name": _CONSUMER, "ack_policy": "explicit", "ack_wait": 2_000_000_000}
        await client.demand(f"CONSUMER.CREATE.{_WORK}.{_CONSUMER}", {"stream_name": _WORK, "config": config})


@contextlib.asynccontextmanager
async def load(cluster: Cluster, acked: dict[str, Acked], queue: Queue, keys: Keys) -> AsyncIterator[None]:
    """Everything that goes on meanwhile; an error of it is one of the block."""
    async with contextlib.AsyncExitStack() as stack:
        for name, one in acked.items():
            await stack.enter_async_context(Writers(cluster, one, f"{name}.it", 2, pause=0.004, size=_SIZE))
        clients = [await stack.enter_async_context(await connect(node)) for node in cluster.nodes for _ in range(2)]
        tasks = [asyncio.create_task(queue.work(client)) for client in clients[::2]]
        tasks += [asyncio.create_task(keys.write(client)) for client in clients[1::2]]
        try:
            yield
            for task in tasks:
                if task.done():
                    task.result()
            keys.stop.set()
            await asyncio.gather(*tasks[len(cluster.nodes):])
        finally:
            queue.stop.set()
            keys.stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            task.result()


async def restart(node: Node, hard: bool, cluster: Cluster) -> float:
    """Stop it and start it; the seconds from its start until it says that it is well."""
    if hard:
        await node.kill()
    else:
        await node.term()
    begin = time.monotonic()
    await node.start()
    await cluster.ready(nodes=[node])
    return time.monotonic() - begin


async def whole(run: Run, rounds: int) -> None:
    """All rounds, and what is to be true afterwards."""
    async with Cluster(run, 3) as cluster:
        await create(cluster)
        acked = {name: Acked() for name in (_FILE, _MEMORY, _SINGLE, _WORK)}
        queue, keys = Queue(run), Keys(run)
        async with load(cluster, acked, queue, keys):
            await asyncio.sleep(1)
            for number in range(1, rounds + 1):
                took = [await restart(node, run.random.random() < 0.5, cluster) for node in run.random.sample(cluster.nodes, 3)]
                run.note(f"round {number}: well after {', '.join(f'{seconds:.2f}' for seconds in took)} s")
        await cluster.ready()
        work = acked.pop(_WORK)
        counts = {name: len(one.acked) for name, one in acked.items()}
        run.note(f"acknowledged: {counts}, {len(work.acked)} of the work-queue, {keys.writes} writes of keys")
        run.check(min(*counts.values(), len(work.acked), keys.writes) > 50, "hardly anything was acknowledged, so hardly anything was tested")
        await emptied(cluster, queue)
        lost = set(work.acked) - queue.seen
        run.check(not lost, f"{len(lost)} of {len(work.acked)} messages of the work-queue were never delivered, as {sorted(lost)[0][:40] if lost else ''}")
        for name in (_FILE, _MEMORY, _WORK, _KEYS):
            await equal(cluster, name, by_leader=name != _KEYS)
        for name, one in acked.items():
            await one.verify(run, name, cluster.nodes)


async def emptied(cluster: Cluster, queue: Queue) -> None:
    """The workers go on until nothing is left."""
    queue.stop.clear()
    async with await connect(cluster.nodes[0]) as client:
        task = asyncio.create_task(queue.work(client))

        async def probe() -> bool:
            if left := (await client.stream(_WORK))["state"]["messages"]:
                raise Failed(f"{left} messages")
            return True

        try:
            await until("the work-queue is empty", 30, probe, every=0.2)
        finally:
            queue.stop.set()
            await task


def extra(parser: argparse.ArgumentParser) -> None:
    """The flag of this program."""
    parser.add_argument("--rounds", type=int, help="restarts of all three servers (default 10, short 2)")


async def main(run: Run) -> None:
    """Ten rounds, or two."""
    rounds = run.args.rounds or (2 if run.short else 10)
    async with run.part(f"{rounds} rounds"):
        await whole(run, rounds)


if __name__ == "__main__":
    program("rolling", main, extra)
