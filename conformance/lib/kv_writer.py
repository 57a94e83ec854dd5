#!/usr/bin/env python3
"""One writer, or reader, of key-value keys: a loop of requests, and the history of it on standard output.

The Rust and the Java client have programs with the same flags and the same output, so that a
scenario runs with any of them:

    --server URL       the one server to talk to; the program stays with it through restarts
    --bucket NAME      an existing bucket
    --key NAME         the key to write; keys to read, separated by commas
    --client NAME      name in the history; the values written are NAME:1, NAME:2, ...
    --mode get|ack     each update builds on the revision of a get just made, or on that of the last
                       acknowledgement (after anything else: on that of a get)
    --mode read        only gets, one key after the other (Python only)
    --count N          end after N successful updates, or N reads; 0: until standard input closes
    --rate N           reads a second at most (Python only)
    --timeout-ms N     wait for an answer

A writer that counts, or a reader, ends early when standard input closes; a writer without a count then goes
on until one more update has succeeded. Output: one JSON object a line, with the fields of
`lib.history.Operation`, and the line `ready` after a writer's first success, or once a reader has opened the
bucket. The first update of a key expects revision 0.
"""
from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.client import Ack, Client, Unknown, connect  # noqa: E402
from lib.history import Operation  # noqa: E402
from lib.program import Failed  # noqa: E402

_PAUSE = 0.02
"""Seconds after a request without an answer: the next would only fill the history with the same."""


@dataclass
class Requests:
    """The two requests of a key-value client, each of which leaves an operation in the history."""

    client: Client
    bucket: str
    name: str
    timeout: float
    history: list[Operation]
    number: int = 0

    async def get(self, key: str) -> int | None:
        """Revision (0: no such key), `None` if there was no answer."""
        begin = time.monotonic_ns()
        try:
            message = await self.client.last(f"KV_{self.bucket}", f"$KV.{self.bucket}.{key}", self.timeout)
        except (Unknown, Failed) as why:
            self.history.append(Operation("get", self.name, key, begin, time.monotonic_ns(), "unknown", error=str(why)))
            return None
        revision, value = (message.seq, message.data.decode()) if message else (0, "")
        self.history.append(Operation("get", self.name, key, begin, time.monotonic_ns(), "ok", revision=revision, value=value))
        return revision

    async def compare_and_set(self, key: str, expected: int) -> int | None:
        """The new revision, `None` if the update was refused or got no answer."""
        self.number += 1
        value = f"{self.name}:{self.number}"
        begin = time.monotonic_ns()
        try:
            answer = await self.client.compare_and_set(f"$KV.{self.bucket}.{key}", value.encode(), expected, self.timeout)
        except Unknown as why:
            self._cas(key, begin, "unknown", expected, 0, value, str(why))
            return None
        if isinstance(answer, Ack):
            self._cas(key, begin, "ok", expected, answer.seq, value, "")
            return answer.seq
        if answer.err_code in (10071, 10164):
            self._cas(key, begin, "conflict", expected, answer.last_sequence or 0, value, str(answer.err_code))
        else:
            self._cas(key, begin, "unknown", expected, 0, value, f"{answer.err_code}: {answer.description}")
        return None

    def _cas(self, key: str, begin: int, outcome: str, expected: int, revision: int, value: str, error: str) -> None:
        self.history.append(Operation("cas", self.name, key, begin, time.monotonic_ns(), outcome, expected, revision, value, error))


async def write(requests: Requests, key: str, *, from_ack: bool, count: int, stop: asyncio.Event) -> None:
    """The writer's loop."""
    known: int | None = None
    done = 0
    while count == 0 or done < count:
        ending = stop.is_set()
        if ending and count:
            break
        expected = known if known is not None else await requests.get(key)
        updated = await requests.compare_and_set(key, expected) if expected is not None else None
        if updated is None:
            await asyncio.sleep(_PAUSE)
        else:
            done += 1
            if done == 1:
                print("ready", flush=True)
            if ending:
                break
        known = updated if from_ack else None


async def read(requests: Requests, keys: list[str], *, count: int, rate: float, stop: asyncio.Event) -> None:
    """The reader's loop."""
    done = 0
    due = time.monotonic()
    while not stop.is_set() and (count == 0 or done < count):
        if await requests.get(keys[done % len(keys)]) is None:
            await asyncio.sleep(_PAUSE)
        done += 1
        due = max(due + 1 / rate, time.monotonic() - 1)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    stop.set()


async def main() -> None:
    """Run as the flags say."""
    parser = argparse.ArgumentParser()
    for name in ("server", "bucket", "key", "client"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--mode", choices=("get", "ack", "read"), default="get")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--rate", type=float, default=1e9)
    parser.add_argument("--timeout-ms", type=int, default=2000)
    args = parser.parse_args()
    where = urlsplit(args.server)
    place = SimpleNamespace(url=args.server, address=where.hostname, port=where.port, name=args.server)
    stop = asyncio.Event()
    watching = asyncio.create_task(_stop_at_end_of_input(stop))
    async with await connect(place) as client:  # type: ignore[arg-type]
        requests = Requests(client, args.bucket, args.client, args.timeout_ms / 1000, [])
        if args.mode == "read":
            print("ready", flush=True)
            await read(requests, args.key.split(","), count=args.count, rate=args.rate, stop=stop)
        else:
            await write(requests, args.key, from_ack=args.mode == "ack", count=args.count, stop=stop)
    watching.cancel()
    sys.stdout.write("".join(op.line() + "\n" for op in requests.history))


if __name__ == "__main__":
    asyncio.run(main())
