#!/usr/bin/env python3
"""A7: a consumer does not stall when its leader changes, and neither forgets an acknowledgement nor makes one up.

Three workers, one a node, pull from one durable consumer with an ack wait of 2 s and acknowledge only messages
with an even sequence, while the leader steps down every 3 s. Each odd message has to come again, no even one after
its acknowledgement was confirmed, and no 10 s may pass without a delivery: something is always due.
"""
from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from lib.checks import equal, step_down
from lib.client import Ack, Client, Unknown, connect, stream_sequence
from lib.cluster import Cluster
from lib.program import Failed, Run, program, until

_STREAM, _CONSUMER = "tasks", "worker"
_ACK_WAIT = 2.0
_LIVE = 10.0


class Work:
    """The stream, its consumer, and all that the workers saw."""

    def __init__(self, run: Run, cluster: Cluster, count: int) -> None:
        self.run = run
        self.cluster = cluster
        self.count = count
        self.deliveries: Counter[int] = Counter()
        self.at: list[float] = []
        """When something was delivered."""
        self.confirmed: dict[int, float] = {}
        """When the acknowledgement of a message was confirmed."""
        self.wrong: list[str] = []
        self.acks: set[asyncio.Task[None]] = set()
        self.stop = asyncio.Event()
        self.all = False
        """Odd ones are acknowledged, too."""

    async def create(self, client: Client) -> None:
        """The stream with its messages, and the consumer, which may have all odd ones pending at once."""
        await client.create({"name": _STREAM, "subjects": ["tasks.*"], "storage": "file", "num_replicas": 3, "allow_direct": True})
        config = {
            "durable_name": _CONSUMER, "ack_policy": "explicit", "deliver_policy": "all", "ack_wait": int(_ACK_WAIT * 1e9), "max_ack_pending": 2 * self.count,
        }
        await client.demand(f"CONSUMER.CREATE.{_STREAM}.{_CONSUMER}", {"stream_name": _STREAM, "config": config})
        for first in range(0, self.count, 500):
            batch = range(first, min(first + 500, self.count))
            answers = await asyncio.gather(*(client.publish("tasks.new", b"%d" % n, timeout=20) for n in batch))
            self.run.check(all(isinstance(a, Ack) for a in answers), f"a publish was refused: {answers[0]}")

    async def work(self, client: Client) -> None:
        """Pull and acknowledge, until told."""
        while not self.stop.is_set():
            asked = time.monotonic()
            try:
                async for message in client.fetch(_STREAM, _CONSUMER, 100, expires=1.0):
                    self._take(client, message.reply, stream_sequence(message), asked)
            except Unknown:
                await asyncio.sleep(0.05)

    def _take(self, client: Client, reply: str, seq: int, asked: float) -> None:
        self.at.append(time.monotonic())
        self.deliveries[seq] += 1
        # The pull itself was sent after the confirmation, so whoever answers it knows of that.
        if self.confirmed.get(seq, asked) < asked:
            self.wrong.append(f"{seq} on {client.node.name}, {asked - self.confirmed[seq]:.2f} s after its acknowledgement was confirmed")
        if self.all or seq % 2 == 0:
            task = asyncio.create_task(self._acknowledge(client, reply, seq))
            self.acks.add(task)
            task.add_done_callback(self.acks.discard)

    async def _acknowledge(self, client: Client, reply: str, seq: int) -> None:
        try:
            answer = await client.request(reply, b"+ACK", timeout=5)
        except Unknown:
            return  # it comes again
        if not answer.data and not (answer.headers or {}).get("Status"):
            self.confirmed.setdefault(seq, time.monotonic())

    def state(self) -> str:
        """How far it is, for messages."""
        odd = sum(self.deliveries[seq] > 1 for seq in range(1, self.count + 1, 2))
        even = sum(seq % 2 == 0 for seq in self.confirmed)
        return f"{odd} odd ones came again, {even} even ones are acknowledged, of {self.count // 2} each"

    def done(self) -> bool:
        """Each odd message came again, and each even one is acknowledged."""
        return all(self.deliveries[s] > 1 for s in range(1, self.count + 1, 2)) and all(s in self.confirmed for s in range(2, self.count + 1, 2))

    def check(self, when: str) -> None:
        """What must never happen has not; and there was no pause."""
        self.run.check(not self.wrong, f"{when}: {len(self.wrong)} messages came after their acknowledgement, first {self.wrong[:1]}")
        gap = max((b - a for a, b in zip(self.at, [*self.at[1:], time.monotonic()], strict=True)), default=0.0)
        self.run.check(gap <= _LIVE, f"{when}: LIVE({_LIVE:g}): nothing was delivered for {gap:.1f} s; {self.state()}")


