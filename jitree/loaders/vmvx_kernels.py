"""Which functions of a VMVX executable are kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.vmfb.schema import Export, FunctionRow, ModuleTables

ENTRY_CONVENTION: Final = "0rrriiiiiiiii_v"
"""Local memory, constants, list of bindings; x, y, z of workgroup id, workgroup size and workgroup count."""
_INTERNAL_PREFIX: Final = "__"


def kernels(module: ModuleTables) -> Sequence[Export]:
    """The entries of an executable, in their order."""
    return [export for export in module.exports if _is_kernel(export, module.functions[export.ordinal])]


def _is_kernel(export: Export, function: FunctionRow) -> bool:
    """Internal functions (``__init``, ``__set_constants``) are none; kernels that the compiler adds to every
    program, such as ``__builtin_fill_i64``, are."""
    return not export.name.startswith(_INTERNAL_PREFIX) or function.cconv == ENTRY_CONVENTION
