"""Tests of the checker: it must accept what is right, and above all refuse what is wrong."""
from __future__ import annotations

import itertools
import random
import unittest

from lib.history import ABSENT, Operation, stale_reads, verify


def op(kind: str, span: tuple[int, int], outcome: str = "ok", **rest: object) -> Operation:
    return Operation(kind=kind, client="c", key="k", invoked=span[0], returned=span[1], outcome=outcome, **rest)  # type: ignore[arg-type]


def brute(history: list[Operation]) -> bool:
    """Try every order of the sure operations with every subset of the unknown writes."""
    sure = [o for o in history if o.outcome != "unknown"]
    maybe = [o for o in history if o.outcome == "unknown" and o.kind != "get"]
    revisions = {o.value: o.revision for o in history if o.outcome == "ok"} | {ABSENT: 0}
    for size in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, size):
            for order in itertools.permutations(sure + list(chosen)):
                if all(a.outcome == "unknown" or a.returned >= b.invoked for b, a in itertools.combinations(order, 2)) and explains(order, revisions):
                    return True
    return False


def explains(order: tuple[Operation, ...], revisions: dict[str, int]) -> bool:
    state = ABSENT
    for o in order:
        now = revisions.get(state, -1)
        if o.kind == "get":
            if o.value != state:
                return False
        elif o.outcome == "conflict":
            unseen = now == -1 and o.revision not in revisions.values()
            if o.expected == now or not (unseen or o.revision == now):
                return False
        elif (o.kind == "cas" and o.expected != now) or (o.value in revisions and revisions[o.value] <= now):
            return False
        else:
            state = o.value
    return True


class Verify(unittest.TestCase):
    def test_a_read_sees_the_write_before_it(self) -> None:
        write = op("put", (0, 10), revision=1, value="a")
        self.assertEqual(verify([write, op("get", (11, 12), revision=1, value="a")]), "")
        self.assertIn("no order", verify([write, op("get", (11, 12), revision=0)]))
        self.assertEqual(verify([write, op("get", (5, 12), revision=0)]), "")

    def test_reads_do_not_go_back(self) -> None:
        history = [
            op("put", (0, 1), revision=1, value="a"), op("put", (2, 100), revision=2, value="b"),
            op("get", (10, 20), revision=2, value="b"), op("get", (30, 40), revision=1, value="a"),
        ]
        self.assertIn("no order", verify(history))
        self.assertEqual(len(stale_reads(history)), 1)

    def test_one_winner_a_revision(self) -> None:
        first = op("put", (0, 1), revision=1, value="a")
        race = [op("cas", (2, 9), expected=1, revision=2, value="b"), op("cas", (2, 9), expected=1, revision=3, value="c")]
        self.assertIn("no order", verify([first, *race]))
        self.assertEqual(verify([first, race[0], op("cas", (2, 9), "conflict", expected=1, revision=2)]), "")

    def test_a_refusal_must_have_a_reason(self) -> None:
        history = [op("put", (0, 1), revision=1, value="a"), op("cas", (2, 3), "conflict", expected=1, revision=1)]
        self.assertIn("no order", verify(history))

    def test_an_unknown_write_may_come_late_or_never(self) -> None:
        first = op("put", (0, 1), revision=1, value="a")
        lost = op("cas", (2, 3), "unknown", expected=1, value="b")
        before, after = op("get", (4, 5), revision=1, value="a"), op("get", (6, 7), revision=2, value="b")
        self.assertEqual(verify([first, lost, before]), "")
        self.assertEqual(verify([first, lost, before, after]), "")
        self.assertIn("no order", verify([first, lost, after, op("get", (8, 9), revision=1, value="a")]))

    def test_an_unseen_write_explains_a_refusal(self) -> None:
        first = op("put", (0, 1), revision=1, value="a")
        refused = op("cas", (4, 5), "conflict", expected=1, revision=2)
        self.assertEqual(verify([first, op("cas", (2, 3), "unknown", expected=1, value="b"), refused]), "")
        self.assertIn("no order", verify([first, refused]))

    def test_a_revision_has_one_value(self) -> None:
        history = [op("get", (0, 1), revision=1, value="a"), op("get", (0, 1), revision=1, value="b")]
        self.assertIn("same revision", verify(history))

    def test_random_histories_against_brute_force(self) -> None:
        verdicts = {True: 0, False: 0}
        for seed in range(1200):
            history = invented(random.Random(seed))
            expected = brute(history)
            verdicts[expected] += 1
            self.assertEqual(verify(history) == "", expected, f"seed {seed}: {history}")
        self.assertGreater(min(verdicts.values()), 100, verdicts)

    def test_long_histories_are_quick(self) -> None:
        history, at = [], 0
        for n in range(1, 20_001):
            history.append(op("cas", (at, at + 5), expected=n - 1, revision=n, value=str(n)))
            history.append(op("get", (at + 1, at + 9), revision=n, value=str(n)))
            at += 6
        self.assertEqual(verify(history), "")


def invented(rng: random.Random) -> list[Operation]:
    """A history that a register with now and then a fault could have left."""
    state, revision, history, at = ABSENT, 0, [], 0
    seen = [(ABSENT, 0)]
    for number in range(rng.randint(2, 6)):
        at += rng.randint(1, 3)
        span = (at - rng.randint(0, 4), at + rng.randint(0, 4))
        choice = rng.random()
        if choice < 0.45:
            value, at_revision = (state, revision) if rng.random() < 0.65 else rng.choice(seen)
            history.append(op("get", span, revision=at_revision, value=value))
        elif choice < 0.85:
            name, expected = f"v{number}", revision if rng.random() < 0.65 else rng.choice(seen)[1]
            effect = expected == revision
            if rng.random() < 0.3:
                history.append(op("cas", span, "unknown", expected=expected, value=name))
                effect = effect and rng.random() < 0.5
            elif effect:
                history.append(op("cas", span, expected=expected, revision=revision + 1, value=name))
            else:
                history.append(op("cas", span, "conflict", expected=expected, revision=revision))
            if effect:
                state, revision = name, revision + 1
                seen.append((state, revision))
        else:
            name = f"v{number}"
            state, revision = name, revision + 1
            seen.append((state, revision))
            history.append(op("put", span, revision=revision, value=name))
    return history


if __name__ == "__main__":
    unittest.main()
