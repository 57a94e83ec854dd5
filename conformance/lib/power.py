"""Disks that lose power.

The store of a node is on a file system of ours (`conformance/unsync`) that keeps what was not synced in memory, as the page cache
does, and forgets it when it is told to: everything, or what a seed has it forget. The process gets SIGKILL at the same moment, and
until the disk has power again every request fails, so that nothing of what it still did gets through.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lib import TOOLS
from lib.program import Skipped

if TYPE_CHECKING:
    from lib.cluster import Node

_PROGRAM = TOOLS / "unsync" / "release" / "unsync"
_SYNC_MS = 2
"""How long a sync takes: the time in which a promise that is made too early shows."""

ALL = "all"
"""Whatever was not synced is forgotten."""


def some(chance: random.Random) -> str:
    """Names are forgotten from some change on; each sector is forgotten, kept or torn."""
    return f"some {chance.getrandbits(32)}"


def extra(parser: argparse.ArgumentParser) -> None:
    """The flag of programs that use such disks."""
    parser.add_argument(
        "--folders", choices=["above", "own"], default="own",
        help="what the sync of a new folder makes durable: its own name and those of new ones above it, too, as file systems with a "
        "journal do, or only the names in it, as POSIX asks (default %(default)s)",
    )


class Disk:
    """The file system of one node; `folders` as the flag has it."""

    def __init__(self, mountpoint: Path, folders: str) -> None:
        if not _PROGRAM.exists():
            raise Skipped("the file system that loses power is not built: run conformance/setup.sh")
        self.log = mountpoint.with_name(f"{mountpoint.name}.disk.log")
        mountpoint.mkdir()
        backing = mountpoint.with_name(f"{mountpoint.name}.disk")
        backing.mkdir()
        command = [str(_PROGRAM), "--sync-ms", str(_SYNC_MS), "--folders", folders, str(backing), str(mountpoint)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, start_new_session=True,
            )
        if not self._line().startswith("mounted "):
            self.end()
            raise Skipped(self.log.read_text().strip())
        self._try(mountpoint)

    def _try(self, mountpoint: Path) -> None:
        """It forgets what was not synced: a test with a disk that does not would test nothing."""
        (mountpoint / "probe").write_text("not synced")
        for line in ("cut all", "on"):
            self.tell(line)
            self._line()
        if (mountpoint / "probe").exists():
            raise RuntimeError(f"the disk at {mountpoint} does not forget")

    def tell(self, line: str) -> None:
        """Have it do something; `answer` waits until that is done."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    async def answer(self) -> str:
        """What it says of what it was told."""
        line = await asyncio.to_thread(self._line)
        if not line or line.startswith("error"):
            raise RuntimeError(f"{self.log.name}: {line or self.log.read_text()}")
        return line

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """Unmount; what is there is then in the folder behind it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def strike(nodes: Iterable[Node], loss: str) -> None:
    """The power of these nodes goes, at once; `gone` waits until it has."""
    for node in nodes:
        node.strike()
        node.disk.tell(f"cut {loss}")


async def gone(nodes: Iterable[Node]) -> Counter[str]:
    """The processes have ended, and the disks have power again. Answers what was lost, by kind."""
    lost: Counter[str] = Counter()
    for node in nodes:
        words = (await node.disk.answer()).split()[1:]
        lost.update({kind: int(count) for kind, count in (word.split("=") for word in words)})
        await node.ended()
        node.disk.tell("on")
        await node.disk.answer()
    return lost
