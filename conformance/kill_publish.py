#!/usr/bin/env python3
"""SIGKILL in the middle of publishing: whatever was acknowledged is there afterwards, where the acknowledgement said.

R1 on one node that is killed each round, and R3 on three, of which one, two or all are killed each round. Everything is read
back through one node after each round, and through all of them after each fifth, which also empties the stream.
"""
from __future__ import annotations

import argparse
import asyncio

from lib.checks import Acked, equal, leader
from lib.client import Client, connect
from lib.cluster import Cluster, Node
from lib.program import Run, program

_PUBLISHERS = 20
_FULL = 5
"""Rounds between two complete checks."""


async def publisher(acked: Acked, client: Client, tag: str, stop: asyncio.Event) -> None:
    """One publish after the other, until told."""
    number = 0
    while not stop.is_set():
        number += 1
        if not await acked.publish(client, "kill.it", f"{tag}-{number}", timeout=2):
            await asyncio.sleep(0.02)


async def round_of(run: Run, cluster: Cluster, acked: Acked, number: int, victims: list[Node]) -> None:
    """Publish through all nodes, kill after a random time, start again."""
    stop = asyncio.Event()
    clients = [await connect(node) for node in cluster.nodes]
    before = len(acked.acked)
    tasks = [
        asyncio.create_task(publisher(acked, clients[p % len(clients)], f"{number}-{p}", stop)) for p in range(_PUBLISHERS)
    ]
    try:
        await asyncio.sleep(run.random.uniform(0.1, 0.6))
        for victim in victims:
            await victim.kill()
        stop.set()
        for victim in victims:
            victim.launch()
        for victim in victims:
            await victim.wait_listening()
        await asyncio.gather(*tasks)
    finally:
        stop.set()
        for task in tasks:
            task.cancel()
        for client in clients:
            await client.close()
    await cluster.ready()
    await leader(cluster, "kill") if cluster.size > 1 else None
    run.check(len(acked.acked) > before, f"round {number}: nothing was acknowledged, so nothing was tested")


async def storm(run: Run, size: int, rounds: int) -> None:
    """All rounds on one cluster, with the check at the end of each."""
    async with Cluster(run, size, name=f"r{size}") as cluster:
        async with await connect(cluster.nodes[0]) as client:
            await client.create({"name": "kill", "subjects": ["kill.*"], "storage": "file", "num_replicas": size, "allow_direct": True})
        acked, stored, sent = Acked(), 0, 0
        for number in range(1, rounds + 1):
            victims = run.random.sample(cluster.nodes, run.random.randint(1, size))
            await round_of(run, cluster, acked, number, victims)
            last = number % _FULL == 0 or number == rounds
            await acked.verify(run, "kill", cluster.nodes if last else [run.random.choice(cluster.nodes)])
            if last:
                stored, sent = stored + len(acked.acked), sent + len(acked.sent)
                await refresh(cluster, size)
                acked = Acked()
        run.note(f"R{size}: {stored} of {sent} publishes acknowledged in {rounds} rounds")


async def refresh(cluster: Cluster, size: int) -> None:
    """EQUAL where there are replicas to compare, then an empty stream, so that reading back stays short."""
    if size > 1:
        await equal(cluster, "kill")
    async with await connect(cluster.nodes[0]) as client:
        await client.demand("STREAM.PURGE.kill")


def extra(parser: argparse.ArgumentParser) -> None:
    """The flag of this program."""
    parser.add_argument("--rounds", type=int, help="kills for each number of replicas (default 100, short 5)")


async def main(run: Run) -> None:
    """R1, then R3."""
    rounds = run.args.rounds or (5 if run.short else 100)
    for size in (1, 3):
        if run.wanted(f"R{size}"):
            async with run.part(f"R{size}, {rounds} rounds"):
                await storm(run, size, rounds)


if __name__ == "__main__":
    program("kill_publish", main, extra)
