#!/usr/bin/env python3
"""A3: the filters of a durable pull consumer of an interest stream are edited; every leader works by the new ones.

For each node in turn: edit the two filters, make that node the leader, publish 100 messages that match
the new filters and 100 that match only the old ones: exactly the first 100 are delivered.
"""
from __future__ import annotations

from lib.checks import equal, step_down
from lib.client import Ack, Client, connect
from lib.cluster import Cluster, Node
from lib.program import Run, program

_COUNT = 100


async def edit(client: Client, filters: list[str]) -> None:
    """Set the consumer's filters; creates it the first time."""
    config = {
        "durable_name": "pull", "ack_policy": "explicit", "deliver_policy": "all", "filter_subjects": filters, "ack_wait": 30_000_000_000,
    }
    answer = await client.demand("CONSUMER.CREATE.events.pull", {"stream_name": "events", "config": config})
    assert answer["config"]["filter_subjects"] == filters, answer


async def publish(run: Run, client: Client, subject: str, tag: str) -> None:
    """One hundred, each acknowledged."""
    for number in range(_COUNT):
        answer = await client.publish(subject, f"{tag} {number}".encode())
        run.check(isinstance(answer, Ack), f"publish to {subject} refused: {answer}")


async def fetched(client: Client, count: int) -> list[str]:
    """What the consumer delivers: `count` messages, and one more fetch that has to stay empty."""
    got: list[str] = []
    for batch, wait in ((count, 5.0), (10, 0.5)):
        async for message in client.fetch("events", "pull", batch, expires=wait):
            got.append(message.data.decode())
            await message.ack_sync()
    return got


async def round_led_by(run: Run, client: Client, node: Node, old: list[str], new: list[str]) -> None:
    """Edit, step down to `node`, publish, and take."""
    await edit(client, new)
    await step_down(client, "events", node)
    await publish(run, client, f"{old[0].removesuffix('*')}x", "old")
    await publish(run, client, f"{new[0].removesuffix('*')}x", "new")
    await publish(run, client, f"{new[1].removesuffix('*')}y", "second")
    expected = [f"new {n}" for n in range(_COUNT)] + [f"second {n}" for n in range(_COUNT)]
    got = await fetched(client, len(expected))
    run.check(got == expected, f"led by {node.name}: {len(got)} delivered in place of {len(expected)}, first {got[:1]}, last {got[-1:]}")
    state = (await client.stream("events"))["state"]
    run.check(state["messages"] == 0, f"led by {node.name}: {state['messages']} messages stay, though nobody is interested in them")


async def main(run: Run) -> None:
    """Two sets of filters, exchanged for each leader."""
    async with Cluster(run, 3) as cluster, await connect(cluster.nodes[0]) as client:
        await client.create({"name": "events", "subjects": ["e.>"], "retention": "interest", "storage": "file", "num_replicas": 3})
        sets = (["e.a.*", "e.b.*"], ["e.c.*", "e.d.*"])
        await edit(client, sets[0])
        for number in range(3 if run.short else 12):
            node = cluster.nodes[number % 3]
            async with run.part(f"round {number + 1}, led by {node.name}"):
                await round_led_by(run, client, node, sets[number % 2], sets[(number + 1) % 2])
        async with run.part("EQUAL"):
            await equal(cluster, "events")


if __name__ == "__main__":
    program("A3", main)
