#!/usr/bin/env python3
"""S1: a work-queue stream feeds another stream, and every replica agrees that it is empty.

Uses the `nats` tool for everything the report used it for. In the short form the bulk is 1,000 messages in place of 10,000.
"""
from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

from lib.checks import equal, leader, stream_page
from lib.cli import Output, nats
from lib.client import Ack, connect
from lib.cluster import Cluster, Node
from lib.program import Run, program, until

_SOURCE = [
    "--subjects", "src.>", "--storage", "file", "--replicas", "3", "--retention", "work", "--discard", "old", "--max-age", "1d",
    "--max-bytes", "100MB", "--dupe-window", "10m", "--allow-rollup", "--no-deny-delete", "--no-deny-purge", "--defaults",
]
_DESTINATION = ["--subjects", "dst.>", "--storage", "file", "--replicas", "3", "--source", "src", "--defaults"]


@dataclass
class Bench:
    """The cluster and what has been published so far."""

    run: Run
    cluster: Cluster
    sent: int = 0

    async def nats(self, *words: str, node: Node | None = None) -> Output:
        """The tool, on the first running node unless one is given."""
        node = node or next(n for n in self.cluster.nodes if n.running)
        return await nats(node, *words, home=self.run.folder / "home")

    async def info(self, stream: str, node: Node | None = None) -> dict[str, Any]:
        """`nats stream info`, as JSON."""
        return dict(json.loads((await self.nats("stream", "info", stream, "--json", node=node)).demand()))

    async def publish(self, count: int) -> None:
        """`nats req`, as in the report: one message after the other, with the answer of the stream."""
        done = await self.nats("req", "src.orders", "message {{Count}}", "--count", str(count))
        answers = [line for line in done.demand().splitlines() if '"stream":"src"' in line.replace(" ", "")]
        self.run.check(len(answers) == count, f"nats req: {len(answers)} of {count} answered: {done.out[-300:]}{done.error[-300:]}")
        self.sent += count

    async def flood(self, count: int) -> None:
        """Pipelined: 200 publishes are out at any time."""
        gate = asyncio.Semaphore(200)
        await leader(self.cluster, "src")
        async with await connect(self.cluster.nodes[0]) as client:

            async def one(number: int) -> bool:
                async with gate:
                    return isinstance(await client.publish("src.flood", f"flood {number}".encode(), timeout=20), Ack)

            stored = sum(await asyncio.gather(*(one(n) for n in range(count))))
        self.run.check(stored == count, f"{stored} of {count} pipelined publishes acknowledged")
        self.sent += count

    async def moved(self, when: str, limit: float = 20.0) -> None:
        """`src` is empty; `dst` has everything, in order, once."""

        async def probe() -> bool:
            return (await self.info("src"))["state"]["messages"] == 0 and (await self.info("dst"))["state"]["messages"] >= self.sent

        last = "nothing"

        async def telling() -> bool:
            nonlocal last
            if await probe():
                return True
            last = f"src {(await self.info('src'))['state']['messages']}, dst {(await self.info('dst'))['state']['messages']} of {self.sent}"
            return False

        try:
            await until("moved", limit, telling, every=0.2)
        except Exception as why:
            raise type(why)(f"{when}: after {limit:g} s {last}") from None
        await self.ordered(when)

    async def ordered(self, when: str) -> None:
        """Each message once, in the order of the source, by the sequence that the source gave it."""
        async with await connect(self.cluster.nodes[0]) as client:
            origins = [int(m.header["Nats-Stream-Source"].split(" ")[1]) async for m in client.read("dst")]
        expected = list(range(1, self.sent + 1))
        wrong = next((f"at {i}: {o} in place of {e}" for i, (o, e) in enumerate(zip(origins, expected)) if o != e), "")
        self.run.check(origins == expected, f"{when}: dst has {len(origins)} of {self.sent} messages, {wrong or 'a tail differs'}")

    async def empty(self, when: str) -> None:
        """What each leader has to show: nothing, the next sequence as the first, and no message 1."""
        state = (await self.info("src"))["state"]
        seen = (state["messages"], state["first_seq"], state["last_seq"])
        self.run.check(seen == (0, self.sent + 1, self.sent), f"{when}: messages, first, last are {seen}, not {(0, self.sent + 1, self.sent)}")
        got = await self.nats("stream", "get", "src", "1")
        text = got.out + got.error
        self.run.check(got.code != 0 and "no message found" in text, f"{when}: stream get 1 says {text.strip()[-200:]!r} (exit {got.code})")

    async def step_around(self, when: str) -> None:
        """Step `src` down until every node has led it, and look each time."""
        names = {n.name for n in self.cluster.nodes}
        led: set[str] = set()
        for _ in range(30):
            now = (await leader(self.cluster, "src")).name
            led.add(now)
            await self.empty(f"{when}, led by {now}")
            if led == names:
                return
            (await self.nats("stream", "cluster", "step-down", "src", f"--preferred={min(names - led)}")).demand()
        self.run.check(False, f"{when}: only {led} ever led src in 30 step-downs")

    async def restart_leader(self, hard: bool) -> None:
        """Take the leader away and bring it back."""
        node = await leader(self.cluster, "src")
        if hard:
            await node.kill()
        else:
            await node.term()
        await leader(self.cluster, "src")
        await node.start()
        await self.cluster.ready()
        await self.current(3)

    async def scale(self, replicas: int) -> None:
        """`nats stream edit src --replicas=N -f`, until that is so."""
        (await self.nats("stream", "edit", "src", f"--replicas={replicas}", "-f")).demand()
        await self.current(replicas)

    async def current(self, replicas: int) -> None:
        """Wait until `src` has so many replicas, and all of them are current: a step-down to one that is not is refused."""

        async def probe() -> bool:
            cluster = (await self.info("src"))["cluster"]
            others = cluster.get("replicas") or []
            return bool(cluster.get("leader")) and len(others) == replicas - 1 and all(r["current"] for r in others)

        await until(f"src has {replicas} current replicas", 30, probe, every=0.2)

    async def report(self) -> None:
        """`nats stream report` shows both streams, and the replication without a lag."""

        async def probe() -> bool:
            out = (await self.nats("stream", "report")).demand()
            streams, _, replication = out.partition("Replication Report")
            named = all(re.search(rf"[│|]\s*{name}\s*[│|]", streams) for name in ("src", "dst"))
            row = next((line for line in replication.splitlines() if re.search(r"\bdst\b", line)), "")
            cells = [cell.strip() for cell in re.split(r"[│|]", row)]
            self.run.check(named and "src" in cells, f"nats stream report lacks a stream or the replication: {out[-1500:]}")
            return self._lag(replication, cells) == "0"

        await until("nats stream report shows lag 0", 15, probe, every=0.3)

    @staticmethod
    def _lag(replication: str, cells: list[str]) -> str:
        heads = next(([c.strip() for c in re.split(r"[│|]", line)] for line in replication.splitlines() if "Lag" in line), [])
        return cells[heads.index("Lag")] if "Lag" in heads else "no such column"

    async def replicas_agree(self, when: str) -> None:
        """Each node's own page says that `src` is empty."""

        async def probe() -> bool:
            pages = [await stream_page(node, "src") for node in self.cluster.nodes]
            return all(p is not None and p["state"]["messages"] == 0 for p in pages)

        await until(f"{when}: src is empty on each replica's own page", 10, probe, every=0.2)


