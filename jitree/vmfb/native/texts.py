"""The LLVM IR of loading. Only the builder and tests import this."""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.image.generated import Generated, one_unit
from jitree.vmfb.native import tables
from jitree.vmfb.native.bodies import decode


def generate() -> Generated:
    return one_unit(functions.texts([decode]), [decode.__name__], tables.generate())
