"""The frame of a conformance program: flags, seed, private world, parts, verdict.

Where the kernel and the rights allow it, a program runs in network, mount and process
namespaces of its own: no port is shared with anything else on the machine, no signal can
reach a foreign process, and whatever is still alive at the end dies with the namespaces.
Elsewhere it runs as it is, and parts that cut links are skipped with a message.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lib import ROOT

_INSIDE = "TIDELOCK_CONFORMANCE_INSIDE"
_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]

DEFAULT_BINARY = ROOT / "target" / "release" / "tidelock"


class Failed(Exception):
    """The server did not do what the scenario asks."""


class Skipped(Exception):
    """This machine cannot run the part; the text says why."""


@dataclass
class Part:
    """The outcome of one part of a program."""

    name: str
    outcome: str
    text: str
    seconds: float


@dataclass
class Run:
    """One execution of a program."""

    name: str
    args: argparse.Namespace
    binary: Path
    short: bool
    seed: int
    random: random.Random
    folder: Path
    isolated: bool
    parts: list[Part] = field(default_factory=list)
    _started: float = field(default_factory=time.monotonic)

    def note(self, text: str) -> None:
        """One line of progress, with the seconds since the start."""
        print(f"  {time.monotonic() - self._started:7.2f} s  {text}", flush=True)

    def check(self, condition: bool, text: str) -> None:
        """Fail with `text` unless `condition` holds."""
        if not condition:
            raise Failed(text)

    def wanted(self, part: str) -> bool:
        """Whether the user asked for this part (all of them, unless `--only` names some)."""
        return not self.args.only or any(word in part for word in self.args.only.split(","))

    @contextlib.asynccontextmanager
    async def part(self, name: str) -> AsyncIterator[None]:
        """A part that may fail or be skipped without ending the program.

        A part is to leave the servers in a state that the next one can start from, or build new ones.
        """
        begin = time.monotonic()
        outcome, text = "passed", ""
        try:
            yield
        except Skipped as why:
            outcome, text = "skipped", str(why)
        except Failed as why:
            outcome, text = "failed", str(why)
        except Exception as why:  # noqa: BLE001 - a crash of a part is a failure of it, and the others still count
            outcome, text = "failed", f"{type(why).__name__}: {why}"
            traceback.print_exc()
        self.parts.append(Part(name, outcome, text, time.monotonic() - begin))
        self.note(f"{name}: {outcome}" + (f": {text}" if text else ""))


Main = Callable[[Run], Awaitable[None]]


def flags(name: str, extra: Callable[[argparse.ArgumentParser], None] | None) -> argparse.Namespace:
    """The flags every program has, and those of this one."""
    parser = argparse.ArgumentParser(prog=f"{name.lower()}.py", description=f"Conformance program {name}.")
    parser.add_argument("--binary", type=Path, default=DEFAULT_BINARY, help="server under test (default %(default)s)")
    parser.add_argument("--short", action="store_true", help="the form for CI, well under a minute")
    parser.add_argument("--seed", type=int, help="repeat a run's random choices")
    parser.add_argument("--only", default="", help="comma separated words; only parts with one of them in the name")
    parser.add_argument("--keep", action="store_true", help="keep the stores too, not only the logs of a failure")
    parser.add_argument("--no-isolation", action="store_true", help="no namespaces even where they are possible")
    if extra is not None:
        extra(parser)
    return parser.parse_args()


def program(name: str, main: Main, extra: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Run `main` and end the process: 0 passed, 1 failed, 2 could not start."""
    args = flags(name, extra)
    binary = args.binary.absolute()
    if not binary.is_file() or not os.access(binary, os.X_OK):
        print(f"{name}: no such server binary: {binary}")
        sys.exit(2)
    if _INSIDE in os.environ:
        sys.exit(_inside(name, main, args, binary))
    sys.exit(_outside(name, args))


def _outside(name: str, args: argparse.Namespace) -> int:
    seed = args.seed if args.seed is not None else random.SystemRandom().getrandbits(32)
    folder = Path(tempfile.mkdtemp(prefix=f"tidelock-{name.lower()}-"))
    unshare = [] if args.no_isolation or not _can_isolate() else _UNSHARE
    environment = os.environ | {_INSIDE: f"{int(bool(unshare))},{seed},{folder}"}
    child = subprocess.Popen([*unshare, sys.executable, *sys.argv], env=environment)

    def end(_number: int, _frame: object) -> None:
        # The first process of a process namespace ignores TERM unless it asks for it, and unshare ignores it too.
        child.kill()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    code = child.wait()
    _tidy(folder, keep_stores=args.keep, keep_logs=code != 0)
    return code if code >= 0 else 1


def _tidy(folder: Path, *, keep_stores: bool, keep_logs: bool) -> None:
    if keep_stores:
        print(f"kept {folder}")
    elif keep_logs:
        for store in folder.glob("**/store*"):
            shutil.rmtree(store, ignore_errors=True)
        print(f"logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _can_isolate() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = subprocess.run([*_UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return probe.returncode == 0


def _inside(name: str, main: Main, args: argparse.Namespace, binary: Path) -> int:
    isolated, seed, folder = os.environ[_INSIDE].split(",", 2)
    if isolated == "1":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    run = Run(
        name=name, args=args, binary=binary, short=args.short, seed=int(seed), random=random.Random(int(seed)),
        folder=Path(folder), isolated=isolated == "1",
    )
    form = "short" if args.short else "long"
    print(f"{name}: {form} form, seed {seed}, {binary}", flush=True)
    try:
        asyncio.run(main(run))
    except Failed as why:
        run.parts.append(Part("whole", "failed", str(why), 0.0))
    except Exception as why:  # noqa: BLE001 - the verdict line has to come out whatever happens
        traceback.print_exc()
        run.parts.append(Part("whole", "failed", f"{type(why).__name__}: {why}", 0.0))
    return _verdict(run)


def _verdict(run: Run) -> int:
    failed = [p for p in run.parts if p.outcome == "failed"]
    skipped = [p for p in run.parts if p.outcome == "skipped"]
    tail = "".join(f"; skipped {p.name} ({p.text})" for p in skipped)
    if failed:
        first = f"{failed[0].name}: {failed[0].text}"
        more = f" (and {len(failed) - 1} more parts)" if len(failed) > 1 else ""
        print(f"{run.name} failed (seed {run.seed}): {first}{more}{tail}", flush=True)
        return 1
    if not run.parts or len(skipped) == len(run.parts):
        print(f"{run.name} failed (seed {run.seed}): nothing ran{tail}", flush=True)
        return 1
    print(f"{run.name} passed{tail}", flush=True)
    return 0


T = TypeVar("T")


async def until(what: str, limit: float, probe: Callable[[], Awaitable[T | None]], every: float = 0.05) -> T:
    """Ask `probe` until it answers something true; `Failed` with `what` when `limit` seconds are over.

    `every` is the pause between two questions, in seconds.
    """
    deadline = time.monotonic() + limit
    last = ""
    while True:
        try:
            answer = await probe()
            if answer:
                return answer
        except (OSError, asyncio.TimeoutError, Failed) as why:
            last = f" (last: {why})" if str(why) else ""
        if time.monotonic() >= deadline:
            raise Failed(f"not within {limit:g} s: {what}{last}")
        await asyncio.sleep(every)