async def main(run: Run) -> None:
    """The report, step by step."""
    async with Cluster(run, 3, monitor=False) as cluster:
        bench = Bench(run, cluster)
        async with run.part("10 messages"):
            (await bench.nats("stream", "add", "src", *_SOURCE)).demand()
            (await bench.nats("stream", "add", "dst", *_DESTINATION)).demand()
            await bench.publish(10)
            await bench.moved("after 10")
            await bench.replicas_agree("after 10")
        async with run.part("step down"):
            await bench.step_around("after 10")
        for hard in (False, True):
            name = "SIGKILL" if hard else "SIGTERM"
            async with run.part(f"restart of the leader by {name}"):
                await bench.restart_leader(hard)
                await bench.step_around(f"after {name}")
                await bench.moved(f"after {name}")
        async with run.part("replicas 1, then 3"):
            await bench.scale(1)
            await bench.empty("with one replica")
            await bench.scale(3)
            (await bench.nats("stream", "cluster", "step-down", "src")).demand()
            await leader(cluster, "src")
            await bench.publish(10)
            await bench.moved("after scaling")
            await bench.step_around("after scaling")
        async with run.part("report"):
            await bench.report()
        async with run.part("bulk"):
            await bench.flood(1_000 if run.short else 10_000)
            await bench.moved("after the bulk", 60)
            await bench.step_around("after the bulk")
        async with run.part("EQUAL"):
            await equal(cluster, "src")
            await equal(cluster, "dst")


if __name__ == "__main__":
    program("S1", main)
