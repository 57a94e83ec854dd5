"""Tests of the comparison: it must see what differs, and nothing else."""
from __future__ import annotations

import unittest
from typing import Any

from lib.compare import differences


class Differences(unittest.TestCase):
    def same(self, real: Any, ours: Any) -> None:
        self.assertEqual(differences(real, ours), [])

    def seen(self, real: Any, ours: Any, what: str) -> None:
        self.assertIn(what, "\n".join(differences(real, ours)))

    def test_values(self) -> None:
        self.same({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1})
        self.seen({"a": 1}, {"a": 2}, "a: 1, here 2")
        self.seen({"a": {"b": 1}}, {"a": {}}, "a.b: missing")
        self.seen({"a": {}}, {"a": {"b": 1}}, "a.b: not in the real answer")
        self.seen({"a": 1}, {"a": "1"}, "a: 1 is a number")
        self.seen({"a": True}, {"a": 1}, "is a boolean")
        self.seen({"a": [1, 2]}, {"a": [1]}, "2 items, here 1")

    def test_moments_are_there_and_of_the_same_type(self) -> None:
        self.same({"created": "2026"}, {"created": "2027"})
        self.seen({"created": "2026"}, {}, "created: missing")
        self.seen({"created": "2026"}, {"created": 1}, "is a string")

    def test_a_group_is_its_members(self) -> None:
        real = {"cluster": {"leader": "a", "replicas": [{"name": "b", "current": True}, {"name": "c", "current": True}]}}
        ours = {"cluster": {"leader": "c", "replicas": [{"name": "a", "current": True}, {"name": "b", "current": True}]}}
        self.same(real, ours)
        ours["cluster"]["replicas"][0]["current"] = False
        self.seen(real, ours, "current: True, here False")
        ours["cluster"]["replicas"][0] = {"name": "d", "current": True}
        self.seen(real, ours, "members")

    def test_lists_of_named_things_have_no_order(self) -> None:
        self.same([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}])
        self.seen(["a", "b"], ["b", "a"], "[0]: 'a', here 'b'")

    def test_sets_have_no_order(self) -> None:
        self.same({"accounts": ["a", "b"]}, {"accounts": ["b", "a"]})
        self.seen({"accounts": ["a", "b"]}, {"accounts": ["a", "c"]}, "'b', here 'c'")

    def test_declared_differences_count_for_their_command_only(self) -> None:
        real, ours = {"cluster": {"name": "a"}}, {"cluster": {"name": "b"}}
        self.assertEqual(differences(real, ours, "nats stream edit s"), [])
        self.assertEqual(len(differences(real, ours, "nats stream info s")), 1)

    def test_a_declared_difference_can_be_of_one_kind_only(self) -> None:
        self.assertEqual(differences({"ack_floor": {"stream_seq": 0}}, {"ack_floor": {"stream_seq": 16}}, "nats consumer info s c"), [])
        self.assertEqual(len(differences({"ack_floor": {"stream_seq": 3}}, {"ack_floor": {"stream_seq": 16}}, "nats consumer info s c")), 1)

    def test_what_is_ours_alone(self) -> None:
        self.same({"version": "2.15.1"}, {"version": "2.15.1", "tidelock": "0.1.0"})


if __name__ == "__main__":
    unittest.main()
