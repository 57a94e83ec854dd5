"""What the conformance programs share: servers, faults, clients and checks.

Everything here talks to server processes from outside, over sockets and signals, so that
the same program judges any binary that claims to be a nats-server.

The programs need the packages of `requirements.txt`. When the interpreter that started has
none, the one that `setup.sh` made is started in its place.
"""
from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
CONFORMANCE = ROOT / "conformance"
TOOLS = ROOT / "target" / "conformance"
"""Where `setup.sh` puts what it installs."""


def _use_our_interpreter() -> None:
    if importlib.util.find_spec("nats") is not None:
        return
    python = TOOLS / "venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == TOOLS / "venv":
        sys.exit("nats-py is missing: run conformance/setup.sh first")
    os.execv(python, [str(python), *sys.orig_argv[1:]])


_use_our_interpreter()
