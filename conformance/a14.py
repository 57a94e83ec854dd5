#!/usr/bin/env python3
"""A14: a damaged file of the metadata, the log, a checkpoint or the identity of one node costs nothing.

In turn each such file of one node, which is down, gets bits turned over, is cut, or is removed, and the node starts again.
A node whose identity is in doubt may refuse, if it names the file and touches nothing; then the file is put back, or the whole
store moved away and the old server removed from the cluster, as that message says. Everything else has to heal by itself.
Within 60 s there is full service. No other node loses a file with messages, and nothing that was acknowledged is lost.
"""
from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from lib.checks import Acked, equal
from lib.client import connect, system
from lib.cluster import Cluster, Node
from lib.damage import KEPT, by_kind, cut, files, fill, flip, flow, kept_blocks, kind_of, store, whole
from lib.program import Run, program, until
from lib.writers import Writers

_HEAL = 60.0
_WAYS = ("flip", "cut", "remove")
_FOLDERS = ("wal", "groups")
"""What is also removed as a whole."""


def targets(node: Node) -> list[str]:
    """Each file of a node that is to be damaged, and each folder that is to go."""
    kinds = by_kind(node)
    kinds.pop("block", None)
    return [name for kind in sorted(kinds) for name in kinds[kind]] + list(_FOLDERS)


def spoil(run: Run, path: Path, way: str) -> str:
    """Damage it; answers how."""
    if way == "flip":
        return flip(run, path)
    if way == "cut":
        return cut(run, path)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return "removed"


class Turns:
    """One damaged file after the other."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.run = run
        self.cluster = cluster
        self.refusals = 0
        self.wipes = 0

    async def turn(self, node: Node, name: str, way: str) -> None:
        """Damage one file, start the node, and see everything come right."""
        run, cluster = self.run, self.cluster
        await node.kill() if run.random.random() < 0.5 else await node.term()
        path, back = store(node) / name, cluster.folder / "back"
        if not path.exists():
            await node.start()
            run.note(f"{node.name}: {name} is no more")
            return
        if path.is_file():
            shutil.copy(path, back)
        before = {other: kept_blocks(other) for other in cluster.others(node)}
        what = f"{node.name}: {name}: {await asyncio.to_thread(spoil, run, path, way)}"
        begin = asyncio.get_running_loop().time()
        if not await self._starts(node):
            what += await self._refused(node, name, back)
        await whole(cluster, _HEAL)
        for other, had in before.items():
            lost = had - kept_blocks(other)
            run.check(not lost, f"{what}: {other.name} lost {sorted(lost)[:3]}")
        run.note(f"{what}; all is well after {asyncio.get_running_loop().time() - begin:.1f} s")

    async def _starts(self, node: Node) -> bool:
        node.launch()
        process = node.process
        assert process is not None

        async def probe() -> str | None:
            if process.poll() is not None:
                return "ended"
            if "Server is ready" in node.log.read_text(errors="replace"):
                return "ready"
            return None

        return await until(f"{node.name} starts or refuses", _HEAL, probe) == "ready"

    async def _refused(self, node: Node, name: str, back: Path) -> str:
        """The refusal is one of those that are allowed; what an operator does about it."""
        process = node.process
        assert process is not None
        self.run.check(name == "node", f"{node.name} refuses to start without a sound {name}: {node.log.read_text(errors='replace')[-400:]}")
        text = node.log.read_text(errors="replace")
        self.run.check(process.returncode > 0, f"{node.name} ended with {process.returncode}: {text[-400:]}")
        self.run.check(str(store(node) / name) in text, f"{node.name} refuses to start and does not name {name}: {text[-400:]}")
        node.end()
        self.refusals += 1
        found = files(node)
        self.run.check(any(kind.startswith("wal/") for kind in found), f"{node.name} refused to start and its log is gone")
        if self.run.random.random() < 0.5 or self.run.short:
            shutil.copy(back, store(node) / name)
            await node.start()
            return "; refused, put back"
        self.wipes += 1
        peer = await self._peer(node)
        shutil.move(store(node), self.cluster.folder / f"store-moved-{self.wipes}")
        await node.start()
        await self._remove_peer(node, peer)
        return "; refused, started empty"

    async def _peer(self, node: Node) -> str:
        """Under which id the cluster knows a node that is down."""

        async def probe() -> str | None:
            async with await connect(self.cluster.others(node)[0]) as client:
                replicas = (await client.stream(KEPT))["cluster"].get("replicas") or []
            return next((r["peer"] for r in replicas if r["name"] == node.name), None)

        return await until(f"{node.name} is a replica that follows", 20, probe)

    async def _remove_peer(self, node: Node, peer: str) -> None:
        """The store is a new one, so the server is a new one: the old one is taken out of the cluster."""
        async with await system(self.cluster.others(node)[0]) as client:
            await client.demand("SERVER.REMOVE", {"peer": "", "peer_id": peer})

    async def all(self, node: Node) -> None:
        """Each file in each way; in the short form one file of each kind, in one way."""
        names = targets(node)
        if self.run.short:
            kinds = sorted({kind_of(name) for name in names})
            names = [self.run.random.choice([name for name in names if kind_of(name) == kind]) for kind in kinds]
        for name in names:
            ways = ("remove",) if name in _FOLDERS else _WAYS
            for way in [self.run.random.choice(ways)] if self.run.short else ways:
                await self.turn(node, name, way)
        self.run.note(f"{self.refusals} refusals to start, {self.wipes} of them ended by an empty store")
        self.run.check(self.refusals > 0, f"{node.name} started with a damaged identity")


async def main(run: Run) -> None:
    """Under a light load, so that there is something to miss."""
    async with Cluster(run, 3) as cluster, run.part("damaged metadata"):
        acked = Acked()
        await fill(run, cluster, acked)
        node = run.random.choice(cluster.nodes)
        async with flow(cluster), Writers(cluster, acked, "kept.it", 1, pause=0.05, size=900):
            await Turns(run, cluster).all(node)
        await whole(cluster, _HEAL)
        await equal(cluster, KEPT)
        await acked.verify(run, KEPT, cluster.nodes)
        run.note(f"{len(acked.acked)} of {len(acked.sent)} publishes acknowledged")


if __name__ == "__main__":
    program("A14", main)
