"""Publishers that go on whatever happens to the servers, and what they were told."""
from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType

from lib.checks import Acked
from lib.client import Client, connect
from lib.cluster import Cluster, Node


class Writers:
    """`each` publishers on each node (or on each of `nodes`), one publish after the other, for as long as the block lasts.

    Every payload is another one, and none is sent a second time: what is unknown stays unknown.
    """

    def __init__(
        self, cluster: Cluster, acked: Acked, subject: str, each: int, *, pause: float = 0.0, size: int = 0, nodes: list[Node] | None = None,
    ) -> None:
        self.nodes = nodes or cluster.nodes
        self.acked = acked
        self.subject = subject
        self.each = each
        self.pause = pause
        self.padding = "." * size
        self.last = time.monotonic()
        """When something was acknowledged last."""
        self.stalled = 0.0
        """The longest time without, of that in which a majority was up; see `majority`."""
        self._since: float | None = self.last
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[Client] = []

    async def __aenter__(self) -> Writers:
        for node in self.nodes:
            for number in range(self.each):
                client = await connect(node)
                self._clients.append(client)
                self._tasks.append(asyncio.create_task(self._write(client, f"{node.name}-{number}-{len(self.acked.sent)}")))
        return self

    async def __aexit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        self._stop.set()
        self._look(time.monotonic())
        for task in self._tasks:
            if error is not None:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for client in self._clients:
            await client.close()

    def majority(self, is_up: bool) -> None:
        """A majority of the servers is up, or not, from now on."""
        now = time.monotonic()
        if is_up and self._since is None:
            self._since = now
        elif not is_up:
            self._look(now)
            self._since = None

    def _look(self, now: float) -> None:
        if self._since is not None:
            self.stalled = max(self.stalled, now - max(self.last, self._since))

    async def _write(self, client: Client, tag: str) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            if await self.acked.publish(client, self.subject, f"{tag}-{number}{self.padding}", timeout=2):
                now = time.monotonic()
                self._look(now)
                self.last = now
                await asyncio.sleep(self.pause)
            else:
                await asyncio.sleep(0.02)