async def step_downs(work: Work, least: int, every: float, limit: float) -> None:
    """Another leader again and again, `least` times and until all is done."""
    run, deadline, made = work.run, time.monotonic() + limit, 0
    while made < least or not work.done():
        run.check(time.monotonic() < deadline, f"not within {limit:g} s, with {made} step-downs: {work.state()}")
        next_at = time.monotonic() + every
        async with await connect(run.random.choice(work.cluster.nodes)) as client:
            await step_down(client, _STREAM)
        made += 1
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        work.check(f"after {made} step-downs")
    longest = max(b - a for a, b in zip(work.at, work.at[1:], strict=False))
    run.note(f"{made} step-downs, {sum(work.deliveries.values())} deliveries, longest pause {longest:.2f} s")


async def position(client: Client) -> dict[str, Any]:
    """CONSUMER.INFO."""
    return await client.demand(f"CONSUMER.INFO.{_STREAM}.{_CONSUMER}")


async def whole(run: Run, cluster: Cluster, count: int, least: int, every: float) -> None:
    """The scenario."""
    work = Work(run, cluster, count)
    clients = [await connect(node) for node in cluster.nodes]
    await work.create(clients[0])
    tasks = [asyncio.create_task(work.work(client)) for client in clients]
    try:
        await step_downs(work, least, every, 30 + count / 50)
        info = await position(clients[0])
        run.check(info["num_ack_pending"] == count // 2, f"{info['num_ack_pending']} are pending, and {count // 2} odd ones are not acknowledged")
        run.check(info["num_pending"] == 0, f"{info['num_pending']} were never delivered")
        run.check(info["ack_floor"]["stream_seq"] == 0, f"the ack floor is {info['ack_floor']}, and 1 is not acknowledged")
        before = Counter(work.deliveries)

        async def again() -> bool:
            return all(work.deliveries[seq] > before[seq] for seq in range(1, count + 1, 2))

        await until("all odd ones come once more from a leader that stays", _LIVE + count / 500, again)
        work.check("at rest")
        work.all = True

        async def finished() -> bool:
            if (left := (await position(clients[0]))["num_ack_pending"]):
                raise Failed(f"{left} pending")
            return True

        await until("all are acknowledged", _LIVE + count / 500, finished, every=0.2)
        floor = (await position(clients[0]))["ack_floor"]["stream_seq"]
        run.check(floor == count, f"all are acknowledged, and the ack floor is {floor} in place of {count}")
    finally:
        work.stop.set()
        await asyncio.gather(*tasks)
        await asyncio.gather(*work.acks)
        for client in clients:
            await client.close()
    run.check(not work.wrong, f"{len(work.wrong)} messages came after their acknowledgement, first {work.wrong[:1]}")
    await equal(cluster, _STREAM)


async def main(run: Run) -> None:
    """10,000 messages and a step-down every 3 s, or 1,000 and one every 2 s."""
    async with Cluster(run, 3) as cluster, run.part("step-downs"):
        await (whole(run, cluster, 1_000, 3, 2.0) if run.short else whole(run, cluster, 10_000, 20, 3.0))


if __name__ == "__main__":
    program("A7", main)
