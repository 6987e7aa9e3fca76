"""Programs that are started begin as from a shell, whatever the starter does with its signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from jitree.base.platform.starting import place, priority_of, spawn

_PROGRAM = (
    "print(*(line.split()[1] for line in open('/proc/self/status') if line[:6] in ('SigBlk', 'SigIgn')))"
)


def test_signals_are_as_at_the_start_of_a_program(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with open(tmp_path / "output", "w+b") as output:
            process = spawn([sys.executable, "-I", "-S", "-c", _PROGRAM], os.environ, {1: output.fileno()})
            assert os.waitpid(process, 0)[1] == 0
            output.seek(0)
            blocks, ignores = (int(word, 16) for word in output.read().split())
    finally:
        signal.signal(signal.SIGUSR2, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert blocks == 0 and not ignores >> (signal.SIGUSR2 - 1) & 1


_CLOSED = """
import os, sys
from jitree.base.platform.starting import spawn
os.closerange(0, 3)
files = [os.memfd_create(name) for name in ("a", "b", "c")]
assert files == [0, 1, 2]
names = "import os; os.write(1, repr([os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2, 5, 7)]).encode())"
process = spawn([sys.executable, "-I", "-S", "-c", names], os.environ, {1: 2, 2: 2, 5: 0, 7: 1})
assert os.waitpid(process, 0)[1] == 0
with open(sys.argv[1], "wb") as place:
    place.write(os.pread(2, 1000, 0))
"""


def test_files_of_a_program_that_has_closed_its_own(tmp_path: Path) -> None:
    """What it opens then has the numbers of standard input and output, which other files get there."""
    place = tmp_path / "names"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", _CLOSED, place], env=environment, check=True, timeout=60)
    a, b, c = (f"/memfd:{name} (deleted)" for name in "abc")
    assert place.read_text(encoding="ascii") == repr(["/dev/null", c, c, a, b])


def test_a_process_is_placed_with_its_group() -> None:
    """Behind what another one has, and not the same for all: this one may have been placed itself.

    The system takes some words for groups only; to say so again helps.
    """
    own, group = priority_of(os.getpid())
    process = spawn(["/bin/sleep", "600"], os.environ, {2: 2})
    try:
        end, wanted = time.monotonic() + 60, (min(own + 1, 19), min(group + 2, 19))
        place_of_group = Path(f"/proc/{process}/autogroup")
        has_groups = place_of_group.exists() and bool(place_of_group.read_text(encoding="ascii"))
        while time.monotonic() < end:
            place(process, (own + 1, group + 2))
            if priority_of(process) == (wanted if has_groups else (wanted[0], 0)):
                break
            time.sleep(0.02)
        else:
            raise AssertionError(priority_of(process))
        place(process, (100, 100))
        assert priority_of(process)[0] == 19, "the lowest that there is"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert priority_of(process) == (0, 0), "the system does not say"
