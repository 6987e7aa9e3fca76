"""The host module ``vmvx``.

Its functions exist twice: in Python, which says what they do and is complete, and as machine code
(``native.py``) that compiled tiers call for the plain cases as soon as it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.modules.vmvx import native
from jitree.modules.vmvx.elementwise import BINARY, UNARY, fill
from jitree.modules.vmvx.matmul import mmt4d
from jitree.modules.vmvx.operands import operation
from jitree.modules.vmvx.packing import pack, pack_dense, query_tile_sizes, unpack, unpack_dense

_BINARY_CCONV: Final = "0rIIIrIIIrIIIII_v"
_UNARY_CCONV: Final = "0rIIIrIIIII_v"

ROWS: Final[tuple[tuple[str, str, Callable[..., Any]], ...]] = (
    *((name, _BINARY_CCONV, function) for name, function in BINARY.items()),
    *((name, _UNARY_CCONV, function) for name, function in UNARY.items()),
    ("fill.2d.x32", "0irIIII_v", fill),
    ("mmt4d", "0rIIrIIrIIIIIiiii_v", mmt4d),
    ("pack", "0rIIIrIIIIIIIIIIi_v", pack),
    ("pack", "0rIIrIIIIIIIIIi_v", pack_dense),
    ("unpack", "0rIIIrIIIIIIIIIi_v", unpack),
    ("unpack", "0rIIrIIIIIIIIi_v", unpack_dense),
    ("query_tile_sizes.2d", "0IIi_II", query_tile_sizes),
)
"""Name, calling convention, function. Two forms of pack: before and since compilers of June 2024."""


class VmvxModule(HostModule):
    """Without state: one object serves all contexts."""

    name = "vmvx"
    version = 0

    def exports(self) -> Iterable[HostExport]:
        return _exports()


@cache
def _exports() -> tuple[HostExport, ...]:
    return tuple(
        HostExport(name, cconv, operation(function), compiled=native.address(name, cconv))
        for name, cconv, function in ROWS
    )
