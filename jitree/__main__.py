"""``python -m jitree``: the command line."""

import os
import sys

from jitree.base import start

_RUN_PROGRAMS = ("benchmark", "check", "run")
"""Commands that import what a first result does."""


def main() -> None:
    """Runs the command line. Numpy's BLAS is told to wait for work, else it looks for some on each processor
    for 26 ms after its import."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # as short as can be
    if sys.argv[1:2] and sys.argv[1] in _RUN_PROGRAMS:
        start.use()
    from jitree.tools.main import main

    main()


if __name__ == "__main__":
    main()
