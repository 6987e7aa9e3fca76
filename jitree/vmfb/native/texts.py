"""The LLVM IR of loading. Only the builder and tests import this."""

from __future__ import annotations

from typing import Final

from jitree.codegen import functions
from jitree.codegen.image.generated import Generated, one_unit
from jitree.vmfb.native import tables
from jitree.vmfb.native.bodies import decode
from jitree.vmfb.native.checking import verify
from jitree.vmfb.native.columns import read_columns

_ENTRIES: Final = (decode, verify, read_columns)


def generate() -> Generated:
    names = [function.__name__ for function in _ENTRIES]
    return one_unit(functions.texts(_ENTRIES), names, tables.generate())
