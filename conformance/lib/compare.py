"""Two JSON answers side by side: what may differ, and what may not.

Values that are of the moment or of the process (times, ids, ports, rates, sizes of a process) are not
compared, but they have to be there and of the same type. Which server leads is chance, so of a
group its members are compared. Anything else that differs counts, unless it is in `TOLERATED`.
"""
from __future__ import annotations

import re
from typing import Any

_MOMENT = frozenset("""
    active config_digest config_load_time core connect_info cpu created delivered_time expires first_ts gomaxprocs gomemlimit go host
    id jetstream_start last last_active last_activity last_ts leader_since max_memory max_storage max_store mem memory now num_goroutines
    os_cores peer pinned_ts raft_group rss rtt seq_time server_id slow_consumers start store store_dir storage_time system_account_id
    time timestamp ts uptime xkey git_commit
    cid client_id connection conn_id nonce ip port cluster_port http_port client_ip lang_version pending_bytes idle
    avg_rtt max_rtt min_rtt pause_until pause_remaining
""".split())
"""Names of fields whose values are not compared."""

_MOMENT_PATHS = re.compile(r"server(\[\d+\])?\.seq$|statsz\..*\.(msgs|bytes)$|(^|\.)data\.user$|(^|\.)name_tag$")
"""The same for names that mean something else elsewhere."""

_UNIQUE = re.compile(r"_INBOX\.[\w.]+|\b[A-Z0-9]{56}\b|_R_\.[\w.]+|(?<=[\w.]:)\d{4,5}\b")
"""Unique names, and ports, inside of values."""

_OWN = frozenset(["tidelock"])
"""Fields that only Tidelock has."""

_COUNTERS = frozenset("""
    in_msgs out_msgs in_bytes out_bytes total errors total_connections connections subscriptions num_subscriptions routes remotes
    in_client_msgs out_client_msgs in_client_bytes out_client_bytes api_total stale_connections avg_fanout max_fanout cache_hit_rate num_cache
    num_matches num_inserts num_removes
""".split())
"""Counts of what the servers did to each other or to themselves: there and numbers, but not compared."""

_SETS = frozenset(["accounts", "connect_urls"])
"""Lists of plain values whose order is free."""

TOLERATED: tuple[tuple[str, str, str], ...] = (
    ("", r"(^|\.)lag$", "only there while a replica is behind"),
    ("", r"(^|\.)cluster\.(traffic_account|system_account)$", "which account carries the replication is nats-server's own affair"),
    ("", r"(^|\.)ha_assets$", "nats-server counts a consumer as a group of its own; here a stream and its consumers are one group"),
    (
        "", r"(^|\.)(statsz\.jetstream\.meta|(data\.jetstream\.meta|meta_cluster)\.(members|replicas|leader|name))$",
        "what a node says of the meta group depends on whether it leads it",
    ),
    ("", r"(^|\.)http_req_stats$", "how often readiness was asked for"),
    ("", r"(^|\.)(bytes|storage)$", "stored size includes the head of a record, which is each server's own"),
    ("", r"(^|\.)(statsz|data)\.routes$", "how many connections join two servers is each server's own"),
    ("", r"(^|\.)meta(_cluster)?\.snapshot$", "how the meta group keeps its log short is each server's own"),
    ("stream (add|edit|purge)", r"^cluster\.", "which replicas have reported within the first milliseconds is chance"),
    (
        "stream info ", r"^cluster\.replicas\[\d+\]\.current: False, here True$",
        "whether a follower of a stream that was made or written a moment ago has reported yet is chance; ours may be earlier, never later",
    ),
    ("", r"(^|\.)sync_always: not in the real answer", "every acknowledgement waits for its sync by default"),
    ("", r"(^|\.)git_commit: missing", "the commit of the build is not recorded"),
    ("server request routes", r"^data\.(num_routes|routes)$", "how many connections join two servers is each server's own"),
    (
        "consumer info|CONSUMER.LIST", r"(^|\.)ack_floor\.stream_seq: 0, here ",
        "a new consumer's floor is right before its first message, as on a server of its own; in a cluster nats-server shows 0 at first",
    ),
    (
        "stream purge", r"^state\.first_seq: 1, here 0$",
        "a purge of an empty stream changes nothing, as in a cluster; on a server of its own nats-server moves first_seq to 1",
    ),
    ("server request jetstream", r"^data\.consumers$", "on how many nodes consumers without replicas lie is chance"),
)
"""Command, path (both regular expressions) and the reason why the values may differ, or be missing.

A pattern with `: ` in it covers only what differs in that way (`path: real value, here value`)."""


