"""The LLVM IR of the command executor. Only the builder and tests import this."""

from __future__ import annotations

from typing import Final

from jitree.codegen import functions
from jitree.codegen.image.generated import Generated, one_unit
from jitree.hal.local.executor.lists import clock, estimate, execute
from jitree.hal.local.executor.serving import dismiss, serve

_ENTRIES: Final = (execute, estimate, clock, serve, dismiss)


def generate() -> Generated:
    return one_unit(functions.texts(_ENTRIES), (function.__name__ for function in _ENTRIES))
