"""EQUAL, ACKSET and LIVE, and what they are made of."""
from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lib.client import Ack, Client, Message, Unknown, connect, system
from lib.cluster import Cluster, Node
from lib.program import Failed, Run, until

_SETTLE = 30.0
"""Seconds within which replicas have to come to the same state after traffic stopped."""


async def pages(node: Node, **options: bool) -> dict[str, Any]:
    """The node's own `/jsz` of the default account: by HTTP, or through the system account where there is no page."""
    if node.cluster.monitor:
        query = "".join(f"&{name.replace('_', '-')}=true" for name in options)
        _, page = await node.page(f"/jsz?acc=$G&accounts=true{query}")
        return dict(page)
    ident = (await node.info())["server_id"]
    async with await system(node) as client:
        # The account goes without its parts' names here: the request has `consumer` where the page has `consumers`.
        ask = {"account": "$G", "accounts": True, **{name.removesuffix("s") if name == "consumers" else name: True for name in options}}
        try:
            answer = await client.request(f"$SYS.REQ.SERVER.{ident}.JSZ", json.dumps(ask).encode(), timeout=5)
        except Unknown as why:
            raise Failed(f"JSZ of {node.name}: {why}") from None
        return dict(json.loads(answer.data)["data"])


async def stream_page(node: Node, stream: str) -> dict[str, Any] | None:
    """What the node itself says of a stream; `None` if it holds no replica."""
    page = await pages(node, streams=True, consumers=True, config=True)
    for account in page.get("account_details") or []:
        for detail in account.get("stream_detail") or []:
            if detail["name"] == stream:
                return dict(detail)
    return None


