"""Server processes: C1, C3 and C5, and what can be done to them.

The command line is the one of the scenarios' bench, to the letter; `-m` joins it when a
program reads the monitoring pages.
"""
from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lib.links import Links
from lib.power import Disk
from lib.program import Failed, Run, Skipped, until

BASE_PORT = 23000
_CONFIG = 'accounts { $SYS { users = [ { user: "admin", pass: "password" } ] } }\n'
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    # Without namespaces this is what ends a server whose program was killed.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Node:
    """One server: its place, its files and, while it runs, its process."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        self.name = f"node{index}"
        self.address = cluster.links.address(index) if cluster.links else "127.0.0.1"
        self.port = cluster.base + index
        self.route_port = cluster.base + 100 + index
        self.monitor_port = cluster.base + 200 + index
        self.store = cluster.folder / f"store{index}"
        self._disk: Disk | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.paused = False

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.address}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process is there and not stopped."""
        return self.process is not None and self.process.poll() is None and not self.paused

    @property
    def disk(self) -> Disk:
        """The disk that the store is on, where that can lose power."""
        assert self._disk is not None, f"the disk of {self.name} cannot lose power"
        return self._disk

    @property
    def log(self) -> Path:
        """Log of the latest start."""
        return self.cluster.folder / f"{self.name}.{self.starts}.log"

    def command(self) -> list[str]:
        """The whole command line."""
        cluster = self.cluster
        words = cluster.links.command(self.index) if cluster.links else []
        words += [
            str(cluster.run.binary), "-a", self.address, "-p", str(self.port), "-n", self.name, "--jetstream",
            "--store_dir", str(self.store), "--config", str(cluster.config),
        ]
        if cluster.size > 1:
            routes = ",".join(f"nats://{n.address}:{n.route_port}" for n in cluster.nodes)
            words += ["--cluster_name", "test", "--cluster", f"nats://{self.address}:{self.route_port}", "--routes", routes]
        if cluster.monitor:
            words += ["-m", str(self.monitor_port)]
        return words

    def launch(self) -> None:
        """Start the process; `wait_listening` tells when it serves."""
        assert self.process is None, f"{self.name} runs already"
        self.starts += 1
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_die_with_parent,
            )

    async def wait_listening(self, limit: float = 30.0) -> None:
        """Until the log says that the server is ready and a client gets its INFO."""

        async def probe() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-600:]
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: {tail}")
            return "Server is ready" in self.log.read_text(errors="replace") and bool(await self.info())

        await until(f"{self.name} is ready", limit, probe)

    async def info(self) -> dict[str, Any]:
        """The INFO line that a new connection gets."""
        reader, writer = await asyncio.wait_for(asyncio.open_connection(self.address, self.port), 2)
        try:
            line = await asyncio.wait_for(reader.readline(), 2)
        finally:
            writer.close()
        if not line.startswith(b"INFO "):
            raise Failed(f"{self.name} greets with {line[:40]!r}")
        return dict(json.loads(line[5:]))

    async def start(self, limit: float = 30.0) -> None:
        """Launch, and wait until clients can connect."""
        self.launch()
        await self.wait_listening(limit)

    def _signal(self, number: int) -> None:
        assert self.process is not None, f"{self.name} does not run"
        self.process.send_signal(number)

    async def ended(self, limit: float = 10.0) -> int:
        """Until the process has ended, with this code."""
        process = self.process
        assert process is not None
        try:
            code = await asyncio.to_thread(process.wait, limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit:g} s") from None
        self.process = None
        self.paused = False
        return code

    async def kill(self) -> None:
        """SIGKILL."""
        self.strike()
        await self.ended()

    def strike(self) -> None:
        """SIGKILL, without waiting for the end; `ended` does."""
        self._signal(signal.SIGKILL)

    async def term(self, limit: float = 30.0) -> None:
        """SIGTERM; the server has to end by itself with code 0."""
        self._signal(signal.SIGTERM)
        code = await self.ended(limit)
        if code != 0:
            raise Failed(f"{self.name} ended with {code} after SIGTERM")

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.paused = False

    def end(self) -> None:
        """Make sure that no process is left, whatever state it is in."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.paused = False

    def insert_disk(self) -> None:
        """Have the store on a disk that can lose power."""
        self._disk = Disk(self.store, self.cluster.run.args.folders)

    def remove_disk(self) -> None:
        """Take the disk away; the process must have ended."""
        if self._disk is not None:
            self._disk.end()
            self._disk = None

    async def page(self, path: str) -> tuple[int, Any]:
        """Status and JSON body of a monitoring page."""

        def fetch() -> tuple[int, Any]:
            try:
                with urllib.request.urlopen(f"http://{self.address}:{self.monitor_port}{path}", timeout=5) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as refusal:
                return refusal.code, json.loads(refusal.read() or b"{}")

        return await asyncio.to_thread(fetch)


class Cluster:
    """Servers that belong together: one, three or five."""

    def __init__(
        self, run: Run, size: int = 3, *, links: bool = False, power: bool = False, monitor: bool = True, base: int = BASE_PORT, name: str = "c",
    ) -> None:
        self.run = run
        self.size = size
        self.base = base
        self.monitor = monitor
        self.power = power
        """Whether the disks can lose power."""
        self.folder = run.folder / name
        self.folder.mkdir(parents=True)
        self.config = self.folder / "nats.conf"
        self.config.write_text(_CONFIG)
        self.links = Links(run, size) if links else None
        self.nodes = [Node(self, n) for n in range(1, size + 1)]

    async def __aenter__(self) -> Cluster:
        try:
            for node in self.nodes if self.power else []:
                node.insert_disk()
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                await node.wait_listening()
            await self.ready()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_what: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and take the disks and hosts away."""
        for node in self.nodes:
            node.end()
            node.remove_disk()
        if self.links:
            self.links.remove()
            self.links = None

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(n for n in self.nodes if n.name == name)

    def others(self, node: Node) -> list[Node]:
        """All nodes but this one."""
        return [n for n in self.nodes if n is not node]

    async def ready(self, limit: float = 60.0, nodes: Iterable[Node] | None = None) -> None:
        """Until JetStream serves on the given nodes (all, by default): `/healthz`, or the JetStream API where there is no page."""
        for node in nodes or self.nodes:
            if self.monitor:
                await until(f"/healthz of {node.name} is ok", limit, lambda n=node: self._healthy(n), every=0.1)
            else:
                await until(f"JetStream serves on {node.name}", limit, lambda n=node: self._serves(n), every=0.1)

    @staticmethod
    async def _healthy(node: Node) -> bool:
        status, body = await node.page("/healthz")
        if status != 200 or body.get("status") != "ok":
            raise Failed(f"{status} {body}")
        return True

    @staticmethod
    async def _serves(node: Node) -> bool:
        from lib.client import Unknown, connect  # here, since clients know nodes

        async with await connect(node) as client:
            try:
                return "error" not in await client.api("INFO", timeout=1)
            except Unknown:
                return False

    def require_links(self) -> Links:
        """The wires, or `Skipped` where there are none."""
        if self.links is None:
            raise Skipped("cutting links needs root and namespaces (unshare, ip netns)")
        return self.links


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
