"""Runs the command line as users do."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from jitree.tools.main import dispatch

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "data" / "programs"
ECHO = PROGRAMS / "echo.vmfb"
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str


def jitree(*arguments: object, tier: str = "plain", stdin: bytes = b"") -> Outcome:
    """Exit code and streams of ``jitree <arguments>``, in this process."""
    given, out, error = (io.TextIOWrapper(io.BytesIO(data), write_through=True) for data in (stdin, b"", b""))
    with (
        mock.patch.dict(os.environ, {"JITREE_TIER": tier}),
        mock.patch.multiple(sys, stdin=given, stdout=out, stderr=error),
    ):
        code = dispatch([*map(str, arguments)])
    out.seek(0), error.seek(0)
    return Outcome(code, out.read(), error.read())


def jitree_process(*arguments: object, tier: str = "plain") -> Outcome:
    """Exit code and streams of ``python -m jitree <arguments>``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JITREE_TIER": tier}
    done = subprocess.run(
        [sys.executable, "-m", "jitree", *map(str, arguments)],
        capture_output=True,
        env=environment,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_echo(*flags: object, **options: object) -> Outcome:
    """``jitree run`` on echo.vmfb with the synchronous device."""
    return jitree("run", "--device=local-sync", f"--module={ECHO}", *flags, **options)  # type: ignore[arg-type]
