"""The LLVM IR of the command executor. Only the builder and tests import this."""

from __future__ import annotations

from jitree.codegen import functions
from jitree.hal.local.executor.lists import clock, estimate, execute
from jitree.hal.local.executor.serving import dismiss, serve


def texts() -> list[str]:
    return functions.texts([execute, estimate, clock, serve, dismiss])
