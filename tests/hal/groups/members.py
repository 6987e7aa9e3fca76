"""A member of a job: ``python -m tests.hal.groups.members FOLDER [KILLED]``, started by torchrun or mpirun.

It writes what it gets to ``FOLDER/RANK.npy``. Of a job with KILLED that member then ends by SIGKILL in the
middle of the next sum, and each other writes the status that it gets, and after how many seconds, to
``FOLDER/RANK.txt``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import jitree
from jitree.errors import StatusError

PROGRAM = Path(__file__).parents[2] / "data" / "collectives.vmfb"


def data_of(rank: int) -> Any:
    return np.random.default_rng(rank).standard_normal(1024).astype(np.float32)


def opened(provider: Any = None) -> tuple[int, Any]:
    """The rank, and the functions of the program."""
    session = jitree.Session(device="local-sync")
    if provider is not None:
        session.device.replace_channel_provider(provider)
    module = session.load(PROGRAM)
    return int(module.who()[0]), module


def take_part(folder: Path, killed: int | None = None, provider: Any = None) -> None:
    rank, module = opened(provider)
    np.save(folder / f"{rank}.npy", np.asarray(module.all_reduce(data_of(rank))))
    if killed is None:
        return
    module.scaled_sum(np.zeros(8, np.float32))  # all have written what they got
    if rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        module.all_reduce(data_of(rank))
    except StatusError as error:
        text = f"{error.code.name} {time.monotonic() - begun:.3f} {error}"
        (folder / f"{rank}.part").write_text(text)
        (folder / f"{rank}.part").rename(folder / f"{rank}.txt")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers end the others when one has ended
    take_part(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    os._exit(0)  # MPI would wait at the end for the member that has gone