def tolerated(command: str, path: str, text: str = "") -> bool:
    """Whether a declared difference covers this path, or what differs there, in the output of this command."""
    return any(
        re.search(where, command) and re.search(pattern, f"{path}: {text}" if ": " in pattern else path)
        for where, pattern, _ in TOLERATED
    )


def differences(real: Any, ours: Any, command: str = "") -> list[str]:
    """What differs in the answers to a command, one line each; `real` is the reference."""
    return [f"{path}: {text}" for path, text in _differences(real, ours, "") if not tolerated(command, path, text)]


def _differences(real: Any, ours: Any, path: str) -> list[tuple[str, str]]:
    if isinstance(real, dict) and isinstance(ours, dict):
        return _objects(_grouped(real), _grouped(ours), path)
    if isinstance(real, list) and isinstance(ours, list):
        return _lists(real, ours, path)
    if _type(real) != _type(ours):
        return [(path, f"{real!r} is {_type(real)}, here {ours!r} is {_type(ours)}")]
    name = path.rsplit(".", 1)[-1].split("[")[0]
    if name in _MOMENT or name in _COUNTERS or _MOMENT_PATHS.search(path) or _plain(real) == _plain(ours):
        return []
    return [(path, f"{real!r}, here {ours!r}")]


def _plain(value: Any) -> Any:
    return _UNIQUE.sub("_", value) if isinstance(value, str) else value


def _type(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return {str: "a string", list: "a list", dict: "an object", type(None): "null"}[type(value)]


def _objects(real: dict[str, Any], ours: dict[str, Any], path: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in sorted((real.keys() | ours.keys()) - _OWN):
        inner = f"{path}.{name}" if path else name
        if name not in ours:
            found.append((inner, f"missing (there: {_short(real[name])})"))
        elif name not in real:
            found.append((inner, f"not in the real answer (here: {_short(ours[name])})"))
        elif any(re.search(pattern, inner) for where, pattern, _ in TOLERATED if not where):
            continue  # tolerated as a whole, whatever is inside
        else:
            found += _differences(real[name], ours[name], inner)
    return found


def _lists(real: list[Any], ours: list[Any], path: str) -> list[tuple[str, str]]:
    if len(real) != len(ours):
        return [(path, f"{len(real)} items, here {len(ours)}: {_short(real)} / {_short(ours)}")]
    if path.rsplit(".", 1)[-1] in _SETS:
        real, ours = sorted(real, key=str), sorted(ours, key=str)
    if all(_name(item) for item in [*real, *ours]):
        real, ours = sorted(real, key=_name), sorted(ours, key=_name)
    return [found for index, (a, b) in enumerate(zip(real, ours)) for found in _differences(a, b, f"{path}[{index}]")]


def _name(item: Any) -> str:
    """What identifies an item of a list whose order is free, where there is such a thing."""
    if not isinstance(item, dict):
        return ""
    for inner in (item, item.get("config"), item.get("server")):
        if isinstance(inner, dict) and (inner.get("name") or inner.get("durable_name")):
            return str(inner.get("name") or inner.get("durable_name"))
    return ""


def _grouped(value: dict[str, Any]) -> dict[str, Any]:
    """A replica group by its members: which of them leads, and in which order the others are listed, is chance."""
    if not ("leader" in value and isinstance(value.get("replicas"), list)):
        return value
    names = [value["leader"], *(replica.get("name") for replica in value["replicas"])]
    rest = [{k: v for k, v in replica.items() if k != "name"} for replica in value["replicas"]]
    return {**value, "leader": "", "replicas": rest, "members": sorted(str(name) for name in names)}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
