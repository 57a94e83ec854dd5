#!/usr/bin/env python3
"""A4: one writer alone at full speed, its client on a follower: not one conflict."""
from __future__ import annotations

from lib.checks import leader
from lib.client import connect
from lib.cluster import Cluster
from lib.history import save, stale_reads, verify
from lib.kv import LANGUAGES, Load, create_bucket, outcomes
from lib.program import Run, program


async def alone(run: Run, cluster: Cluster, language: str, mode: str, count: int) -> None:
    """One writer, one key, one follower."""
    bucket = f"{language}-{mode}"
    async with await connect(cluster.nodes[0]) as client:
        await create_bucket(client, bucket)
    follower = run.random.choice(cluster.others(await leader(cluster, f"KV_{bucket}")))
    load = Load()
    try:
        await load.start(language, follower, bucket, "key", "writer", mode, count)
        await load.started()
        await load.finished(30 + count / 50)
        history = await load.collect()
    finally:
        load.end()
    run.note(f"{language}, revision from {mode}, on {follower.name}: {outcomes(history)}")
    save(history, cluster.folder / f"{bucket}.jsonl")
    others = [op for op in history if op.outcome != "ok"]
    run.check(not others, f"{len(others)} requests failed, first: {others[0].line() if others else ''}")
    stale = stale_reads(history)
    run.check(not stale, f"{len(stale)} stale reads, first: {stale[0] if stale else ''}")
    wrong = verify(history)
    run.check(not wrong, f"HIST: {wrong}")


async def main(run: Run) -> None:
    """Each client, with the revision from a get and from the last acknowledgement."""
    async with Cluster(run, 3) as cluster:
        for language in LANGUAGES:
            for mode in ("get", "ack"):
                if run.wanted(f"{language} {mode}"):
                    async with run.part(f"{language} {mode}"):
                        await alone(run, cluster, language, mode, 1_500 if run.short else 20_000)


if __name__ == "__main__":
    program("A4", main)
