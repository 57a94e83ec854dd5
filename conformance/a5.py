#!/usr/bin/env python3
"""A5: of 100 tasks that update one key from the same revision, exactly one wins, and the others learn the true sequence.

The tasks' clients are spread over all nodes. Every tenth round the leader is stepped down while the
tasks race: then some may get no answer, but there is still no more than one winner, and who loses is told right.
"""
from __future__ import annotations

import asyncio

from lib.checks import step_down
from lib.client import WRONG_LAST_SEQUENCE, Ack, Client, Refused, Unknown, connect
from lib.cluster import Cluster
from lib.kv import create_bucket
from lib.program import Failed, Run, program, until

_TASKS = 100
_SUBJECT = "$KV.race.key"


async def attempt(client: Client, value: bytes, expected: int) -> Ack | Refused | None:
    """One task's update; `None` if there was no answer."""
    try:
        return await client.compare_and_set(_SUBJECT, value, expected, timeout=5)
    except Unknown:
        return None


async def settled(client: Client) -> tuple[int, bytes]:
    """Revision and value of the key."""

    async def probe() -> tuple[int, bytes] | None:
        try:
            message = await client.last("KV_race", _SUBJECT, timeout=2)
        except Unknown as why:
            raise Failed(str(why)) from None
        return (message.seq, message.data) if message else None

    return await until("the key can be read", 20, probe)


async def race(run: Run, clients: list[Client], number: int, revision: int, moving: bool) -> int:
    """One round; answers the new revision."""
    values = [f"{number}-{task}".encode() for task in range(_TASKS)]
    attempts = [attempt(clients[task % len(clients)], values[task], revision) for task in range(_TASKS)]
    moved = asyncio.create_task(step_down(run.random.choice(clients), "KV_race")) if moving else None
    answers = await asyncio.gather(*attempts)
    if moved is not None:
        await moved
    winners = [(a.seq, values[t]) for t, a in enumerate(answers) if isinstance(a, Ack)]
    lost = [a for a in answers if isinstance(a, Refused)]
    silent = sum(a is None for a in answers)
    run.check(len(winners) <= 1, f"round {number}: {len(winners)} winners")
    run.check(moving or not silent, f"round {number}: {silent} tasks got no answer")
    now, value = await settled(clients[number % len(clients)])
    if winners:
        run.check((now, value) == winners[0], f"round {number}: the winner stored {winners[0]}, and a read shows {(now, value)}")
    else:
        run.check(moving, f"round {number}: nobody won")
    bad = [a for a in lost if a.err_code != WRONG_LAST_SEQUENCE or a.last_sequence != now]
    run.check(not bad, f"round {number}: {len(bad)} of {len(lost)} losers were not told 10071 with {now}: {bad[0] if bad else ''}")
    # A silent task's update may still arrive: it must not win later either, since its revision has gone, or it is the winner.
    return now


async def main(run: Run) -> None:
    """Round after round on the revision of the one before."""
    async with Cluster(run, 3) as cluster:
        clients = [await connect(cluster.nodes[n % 3]) for n in range(9)]
        await create_bucket(clients[0], "race")
        first = await clients[0].compare_and_set(_SUBJECT, b"start", 0)
        assert isinstance(first, Ack), first
        for name, rounds, moving in (("quiet", 40 if run.short else 900, False), ("across leader changes", 8 if run.short else 100, True)):
            async with run.part(f"{name}, {rounds} rounds"):
                revision = (await settled(clients[0]))[0]
                for number in range(rounds):
                    revision = await race(run, clients, number, revision, moving)
        for client in clients:
            await client.close()


if __name__ == "__main__":
    program("A5", main)
