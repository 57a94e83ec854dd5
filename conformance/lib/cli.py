"""The `nats` command line tool, run as a user runs it."""
from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lib import TOOLS
from lib.cluster import Node
from lib.program import Failed


def tool() -> str:
    """The tool's path: what `setup.sh` installed, else what is on the search path."""
    ours = TOOLS / "bin" / "nats"
    found = str(ours) if ours.exists() else shutil.which("nats")
    if found is None:
        raise RuntimeError("the nats tool is missing: run conformance/setup.sh first")
    return found


@dataclass
class Output:
    """How a command ended."""

    words: list[str]
    code: int
    out: str
    error: str

    def demand(self) -> str:
        """Standard output of a command that had to succeed."""
        if self.code != 0:
            raise Failed(f"nats {' '.join(self.words)}: exit {self.code}: {(self.error or self.out).strip()[-400:]}")
        return self.out


async def nats(node: Node, *words: str, home: Path, stdin: str | None = None, limit: float = 30.0, system: bool = False) -> Output:
    """Run `nats WORDS` against a node, with a home of its own, so that no context of the user matters."""
    home.mkdir(parents=True, exist_ok=True)
    login = ["--user", "admin", "--password", "password"] if system else []
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200"}
    process = await asyncio.create_subprocess_exec(
        tool(), "-s", node.url, *login, *words, env=environment, cwd=home,
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    try:
        out, error = await asyncio.wait_for(process.communicate(stdin.encode() if stdin is not None else None), limit)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        return Output(list(words), 124, "", f"no end within {limit:g} s")
    assert process.returncode is not None
    return Output(list(words), process.returncode, out.decode(errors="replace"), error.decode(errors="replace"))
