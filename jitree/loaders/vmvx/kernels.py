"""Which functions of a VMVX executable are kernels, and what is known of compiled ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.base.records import NamedTuple
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


class KernelNotes(NamedTuple):
    """What the image of a kernel says of it: a line of numbers, which is read without the module ``json``,
    and a line for people."""

    parts: int
    """Into how many parts a workgroup can be cut."""
    stores: int
    """A bit for each binding that it may store to, as a signed number of 64 bits."""
    frames: int
    values: int
    refs: int
    """Bytes on the stacks of a machine that it and what it calls take."""
    refusal: str
    """Why it has not been compiled."""
    loops: Sequence[Sequence[object]]
    """What became of its loops."""

    def encoded(self) -> bytes:
        import json

        described = json.dumps({"refusal": self.refusal, "loops": self.loops})
        return f"{' '.join(map(str, self[:_NUMBERS]))}\n{described}".encode()


_NUMBERS: Final = KernelNotes._fields.index("refusal")


def numbers_of(notes: bytes) -> list[int]:
    """``parts``, ``stores``, ``frames``, ``values`` and ``refs``."""
    return list(map(int, notes.partition(b"\n")[0].split()))
