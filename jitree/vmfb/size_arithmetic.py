"""Which arithmetic may decide on sizes of memory, and whether a module has any (:mod:`jitree.vmfb.sizes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.once import once
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import BASE_OPCODE, OPCODE

if TYPE_CHECKING:
    import numpy.typing as npt

MODULES: Final = ("hal", "hal_inline", "hal_loader", "io_parameters")
_SUFFIX: Final = ".exact"
EXACT: Final = {
    OPCODE[name.removesuffix(_SUFFIX)]: opcode for name, opcode in OPCODE.items() if name.endswith(_SUFFIX)
}
"""Opcode word of the instruction that fails where the one with this opcode word wraps around."""
SUMS: Final = {OPCODE[f"{name}.{kind}"] for name in ("add", "sub") for kind in ("i32", "i64")}
TRUNCATION: Final = OPCODE["trunc.i64.i32"]
_WITH_ARGUMENTS: Final = 1
_ALWAYS: Final = 2


def may_compute_sizes(module: ModuleTables, program: DecodedModule) -> bool:
    """Whether a decoded module has to be decoded with :func:`check_sizes`. Initializers, which have no
    arguments and count devices, need it only for products."""
    if not any(row.full_name.partition(".")[0] in MODULES for row in module.imports):
        return False
    instructions = np.array(program.instruction_words)
    rules = _rules()[program.words[instructions]]
    if (rules == _ALWAYS).any():
        return True
    words, functions = instructions[rules == _WITH_ARGUMENTS], program.functions
    have_arguments = functions.signatures.column(
        [bool(item.argument_slots) for item in functions.signatures.distinct]
    )
    return bool(have_arguments[np.searchsorted(functions.ends, words, "right")].any())


@once
def _rules() -> npt.NDArray[np.uint8]:
    """Of each opcode word whether it makes a module one that may compute sizes."""
    sums = SUMS | {TRUNCATION}
    rules = [0 if base not in EXACT else _WITH_ARGUMENTS if base in sums else _ALWAYS for base in BASE_OPCODE]
    return np.array(rules, np.uint8)
