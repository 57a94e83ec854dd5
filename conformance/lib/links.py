"""Three or five hosts and the wires between them, in network namespaces.

Each node has a namespace of its own and one address (`10.77.0.<n>`), on its loopback. A veth
pair joins each two nodes, and one more joins each node to the namespace of the program
(`10.77.0.254`), so that a wire can be cut without touching any other.

A cut is made at the sending end: the permanent neighbour entry of the far address gets a
hardware address that nobody has. Frames then leave and are dropped by the receiver, as on a
broken wire: neither side gets an error, both directions are independent, and neither iptables
nor a traffic shaper is needed.
"""
from __future__ import annotations

import subprocess

from lib.program import Run, Skipped

_NOWHERE = "02:77:ff:ff:ff:ff"
PROGRAM = 0
"""The number of the program itself as an end of a wire; nodes count from 1."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _hardware(here: int, there: int) -> str:
    return f"02:77:00:00:{here:02x}:{there:02x}"


class Links:
    """The namespaces of `size` nodes, fully meshed."""

    def __init__(self, run: Run, size: int) -> None:
        if not run.isolated:
            raise Skipped("cutting links needs root and namespaces (unshare, ip netns)")
        self.size = size
        self.cuts: set[tuple[int, int]] = set()
        subprocess.run("mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns", shell=True, check=True)
        for node in range(1, size + 1):
            _ip("netns", "add", f"node{node}")
            _ip("-n", f"node{node}", "link", "set", "lo", "up")
        for node in range(size + 1):
            _ip(*self._in(node), "addr", "add", f"{self.address(node)}/32", "dev", "lo")
        for here in range(size + 1):
            for there in range(here + 1, size + 1):
                self._join(here, there)

    @staticmethod
    def address(node: int) -> str:
        """The one address of a node, or of the program."""
        return f"10.77.0.{node or 254}"

    @staticmethod
    def _in(node: int) -> list[str]:
        return ["-n", f"node{node}"] if node else []

    @staticmethod
    def command(node: int) -> list[str]:
        """What starts a process on a node: `ip` replaces itself, so the pid is that of the server."""
        return ["ip", "netns", "exec", f"node{node}"]

    def _join(self, here: int, there: int) -> None:
        peer = ["peer", "name", f"w{there}-{here}", "address", _hardware(there, here), "netns", f"node{there}"]
        _ip(*self._in(here), "link", "add", f"w{here}-{there}", "address", _hardware(here, there), "type", "veth", *peer)
        for a, b in ((here, there), (there, here)):
            device = f"w{a}-{b}"
            _ip(*self._in(a), "link", "set", device, "up")
            self._neighbour(a, b, _hardware(b, a))
            _ip(*self._in(a), "route", "add", f"{self.address(b)}/32", "dev", device, "src", self.address(a))

    def _neighbour(self, sender: int, receiver: int, hardware: str) -> None:
        where = ["dev", f"w{sender}-{receiver}", "nud", "permanent"]
        _ip(*self._in(sender), "neigh", "replace", self.address(receiver), "lladdr", hardware, *where)

    def cut_one_way(self, sender: int, receiver: int) -> None:
        """Nothing that `sender` sends reaches `receiver` any more; the other direction is untouched."""
        self._neighbour(sender, receiver, _NOWHERE)
        self.cuts.add((sender, receiver))

    def cut(self, a: int, b: int) -> None:
        """Cut both directions."""
        self.cut_one_way(a, b)
        self.cut_one_way(b, a)

    def isolate(self, node: int) -> None:
        """Cut a node from every other node; its clients stay connected."""
        for other in range(1, self.size + 1):
            if other != node:
                self.cut(node, other)

    def heal(self) -> None:
        """Mend every cut."""
        for sender, receiver in self.cuts:
            self._neighbour(sender, receiver, _hardware(receiver, sender))
        self.cuts.clear()

    def remove(self) -> None:
        """Take the hosts away; the processes on them must have ended."""
        for node in range(1, self.size + 1):
            # The kernel takes a namespace apart some time later, and until then the wire to it would stay here.
            _ip("link", "del", f"w{PROGRAM}-{node}")
            _ip("netns", "del", f"node{node}")
        _ip("addr", "del", f"{self.address(PROGRAM)}/32", "dev", "lo")
        subprocess.run(["umount", "/run/netns"], check=False)
