#!/usr/bin/env python3
"""A9: a stream that feeds another one inside the cluster arrives there whole, in order and once, however often the wire breaks.

`copy` sources `origin`, both with three replicas and led by different nodes. While writers on all nodes fill `origin`, the
wire between the two leaders is cut and mended again and again: in both directions, or in one. Between two cuts `copy` gets
another leader, at times during one as well, and half-way `origin` does. 30 s after the last publish `copy` has what `origin`
was given, each message once. A work queue as the origin never lets go of what the copy has not, and is empty in the end.
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from lib.checks import Acked, equal, leader, step_down
from lib.client import Client, Unknown, connect
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, Skipped, program, until
from lib.writers import Writers

_ORIGIN, _COPY = "origin", "copy"
_LIVE = 30.0
_EACH = 10
"""Writers on each node."""
_LONG_CUT = 12.0
"""Every 20th is longer than a silent origin is waited for."""


class Pair:
    """Both streams, what went into the first one, and what was seen on the way."""

    def __init__(self, run: Run, cluster: Cluster, retention: str) -> None:
        self.run = run
        self.cluster = cluster
        self.retention = retention
        self.acked = Acked()
        self.through = 0
        """Acknowledged while the wire was cut."""
        self.behind = 0
        """The most numbers that `origin` was seen to be ahead."""
        self.wrong = ""
        """What must never be seen."""

    async def create(self) -> None:
        """Both, empty."""
        common: dict[str, Any] = {"storage": "file", "num_replicas": 3, "allow_direct": True}
        async with await connect(self.cluster.nodes[0]) as client:
            await client.create({"name": _ORIGIN, "subjects": ["origin.*"], "retention": self.retention, **common})
            await client.create({"name": _COPY, "sources": [{"name": _ORIGIN}], **common})

    async def lead(self, stream: str, nodes: list[Node]) -> Node:
        """Have another leader, one of these nodes."""
        now = await leader(self.cluster, stream)
        node = self.run.random.choice([n for n in nodes if n is not now])
        async with await connect(now) as client:
            return self.cluster.node(await step_down(client, stream, node))

    async def apart(self) -> tuple[Node, Node]:
        """Another leader for `copy`, and the leader of `origin`, which is another node."""

        async def probe() -> tuple[Node, Node] | None:
            origin = await leader(self.cluster, _ORIGIN)
            copy = await self.lead(_COPY, self.cluster.others(origin))
            return (copy, origin) if await leader(self.cluster, _ORIGIN) is origin else None

        return await until("the leaders are two nodes", _LIVE, probe)

    async def strike(self, number: int, longest: float) -> None:
        """One cut between the leaders."""
        copy, origin = await self.apart()
        third = next(node for node in self.cluster.nodes if node not in (copy, origin))
        quiet, seconds, moves = self.run.random.uniform(0.0, 0.2), self.run.random.uniform(0.2, longest), self.run.random.random() < 0.4
        if number % 20 == 19:
            seconds = _LONG_CUT
        await asyncio.sleep(quiet)
        before = len(self.acked.acked)
        wires = [(copy.index, origin.index), (origin.index, copy.index)]
        for ends in (wires, wires[:1], wires[1:])[number % 3] if self.cluster.links else ():
            await asyncio.to_thread(self.cluster.links.cut_one_way, *ends)
        try:
            await asyncio.sleep(seconds / 2)
            if moves:
                async with await connect(third) as client:
                    await step_down(client, _COPY)
            await asyncio.sleep(seconds / 2)
        finally:
            self.through += len(self.acked.acked) - before
            if self.cluster.links:
                self.cluster.links.heal()
        self.run.check(not self.wrong, f"cut {number + 1}: {self.wrong}")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look at both streams all the time, through every node."""
        stop = asyncio.Event()

        async def look(client: Client) -> None:
            # `origin` first: what it no longer has by then, `copy` has by now.
            origin, copy = [(await client.api(f"STREAM.INFO.{name}", timeout=1))["state"] for name in (_ORIGIN, _COPY)]
            self.behind = max(self.behind, origin["last_seq"] - copy["last_seq"])
            if origin["first_seq"] - 1 > copy["last_seq"]:
                seen = f"{_ORIGIN} has let go of {origin['first_seq'] - 1}, and {_COPY} ends with {copy['last_seq']} ({client.node.name})"
                self.wrong = self.wrong or seen

        async def watch(node: Node) -> None:
            async with await connect(node) as client:
                while not stop.is_set():
                    with contextlib.suppress(Unknown, KeyError):  # no answer, or an error
                        await look(client)
                    await asyncio.sleep(0.1)

        watching = asyncio.gather(*(watch(node) for node in self.cluster.nodes))
        try:
            yield
        finally:
            stop.set()
            await watching

    async def settle(self) -> str:
        """Within `_LIVE`, everything has been copied, and a work queue has let go of it; else, what is not so."""

        async def probe() -> bool:
            async with await connect(self.cluster.nodes[0]) as client:
                origin, copy = [(await client.stream(name))["state"] for name in (_ORIGIN, _COPY)]
            if copy["last_seq"] < origin["last_seq"] or (self.retention == "workqueue" and origin["messages"]):
                raise Failed(f"{_ORIGIN} has {origin['first_seq']} to {origin['last_seq']}, {_COPY} ends with {copy['last_seq']}")
            return True

        try:
            await until(f"{_COPY} has everything", _LIVE, probe, every=0.1)
        except Failed as why:
            return str(why)
        return ""

    async def compare(self, late: str) -> None:
        """Each number that `origin` has given is in `copy` once, in this order, with the payload that was acknowledged."""
        async with await connect(self.run.random.choice(self.cluster.nodes)) as client:
            last = (await client.stream(_ORIGIN))["state"]["last_seq"]
            messages = [m async for m in client.read(_COPY, limit=60 + last / 500)]
        named = [m.header.get("Nats-Stream-Source", "none 0").split(" ") for m in messages]
        got = [int(words[1]) for words in named]
        missing = sorted({*range(1, last + 1), *self.acked.acked.values()} - set(got))
        twice = [seq for seq, count in Counter(got).items() if count > 1]
        back = [f"{b} after {a}" for a, b in itertools.pairwise(got) if b < a]
        seen = f"{len(missing)} missing, {missing[:3]}; {len(twice)} twice, {twice[:3]}; {len(back)} out of order, {back[:3]}"
        good = not missing and not twice and not back and all(words[0] == _ORIGIN for words in named)
        self.run.check(good, f"{_COPY} has {len(got)} of {last}: {seen}; {late}")
        content = {seq: m.data.decode() for seq, m in zip(got, messages, strict=True)}
        other = [(seq, text, content[seq]) for text, seq in self.acked.acked.items() if content[seq] != text]
        self.run.check(not other, f"{len(other)} were acknowledged with another payload, first {other[:1]}")
        unknown = [item for item in content.items() if item[1] not in self.acked.sent]
        self.run.check(not unknown, f"{len(unknown)} were sent by nobody, first {unknown[:1]}")

    async def whole(self, cuts: int, count: int, longest: float, pause: float) -> None:
        """The scenario."""
        await self.create()
        async with self.watched():
            async with Writers(self.cluster, self.acked, "origin.it", _EACH, pause=pause):
                for number in range(cuts):
                    await self.strike(number, longest)
                    if number == cuts // 2:
                        await self.lead(_ORIGIN, self.cluster.nodes)

                async def enough() -> bool:
                    return len(self.acked.acked) >= count

                await until(f"{count} publishes are acknowledged", _LIVE + count / 200, enough)
            ended = time.monotonic()
            late = await self.settle()
            took = time.monotonic() - ended
        self.run.check(not self.wrong, self.wrong)
        await self.compare(late)
        self.run.check(not late, late)
        told = f"{len(self.acked.acked)} of {len(self.acked.sent)} acknowledged, {self.through} during {cuts} cuts"
        self.run.note(f"{told}; {_COPY} up to {self.behind} behind, all there after {took:.1f} s")
        self.run.check(self.through > 0, "nothing was acknowledged while a wire was cut")
        for stream in (_ORIGIN, _COPY):
            left = {name: (page["messages"], page["first_seq"]) for name, page in (await equal(self.cluster, stream)).items()}
            wrong = stream == _ORIGIN and self.retention == "workqueue" and any(messages for messages, _ in left.values())
            self.run.check(len(left) == 3 and not wrong, f"messages and first sequence of {stream} on each node: {left}")


async def main(run: Run) -> None:
    """An origin that keeps its messages, and one that lets go of them; 40 cuts and 100,000 messages each, or 6 and 1,500."""
    for retention in ("limits", "workqueue"):
        if run.wanted(retention):
            async with run.part(retention), Cluster(run, 3, links=run.isolated, name=retention) as cluster:
                await Pair(run, cluster, retention).whole(*((6, 1_500, 0.5, 0.1) if run.short else (40, 100_000, 2.5, 0.02)))
    if not run.isolated:
        async with run.part("cuts"):
            raise Skipped("cutting links needs root and namespaces (unshare, ip netns); the leaders changed all the same")


if __name__ == "__main__":
    program("A9", main)
