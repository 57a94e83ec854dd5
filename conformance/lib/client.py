"""A client that stays on its node, and says exactly what came of each request.

Built on the official Python client. It differs from everyday use in two ways: it never
follows the cluster to another node (a scenario says which node a client is on), and the
outcome of a request keeps the error code, since the scenarios allow some and forbid others.
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
from nats.aio.client import Client as Nats
from nats.aio.msg import Msg

from lib.program import Failed, until

if TYPE_CHECKING:
    from lib.cluster import Node

EXPECTED_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
MESSAGE_ID = "Nats-Msg-Id"
WRONG_LAST_SEQUENCE = 10071
WRONG_LAST_SEQUENCE_CONSTANT = 10164
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class Unknown(Exception):
    """No answer: whether the request took effect cannot be told. The text is the kind (`timeout`, `no responders`, `disconnected`)."""


@dataclass(frozen=True)
class Ack:
    """A publish was stored, as a message of this sequence."""

    seq: int
    duplicate: bool


@dataclass(frozen=True)
class Refused:
    """A publish was refused with this error."""

    code: int
    err_code: int
    description: str

    @property
    def last_sequence(self) -> int | None:
        """The sequence that a failed compare-and-set names."""
        found = _LAST_SEQUENCE.search(self.description)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Message:
    """A stored message."""

    seq: int
    subject: str
    header: dict[str, str]
    data: bytes


async def _quiet(_error: Exception) -> None:
    """Connection errors are expected under faults; each request reports its own outcome."""


class Client:
    """One connection to one node."""

    def __init__(self, node: Node, raw: Nats) -> None:
        self.node = node
        self.raw = raw

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_what: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close without draining: the server may be gone."""
        with contextlib.suppress(OSError):
            await self.raw.close()

    async def request(self, subject: str, data: bytes = b"", header: dict[str, str] | None = None, timeout: float = 5.0) -> Msg:
        """One request, one answer, or `Unknown`."""
        try:
            return await self.raw.request(subject, data, timeout=timeout, headers=header)
        except nats.errors.NoRespondersError:
            raise Unknown("no responders") from None
        except (nats.errors.TimeoutError, asyncio.TimeoutError):
            raise Unknown("timeout") from None
        except (nats.errors.Error, OSError) as why:
            raise Unknown(f"disconnected ({type(why).__name__})") from None

    async def api(self, name: str, body: Any = None, timeout: float = 5.0) -> dict[str, Any]:
        """A JetStream API request; the answer as it is, errors included."""
        data = json.dumps(body).encode() if body is not None else b""
        return dict(json.loads((await self.request(f"$JS.API.{name}", data, timeout=timeout)).data))

    async def demand(self, name: str, body: Any = None, limit: float = 20.0) -> dict[str, Any]:
        """A JetStream API request that has to succeed within `limit` seconds; asked again while the cluster has no answer.

        Only for requests that may be repeated.
        """
        answer: dict[str, Any] = {}

        async def probe() -> bool:
            nonlocal answer
            try:
                answer = await self.api(name, body, timeout=2.0)
            except Unknown as why:
                raise Failed(str(why)) from None
            error = answer.get("error")
            if error and error.get("code") != 503:
                raise RuntimeError(f"{name}: {error}")
            if error:
                raise Failed(str(error))
            return True

        await until(f"{name} on {self.node.name}", limit, probe, every=0.1)
        return answer

    async def publish(self, subject: str, data: bytes, header: dict[str, str] | None = None, timeout: float = 5.0) -> Ack | Refused:
        """Publish to a stream and wait for what it says."""
        answer = json.loads((await self.request(subject, data, header, timeout)).data)
        error = answer.get("error")
        if error:
            return Refused(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
        return Ack(answer["seq"], answer.get("duplicate", False))

    async def compare_and_set(self, subject: str, data: bytes, expected: int, timeout: float = 5.0) -> Ack | Refused:
        """Publish if the last sequence of the subject is `expected` (0: none yet)."""
        return await self.publish(subject, data, {EXPECTED_SUBJECT_SEQUENCE: str(expected)}, timeout)

    async def last(self, stream: str, subject: str, timeout: float = 5.0) -> Message | None:
        """The last message of a subject by direct get, as the key-value clients read; `None` if there is none."""
        answer = await self.request(f"$JS.API.DIRECT.GET.{stream}.{subject}", timeout=timeout)
        header = dict(answer.headers or {})
        if "Nats-Sequence" in header:
            return Message(int(header["Nats-Sequence"]), header["Nats-Subject"], header, answer.data)
        if header.get("Status", "").startswith("404"):
            return None
        raise Failed(f"direct get of {subject} on {self.node.name}: {header}")

    async def create(self, config: dict[str, Any], *, place: int = 0) -> dict[str, Any]:
        """Create a stream; `place` is the number of replicas (the configuration's, if 0)."""
        if place:
            config = config | {"num_replicas": place}
        return await self.demand(f"STREAM.CREATE.{config['name']}", config)

    async def stream(self, name: str, **ask: Any) -> dict[str, Any]:
        """STREAM.INFO, which must succeed within 20 s."""
        return await self.demand(f"STREAM.INFO.{name}", ask or None)

    async def read(self, stream: str, *, limit: float = 60.0) -> AsyncIterator[Message]:
        """All messages of a stream from first to last, through a consumer made for this that does not acknowledge.

        Not for work-queue streams, which allow no such consumer.
        """
        total = (await self.stream(stream))["state"]["messages"]
        if not total:
            return
        config = {"deliver_policy": "all", "ack_policy": "none", "mem_storage": True, "num_replicas": 1, "inactive_threshold": 30_000_000_000}
        name = (await self.demand(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config}))["name"]
        seen = 0
        deadline = asyncio.get_running_loop().time() + limit
        while seen < total:
            if asyncio.get_running_loop().time() > deadline:
                raise Failed(f"read {seen} of {total} messages of {stream} through {self.node.name} in {limit:g} s")
            async for message in self.fetch(stream, name, min(500, total - seen)):
                seen += 1
                yield Message(stream_sequence(message), message.subject, dict(message.headers or {}), message.data)
        await self.api(f"CONSUMER.DELETE.{stream}.{name}")

    async def fetch(self, stream: str, consumer: str, batch: int, expires: float = 2.0) -> AsyncIterator[Msg]:
        """Up to `batch` messages by one pull request, until the server says that it is over."""
        inbox = self.raw.new_inbox()
        subscription = await self.raw.subscribe(inbox)
        body = {"batch": batch, "expires": int(expires * 1e9), "no_wait": False}
        await self.raw.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(body).encode(), reply=inbox)
        try:
            for _ in range(batch):
                message = await subscription.next_msg(timeout=expires + 1.0)
                if not message.data and (message.headers or {}).get("Status"):
                    return
                yield message
        except nats.errors.TimeoutError:
            return
        finally:
            await subscription.unsubscribe()


def stream_sequence(message: Msg) -> int:
    """Stream sequence from the acknowledgement subject of a delivered message."""
    tokens = message.reply.split(".")
    return int(tokens[5] if len(tokens) == 9 else tokens[7])


async def connect(node: Node, *, user: str | None = None, password: str | None = None, limit: float = 10.0) -> Client:
    """Connect to this node and stay with it through restarts."""

    def stay(servers: list[Any], _info: dict[str, Any]) -> tuple[Any, float]:
        return next(s for s in servers if s.uri.port == node.port and s.uri.hostname == node.address), 0.05

    raw = await asyncio.wait_for(
        nats.connect(
            node.url, user=user, password=password, error_cb=_quiet, max_reconnect_attempts=-1, reconnect_time_wait=0.05,
            connect_timeout=2, reconnect_to_server_handler=stay, ping_interval=5,
        ),
        limit,
    )
    return Client(node, raw)


async def system(node: Node) -> Client:
    """A connection of the system account."""
    return await connect(node, user="admin", password="password")