async def view(node: Node, stream: str) -> dict[str, Any] | None:
    """The part of a node's page that has to be equal on all replicas."""
    page = await stream_page(node, stream)
    if page is None:
        return None
    state = page["state"]
    return {
        **{name: state.get(name, 0) for name in ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted", "consumer_count")},
        "consumers": {
            consumer["name"]: {
                "delivered": _pair(consumer["delivered"]), "ack_floor": _pair(consumer["ack_floor"]), "num_pending": consumer["num_pending"],
            }
            for consumer in page.get("consumer_detail") or []
        },
    }


def _pair(position: dict[str, int]) -> tuple[int, int]:
    return position["consumer_seq"], position["stream_seq"]


async def leader(cluster: Cluster, stream: str, limit: float = 20.0) -> Node:
    """The leader of a stream, as any running node tells."""

    async def probe() -> Node | None:
        for node in cluster.nodes:
            if not node.running:
                continue
            try:
                async with await connect(node, limit=2) as client:
                    name = (await client.api(f"STREAM.INFO.{stream}", timeout=1)).get("cluster", {}).get("leader")
            except Unknown:
                continue
            if name and cluster.node(name).running:
                return cluster.node(name)
        return None

    return await until(f"{stream} has a leader", limit, probe)


async def step_down(client: Client, stream: str, to: Node | None = None, limit: float = 20.0) -> str:
    """Have another leader: `to`, or whichever is elected. Answers its name."""
    before = (await client.stream(stream))["cluster"]["leader"]
    if to is not None and before == to.name:
        return before
    body = {"placement": {"preferred": to.name}} if to is not None else None
    asked = 0.0

    async def probe() -> str | None:
        nonlocal asked
        now = (await client.api(f"STREAM.INFO.{stream}", timeout=1)).get("cluster", {}).get("leader")
        if now and now != before and (to is None or now == to.name):
            return str(now)
        if now and time.monotonic() - asked > 2:  # asked again: an election need not be won by the preferred server
            asked = time.monotonic()
            await client.api(f"STREAM.LEADER.STEPDOWN.{stream}", body, timeout=2)
        return None

    async def patient() -> str | None:
        try:
            return await probe()
        except Unknown:
            return None

    return await until(f"{stream} is led by {to.name if to else 'another server'}", limit, patient)


async def all_read(client: Client, stream: str, state: dict[str, Any]) -> AsyncIterator[Message]:
    """Every message of a stream through this node, work-queues too."""
    if (await client.stream(stream))["config"]["retention"] == "limits":
        async for message in client.read(stream):
            yield message
        return
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        answer = await client.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if "message" in answer:
            m = answer["message"]
            yield Message(m["seq"], m["subject"], {"": m.get("hdrs", "")}, m.get("data", "").encode())
        elif answer["error"]["err_code"] != 10037:
            raise Failed(f"get {seq} of {stream} on {client.node.name}: {answer['error']}")


async def digest(client: Client, stream: str) -> dict[str, Any]:
    """State and content as the present leader shows them."""
    info = await client.stream(stream, deleted_details=True, subjects_filter=">")
    state = info["state"]
    content = hashlib.sha256()
    async for message in all_read(client, stream, state):
        header = sorted((k, v) for k, v in message.header.items())
        content.update(repr((message.seq, message.subject, header, message.data)).encode())
    subjects = hashlib.sha256(json.dumps(state.get("subjects", {}), sort_keys=True).encode()).hexdigest()
    deleted = hashlib.sha256(json.dumps(state.get("deleted", [])).encode()).hexdigest()
    names = ("messages", "bytes", "first_seq", "last_seq", "num_subjects", "num_deleted")
    return {**{n: state.get(n, 0) for n in names}, "subjects": subjects, "deleted": deleted, "content": content.hexdigest()}


async def equal(cluster: Cluster, stream: str, *, by_leader: bool = True, limit: float = _SETTLE) -> dict[str, Any]:
    """EQUAL: the replicas' own pages agree, and so does what each of them shows as the leader."""

    def differ(views: dict[str, Any]) -> str:
        return "; ".join(f"{name}: {view}" for name, view in views.items())

    last: dict[str, Any] = {}

    async def probe() -> bool:
        last.clear()
        for node in cluster.nodes:
            seen = await view(node, stream)
            if seen is not None:
                last[node.name] = seen
        return bool(last) and len({json.dumps(v, sort_keys=True) for v in last.values()}) == 1

    try:
        await until("equal pages", limit, probe, every=0.2)
    except Failed:
        raise Failed(f"EQUAL {stream}: pages differ after {limit:g} s: {differ(last)}") from None
    if not by_leader or len(last) == 1:
        return last
    shown = {}
    for name in last:
        node = cluster.node(name)
        async with await connect(node) as client:
            await step_down(client, stream, node)
            shown[name] = await digest(client, stream)
    if len({json.dumps(v, sort_keys=True) for v in shown.values()}) != 1:
        raise Failed(f"EQUAL {stream}: leaders show different streams: {differ(shown)}")
    return last


async def live(cluster: Cluster, limit: float, act: Callable[[Client], Any], nodes: Iterable[Node] | None = None) -> float:
    """LIVE(limit): `act` succeeds through every node within `limit` seconds. Answers the seconds it took."""
    begin = time.monotonic()
    for node in nodes or cluster.nodes:

        async def probe(node: Node = node) -> bool:
            try:
                async with await connect(node, limit=2) as client:
                    return isinstance(await act(client), Ack)
            except Unknown as why:
                raise Failed(str(why)) from None

        await until(f"LIVE({limit:g}) on {node.name}", max(0.1, begin + limit - time.monotonic()), probe)
    return time.monotonic() - begin


@dataclass
class Acked:
    """What publishers were told: the material of ACKSET."""

    acked: dict[str, int] = field(default_factory=dict)
    """Payload to sequence."""
    sent: set[str] = field(default_factory=set)

    async def publish(self, client: Client, subject: str, data: str, timeout: float = 5.0) -> bool:
        """Publish once; remember what is known of it."""
        self.sent.add(data)
        try:
            answer = await client.publish(subject, data.encode(), timeout=timeout)
        except Unknown:
            return False
        if not isinstance(answer, Ack):
            return False
        self.acked[data] = answer.seq
        return True

    async def verify(self, run: Run, stream: str, nodes: Iterable[Node]) -> None:
        """ACKSET: each acknowledged publish is readable through these nodes, where it was said to be; nothing unknown appears."""
        for node in nodes:
            async with await connect(node) as client:
                found: dict[str, int] = {}
                async for message in client.read(stream):
                    text = message.data.decode()
                    run.check(text in self.sent, f"ACKSET: {node.name} has {text!r}, which nobody sent")
                    run.check(text not in found, f"ACKSET: {node.name} has {text!r} at {found.get(text)} and {message.seq}")
                    found[text] = message.seq
            lost = [(d, s) for d, s in self.acked.items() if found.get(d) != s]
            run.check(not lost, f"ACKSET: {len(lost)} of {len(self.acked)} acknowledged are missing or elsewhere on {node.name}, first {lost[:3]}")
