"""Key-value buckets, and writer and reader processes on them."""
from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lib import CONFORMANCE, TOOLS
from lib.client import Client
from lib.cluster import Node
from lib.history import Operation, read_history
from lib.program import Failed, Skipped

LANGUAGES = ("python", "java", "rust")


async def create_bucket(client: Client, bucket: str, replicas: int = 3) -> None:
    """A bucket with the configuration that the key-value clients ask for by default."""
    config: dict[str, Any] = {
        "name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "retention": "limits", "storage": "file", "discard": "new",
        "max_msgs_per_subject": 1, "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_msg_size": -1, "max_consumers": -1,
        "duplicate_window": 120_000_000_000, "num_replicas": replicas, "allow_rollup_hdrs": True, "deny_delete": True,
        "deny_purge": False, "allow_direct": True,
    }
    await client.create(config)


def command(language: str) -> list[str]:
    """What starts the writer in this language; `Skipped` if `setup.sh` has not built it."""
    if language == "python":
        return [sys.executable, str(CONFORMANCE / "lib" / "kv_writer.py")]
    built = TOOLS / ("rust/release/kv-writer" if language == "rust" else "java/classes/org/tidelock/conformance/KvWriter.class")
    if not built.exists():
        raise Skipped(f"the {language} client is not built: run conformance/setup.sh")
    if language == "rust":
        return [str(built)]
    path = f"{TOOLS / 'java' / 'classes'}:{TOOLS / 'java' / 'lib' / '*'}"
    # Small heap and the quick compiler only: three of them share a machine with the servers.
    return ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", path, "org.tidelock.conformance.KvWriter"]


@dataclass
class Load:
    """Writers and readers that run."""

    processes: list[asyncio.subprocess.Process] = field(default_factory=list)
    ready: list[asyncio.Task[list[bytes]]] = field(default_factory=list)
    outputs: list[asyncio.Task[bytes]] = field(default_factory=list)
    errors: list[asyncio.Task[bytes]] = field(default_factory=list)

    async def start(self, language: str, node: Node, bucket: str, key: str, client: str, mode: str, count: int = 0, rate: float = 0) -> None:
        """One more process; `started` waits until all are at work. `rate` is for readers, in gets a second."""
        words = [
            *command(language), "--server", node.url, "--bucket", bucket, "--key", key, "--client", client, "--mode", mode,
            "--count", str(count), "--timeout-ms", "2000", *(["--rate", str(rate)] if rate else []),
        ]
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20)
        assert process.stdout is not None and process.stderr is not None
        self.processes.append(process)
        self.ready.append(asyncio.create_task(_until_ready(process.stdout)))
        self.errors.append(asyncio.create_task(process.stderr.read()))

    async def started(self, limit: float = 30.0) -> None:
        """Until every writer has made an update and every reader has opened the bucket, however long a virtual machine takes."""
        try:
            early = await asyncio.wait_for(asyncio.gather(*self.ready), limit)
        except asyncio.TimeoutError:
            raise Failed(f"a client was not at work within {limit:g} s") from None
        for lines, error in zip(early, self.errors):
            if not lines or lines[-1] != b"ready\n":
                raise Failed(f"a client did not start: {(await error).decode(errors='replace').strip()[-400:]}")
        for process in self.processes:
            assert process.stdout is not None
            self.outputs.append(asyncio.create_task(process.stdout.read()))

    def stop(self) -> None:
        """Ask all that still run to end."""
        for process in self.processes:
            if process.returncode is None and process.stdin is not None:
                process.stdin.close()

    async def finished(self, limit: float, which: slice = slice(None)) -> None:
        """Until these processes (all, by default) have ended by themselves."""
        waits = [asyncio.create_task(p.wait()) for p in self.processes[which]]
        _, late = await asyncio.wait(waits, timeout=limit)
        for task in late:
            task.cancel()
        if late:
            raise Failed(f"{len(late)} of {len(waits)} clients had not finished after {limit:g} s")

    async def collect(self, limit: float = 20.0) -> list[Operation]:
        """Stop everyone; the operations of all, or `Failed` if one broke."""
        self.stop()
        try:
            await self.finished(limit)
        finally:
            self.end()
        history: list[Operation] = []
        for process, early, output, error in zip(self.processes, self.ready, self.outputs, self.errors):
            if process.returncode != 0:
                raise Failed(f"a client ended with {process.returncode}: {(await error).decode(errors='replace').strip()[-400:]}")
            history += read_history((b"".join((await early)[:-1]) + await output).decode())
        return history

    def end(self) -> None:
        """Leave no process behind."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()


async def _until_ready(output: asyncio.StreamReader) -> list[bytes]:
    """The lines up to the one that says `ready`, or to the end."""
    lines: list[bytes] = []
    while (line := await output.readline()) and line != b"ready\n":
        lines.append(line)
    return [*lines, line] if line else lines


def outcomes(history: list[Operation]) -> str:
    """How often each came out, in one line."""
    counts = Counter(f"{op.kind} {op.outcome}" + (f" ({op.error})" if op.error else "") for op in history)
    return ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))


def explained(history: list[Operation]) -> tuple[list[Operation], list[Operation]]:
    """Conflicts of single-writer keys, in two lists: those that an own earlier update without an answer explains, and the others.

    An update whose answer never came may take effect late, between the next get and the update that builds on
    it. That refusal is right, and it names the revision of the late update.
    """
    late = {op.value for op in history if op.outcome == "unknown" and op.kind == "cas"}
    values = {(op.key, op.revision): op.value for op in history if op.outcome == "ok"}
    good, bad = [], []
    for op in history:
        if op.outcome == "conflict":
            (good if op.error == "10071" and values.get((op.key, op.revision)) in late else bad).append(op)
    return good, bad
