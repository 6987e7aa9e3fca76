"""Which arithmetic may decide on sizes of memory, and whether a module has any (:mod:`jitree.vmfb.sizes`)."""

from __future__ import annotations

from typing import Final

import numpy as np

from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import BASE_OPCODE, OPCODE

MODULES: Final = ("hal", "hal_inline", "hal_loader", "io_parameters")
_SUFFIX: Final = ".exact"
EXACT: Final = {
    OPCODE[name.removesuffix(_SUFFIX)]: opcode for name, opcode in OPCODE.items() if name.endswith(_SUFFIX)
}
"""Opcode word of the instruction that fails where the one with this opcode word wraps around."""
SUMS: Final = {OPCODE[f"{name}.{kind}"] for name in ("add", "sub") for kind in ("i32", "i64")}
TRUNCATION: Final = OPCODE["trunc.i64.i32"]


def may_compute_sizes(module: ModuleTables, program: DecodedModule) -> bool:
    """Whether a decoded module has to be decoded with :func:`check_sizes`. Initializers, which have no
    arguments and count devices, need it only for products."""
    if not any(row.full_name.partition(".")[0] in MODULES for row in module.imports):
        return False
    opcodes = np.take(np.array(BASE_OPCODE), program.words[np.array(program.instruction_words)])
    if np.isin(opcodes, [*(EXACT.keys() - SUMS - {TRUNCATION})]).any():
        return True
    words = np.array(program.instruction_words)[np.isin(opcodes, [*EXACT])]
    starts = [function.start for function in program.functions if function.argument_slots]
    ends = [function.end for function in program.functions if function.argument_slots]
    return any(((words >= start) & (words < end)).any() for start, end in zip(starts, ends, strict=True))
