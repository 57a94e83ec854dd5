#!/usr/bin/env python3
"""A15: a start does not wait for what is stored.

A stream of 10 million messages of 100 bytes on a million subjects, in no order; all servers are killed and started again. The
first publish is acknowledged, and the first message delivered, within three seconds of the start. On one server, and on three
with a copy each.
"""
from __future__ import annotations

import asyncio
import time

from lib.checks import equal
from lib.client import Ack, Client, Unknown, connect
from lib.cluster import Cluster, Node, cores
from lib.program import Failed, Run, program, until

STREAM = "BIG"
_SIZE = 100
_WITHIN = 3.0
_STRIDE = 7919  # has no factor in common with the number of subjects, so that all of them are met, far from each other


async def fill(node: Node, messages: int, subjects: int) -> None:
    """Publishes without waiting for acknowledgements, through a connection of its own."""
    reader, writer = await asyncio.open_connection(node.address, node.port)
    writer.write(b'CONNECT {"verbose":false}\r\n')
    body = b"x" * _SIZE + b"\r\n"
    for base in range(0, messages, 5_000):
        batch = range(base, min(base + 5_000, messages))
        writer.write(b"".join(b"PUB big.%d %d\r\n%b" % (n * _STRIDE % subjects, _SIZE, body) for n in batch))
        await writer.drain()
    writer.write(b"PING\r\n")
    while not (await reader.readline()).startswith(b"PONG"):
        pass
    writer.close()


async def stored(client: Client, messages: int) -> None:
    """Waits until all of them are in the stream."""

    async def probe() -> bool:
        return (await client.stream(STREAM))["state"]["messages"] == messages

    await until(f"{messages} messages are stored", 60 + messages / 20_000, probe, every=0.2)


async def first_ack(node: Node, begin: float, messages: int) -> float:
    """Seconds from `begin` to the first acknowledgement of a publish."""

    async def probe() -> bool:
        try:
            async with await connect(node, limit=1) as client:
                answer = await client.publish("big.first", b"first", timeout=1)
        except Unknown as why:
            raise Failed(str(why)) from None
        if not isinstance(answer, Ack):
            raise Failed(str(answer))
        # One that was not answered may have been stored all the same.
        if answer.seq <= messages:
            raise RuntimeError(f"sequence {answer.seq} is given again")
        return True

    await until("a publish is acknowledged", 60, probe, every=0.01)
    return time.monotonic() - begin


async def first_delivery(node: Node, begin: float) -> float:
    """Seconds from `begin` to the first message of the consumer."""

    async def probe() -> bool:
        async with await connect(node, limit=1) as client:
            return [message.data async for message in client.fetch(STREAM, "worker", 1, expires=1.0)] == [b"x" * _SIZE]

    await until("a message is delivered", 60, probe, every=0.01)
    return time.monotonic() - begin


async def scenario(run: Run, size: int) -> None:
    """Fill, kill, start, measure."""
    messages, subjects = (200_000, 20_000) if run.short else (10_000_000, 1_000_000)
    async with Cluster(run, size, name=f"r{size}") as cluster:
        node = cluster.nodes[0]
        async with await connect(node) as client:
            await client.create({"name": STREAM, "subjects": ["big.*"], "retention": "limits"}, place=size)
            worker = {"durable_name": "worker", "ack_policy": "explicit", "deliver_policy": "all"}
            await client.demand(f"CONSUMER.CREATE.{STREAM}.worker", {"stream_name": STREAM, "config": worker})
            begin = time.monotonic()
            await fill(node, messages, subjects)
            await stored(client, messages)
            run.note(f"{messages} messages on {subjects} subjects in {time.monotonic() - begin:.1f} s")
        await cluster.ready()
        await asyncio.gather(*(node.kill() for node in cluster.nodes))
        begin = time.monotonic()
        for node in cluster.nodes:
            node.launch()
        ack, delivery = await asyncio.gather(first_ack(cluster.nodes[0], begin, messages), first_delivery(cluster.nodes[-1], begin))
        await cluster.ready()
        run.note(f"first acknowledgement after {ack:.2f} s, first delivery after {delivery:.2f} s, all healthy after {time.monotonic() - begin:.2f} s")
        within = _WITHIN * max(1.0, size / cores())  # servers that share a core take turns at it
        run.check(max(ack, delivery) <= within, f"first acknowledgement after {ack:.2f} s, first delivery after {delivery:.2f} s, not within {within:.1f} s")
        if size > 1:
            await equal(cluster, STREAM)


async def main(run: Run) -> None:
    """One server, then three."""
    for size in (1, 3):
        name = f"{size} server{'s' if size > 1 else ''}"
        if run.wanted(name):
            async with run.part(name):
                await scenario(run, size)


if __name__ == "__main__":
    program("A15", main)
