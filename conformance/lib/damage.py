"""Damage of what one node has on disk, and whether the cluster is whole again.

The kinds of files are those of Tidelock's store, `<store_dir>/jetstream/tidelock` (docs/ARCHITECTURE.md, "Formats"); all
choices of places come from the run's seed.
"""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

from lib.checks import Acked, stream_page
from lib.client import Ack, Client, Unknown, connect
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, Skipped, until

KEPT, BULK = "kept", "bulk"
"""A stream that only grows, of which everything is checked, and one through which much flows."""
_PAGE = 4096


def store(node: Node) -> Path:
    """The folder of a node's store."""
    return node.store / "jetstream" / "tidelock"


def kind_of(name: str) -> str:
    """What a file of the store is for."""
    parts = name.split("/")
    if parts[0] == "wal":
        return "log control" if parts[-1].startswith("control") else "log segment"
    if parts[0] == "groups":
        return "metadata checkpoint" if parts[-1] == "1" else "stream checkpoint"
    return {"streams": "block", "node": "identity", "cluster": "membership"}.get(parts[0], "other")


def files(node: Node) -> dict[str, int]:
    """All files of a node's store with something in them, and their lengths."""
    found = {}
    for folder, _, names in os.walk(store(node)):
        for name in names:
            path = Path(folder) / name
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # the server is at work
                continue
            if size:
                found[str(path.relative_to(store(node)))] = size
    return found


def group_of(name: str) -> str:
    """Whose a checkpoint or block is; all files of the log are one group's."""
    parts = name.split("/")
    return parts[1].split("-")[0] if parts[0] in ("groups", "streams") else ""


def by_kind(node: Node) -> dict[str, list[str]]:
    """The files of each kind, sorted, without those that nothing depends on."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in sorted(files(node)):
        if kind_of(name) != "other":
            kinds[kind_of(name)].append(name)
    return kinds


def kept_blocks(node: Node) -> set[str]:
    """A node's files with messages of the stream that only grows, which is the first that was made after the metadata."""
    return {name for name in files(node) if kind_of(name) == "block" and group_of(name) == "2"}


def used_pages(path: Path) -> list[int]:
    """The pages of a file that hold something: logs are written with zeros ahead of use."""
    data = path.read_bytes()
    zero = bytes(_PAGE)
    return [at for at in range(0, len(data), _PAGE) if data[at : at + _PAGE] != zero[: len(data) - at]]


def flip(run: Run, path: Path, bits: int = 2) -> str:
    """Turn random bits over in the used part of a file; answers where."""
    pages = used_pages(path)
    if not pages:
        return "nothing to damage"
    size, places = path.stat().st_size, []
    handle = os.open(path, os.O_RDWR)
    try:
        for _ in range(bits):
            page = run.random.choice(pages)
            at, bit = page + run.random.randrange(min(_PAGE, size - page)), run.random.randrange(8)
            byte = os.pread(handle, 1, at)
            os.pwrite(handle, bytes([byte[0] ^ (1 << bit)]), at)
            places.append(f"{at}.{bit}")
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)
    return f"bits {', '.join(places)} turned over"


def cut(run: Run, path: Path) -> str:
    """Cut a file within its used part; answers where."""
    size = path.stat().st_size
    used = (used_pages(path) or [0])[-1] + _PAGE
    length = run.random.randrange(min(size, used))
    os.truncate(path, length)
    return f"cut from {size} to {length} bytes"


async def fill(run: Run, cluster: Cluster, acked: Acked) -> None:
    """Streams of which each node has every kind of file: enough goes through the log that checkpoints are written."""
    if not store(cluster.nodes[0]).is_dir():
        raise Skipped("the store of this server is another one")
    async with await connect(cluster.nodes[0]) as client:
        await client.create({"name": KEPT, "subjects": ["kept.*"], "storage": "file", "num_replicas": 3, "allow_direct": True})
        config = {"name": BULK, "subjects": ["bulk.*"], "storage": "file", "num_replicas": 3, "allow_direct": True, "max_msgs": 20}
        await client.create(config)
        consumer = {"durable_name": "reader", "ack_policy": "explicit", "deliver_policy": "all"}
        await client.demand(f"CONSUMER.CREATE.{KEPT}.reader", {"stream_name": KEPT, "config": consumer})
        for number in range(12):  # the metadata has to have much in the log, too
            await client.demand(f"STREAM.UPDATE.{BULK}", config | {"metadata": {"round": f"{number}" + "-" * 30_000}})

        rounds = itertools.count()

        async def checkpointed() -> bool:
            tag = next(rounds)
            await asyncio.gather(*(acked.publish(client, "kept.it", f"fill-{tag}-{n}{'.' * 900}", timeout=20) for n in range(100)))
            payload = os.urandom(500_000)  # how often this is done is no matter of the seed
            answers = await asyncio.gather(*(client.publish("bulk.it", payload, timeout=20) for _ in range(10)))
            run.check(all(isinstance(a, Ack) for a in answers), f"a publish was refused: {answers}")
            kinds = [by_kind(node) for node in cluster.nodes]
            return all(k["metadata checkpoint"] and k["stream checkpoint"] for k in kinds) and all(kept_blocks(node) for node in cluster.nodes)

        await until("checkpoints and blocks on all nodes", 120, checkpointed)


@contextlib.asynccontextmanager
async def flow(cluster: Cluster) -> AsyncIterator[None]:
    """Large messages pass through the other stream, so that the log, checkpoints and blocks are always at work."""
    stop = asyncio.Event()

    async def run(node: Node) -> None:
        async with await connect(node) as client:
            while not stop.is_set():
                with contextlib.suppress(Unknown):
                    await client.publish("bulk.it", os.urandom(100_000), timeout=2)
                await asyncio.sleep(0.1)

    tasks = [asyncio.create_task(run(node)) for node in cluster.nodes]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def whole(cluster: Cluster, limit: float, streams: tuple[str, ...] = (KEPT, BULK)) -> None:
    """Full service within `limit` seconds: every node is well, every stream has all its replicas, every node takes publishes."""

    async def probe() -> bool:
        for node in cluster.nodes:
            status, page = await node.page("/healthz")
            if status != 200:
                raise Failed(f"/healthz of {node.name}: {page}")
            async with await connect(node, limit=2) as client:
                for stream in streams:
                    await _complete(client, stream)
        for stream in streams:
            for node in cluster.nodes:
                if await stream_page(node, stream) is None:
                    raise Failed(f"{node.name} has nothing of {stream}")
        return True

    await until("full service", limit, probe, every=0.2)


async def _complete(client: Client, stream: str) -> None:
    try:
        answer = await client.api(f"STREAM.INFO.{stream}", timeout=2)
    except Unknown as why:
        raise Failed(f"INFO of {stream} on {client.node.name}: {why}") from None
    if "error" in answer:
        raise Failed(f"INFO of {stream} on {client.node.name}: {answer['error']}")
    others = answer["cluster"].get("replicas") or []
    if not answer["cluster"].get("leader") or len(others) != client.node.cluster.size - 1:
        raise Failed(f"{stream} on {client.node.name}: {answer['cluster']}")
    if any(r.get("offline") or not r["current"] for r in others):
        raise Failed(f"{stream} on {client.node.name}: {answer['cluster']}")


def told(node: Node) -> list[str]:
    """What the node's logs say of damage, in all its starts."""
    lines = []
    for start in range(1, node.starts + 1):
        log = node.cluster.folder / f"{node.name}.{start}.log"
        lines += [line for line in log.read_text(errors="replace").splitlines() if "damage" in line.lower() or "checksum" in line]
    return lines
