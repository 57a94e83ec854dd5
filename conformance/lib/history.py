"""HIST: what clients saw of a key must be the history of one linearizable register.

An operation has an invocation and a return time (one monotonic clock for all processes). A
history is linearizable if each operation can be given an instant between the two so that,
in the order of these instants, each read gets what the write before it stored.

The search is the one of Wing and Gong ("Testing and verifying concurrent objects", 1993) with
the memory of visited configurations of Lowe ("Testing for linearizability", 2017), narrowed by
what this register is:

- Each write stores a value that no other write stores, so a read names the write it saw.
- Revisions are known from acknowledgements and reads; a write that comes later in the order
  must have the higher revision.
- An operation that only looks (a read, or a compare-and-set refused with the current revision)
  and fits the present state can always be placed at once.
- A write whose outcome is unknown may take effect at any time after its invocation, or never.
  If no one ever saw its value, leaving it out loses nothing, unless a refusal names a revision
  that no seen value has: then it stays in the search, and fits any such revision.
"""
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ABSENT = ""
"""The value of a key that was never written."""
_NEVER = 1 << 62


@dataclass(frozen=True)
class Operation:
    """One request of one client on one key; the line format of the writer programs, in any language.

    `kind` is `get`, `put` or `cas`. `outcome` is `ok`, `conflict` (a compare-and-set refused for its
    revision; `revision` is then the one that the refusal names, 0 if it names none), or `unknown`.
    Times are nanoseconds of CLOCK_MONOTONIC. `expected` is the revision that a `cas` builds on.
    `error` says what came instead of an answer, or the error code of a refusal.
    """

    kind: str
    client: str
    key: str
    invoked: int
    returned: int
    outcome: str
    expected: int = 0
    revision: int = 0
    value: str = ABSENT
    error: str = ""

    def line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


def read_history(text: str) -> list[Operation]:
    """The operations of a writer program's output."""
    return [Operation(**json.loads(line)) for line in text.splitlines() if line.startswith("{")]


def save(history: Iterable[Operation], path: Path) -> None:
    """Keep a history beside the logs."""
    path.write_text("".join(op.line() + "\n" for op in history))


def stale_reads(history: Iterable[Operation]) -> list[str]:
    """Reads of a revision lower than one that was acknowledged, or read by anyone, before the read began."""
    found = []
    for key, operations in _by_key(history).items():
        events = sorted(
            [(op.returned, 0, op.revision) for op in operations if op.outcome == "ok"]
        )
        highest, at = 0, 0
        for op in sorted((o for o in operations if o.kind == "get" and o.outcome == "ok"), key=lambda o: o.invoked):
            while at < len(events) and events[at][0] < op.invoked:
                highest = max(highest, events[at][2])
                at += 1
            if op.revision < highest:
                found.append(f"{op.client} read revision {op.revision} of {key}, {highest} was known before the read began")
    return found


def verify(history: Iterable[Operation]) -> str:
    """Empty if each key's history is linearizable, else what is wrong with the first that is not."""
    for key, operations in sorted(_by_key(history).items()):
        wrong = _Register(operations).verify()
        if wrong:
            return f"key {key}: {wrong}"
    return ""


def _by_key(history: Iterable[Operation]) -> dict[str, list[Operation]]:
    keys: dict[str, list[Operation]] = defaultdict(list)
    for op in history:
        keys[op.key].append(op)
    return keys


class _Register:
    """The search over one key."""

    def __init__(self, operations: list[Operation]) -> None:
        self.revisions: dict[str, int] = {ABSENT: 0}
        self.complaint = ""
        for op in operations:
            if op.outcome == "ok":
                self._learn(op)
        values = {revision: value for value, revision in self.revisions.items()}
        if len(values) != len(self.revisions) and not self.complaint:
            self.complaint = "two values have the same revision"
        unexplained = any(op.outcome == "conflict" and op.revision and op.revision not in values for op in operations)
        self.values = values
        self.sure = sorted((op for op in operations if self._is_sure(op)), key=lambda o: o.invoked)
        self.maybe = sorted(
            (
                op for op in operations
                if op.outcome == "unknown" and op.kind != "get" and (op.value in self.revisions or unexplained)
            ),
            key=lambda o: o.invoked,
        )

    def _learn(self, op: Operation) -> None:
        known = self.revisions.setdefault(op.value, op.revision)
        if known != op.revision and not self.complaint:
            self.complaint = f"value {op.value!r} has revisions {known} and {op.revision}"

    @staticmethod
    def _is_sure(op: Operation) -> bool:
        return op.outcome in ("ok", "conflict")

    def _after(self, op: Operation, state: str) -> str | None:
        """State after `op` took effect in `state`, or `None` if it cannot have."""
        now = self.revisions.get(state)
        if op.kind == "get":
            return state if op.value == state else None
        if op.outcome == "conflict":
            if now is None:  # an unseen write: any revision that no seen write has
                return state if op.revision not in self.values else None
            return state if op.expected != now and op.revision in (0, now) else None
        if op.kind == "cas" and now != op.expected:
            return None
        later = self.revisions.get(op.value)
        if later is not None and now is not None and later <= now:
            return None
        return op.value

    def verify(self) -> str:
        """Empty, or what is wrong."""
        if self.complaint:
            return self.complaint
        sure, maybe = self.sure, self.maybe
        count = len(sure)
        # A configuration: the first operation not yet placed, a mask of later ones that are placed (bit 0 is the
        # first itself), a mask of placed unknown writes, and the value.
        start = (0, 0, 0, ABSENT)
        visited = set()
        stack = [start]
        furthest = 0
        while stack:
            low, mask, used, state = self._place_looks(*stack.pop())
            if low >= count:
                return ""
            config = (low, mask, used, state)
            if config in visited:
                continue
            visited.add(config)
            furthest = max(furthest, low)
            window = self._candidates(low, mask)
            horizon = min(sure[i].returned for i in window)
            for number, op in enumerate(maybe):
                if op.invoked <= horizon and not used >> number & 1:
                    after = self._after(op, state)
                    if after is not None:
                        stack.append((low, mask, used | 1 << number, after))
            for index in reversed(window):
                after = self._after(sure[index], state)
                if after is not None:
                    stack.append((*_mark(low, mask, index), used, after))
        op = sure[furthest]
        return f"no order explains {len(sure)} operations; none places this one: {op.line()}"

    def _candidates(self, low: int, mask: int) -> list[int]:
        """Operations that may come next: those invoked before the earliest return of what is not placed."""
        sure = self.sure
        window: list[int] = []
        horizon = _NEVER
        for index in range(low, len(sure)):
            if sure[index].invoked > horizon:
                break
            if not mask >> (index - low) & 1:
                window.append(index)
                horizon = min(horizon, sure[index].returned)
        return [i for i in window if sure[i].invoked <= horizon]

    def _place_looks(self, low: int, mask: int, used: int, state: str) -> tuple[int, int, int, str]:
        """Place every operation that changes nothing and fits, as often as that frees others."""
        moved = True
        while moved and low < len(self.sure):
            moved = False
            for index in self._candidates(low, mask):
                op = self.sure[index]
                if (op.kind == "get" or op.outcome == "conflict") and self._after(op, state) is not None:
                    low, mask = _mark(low, mask, index)
                    moved = True
                    break
        return low, mask, used, state


def _mark(low: int, mask: int, index: int) -> tuple[int, int]:
    mask |= 1 << (index - low)
    while mask & 1:
        mask >>= 1
        low += 1
    return low, mask
