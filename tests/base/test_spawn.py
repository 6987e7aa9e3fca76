"""Programs that are started begin as from a shell, whatever the starter does with its signals."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from jitree.base.spawn import spawn

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
