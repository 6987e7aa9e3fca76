"""Module ``vmvx``: the operations that VMVX kernels compiled with microkernels call.

Its functions are written once: what is left to Python, or runs in the plain tier, are the same functions that
compiled tiers call as machine code (:mod:`.kernels`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial

from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule


class VmvxModule(HostModule):
    """It has no state: one object serves all contexts."""

    name = "vmvx"
    version = 0

    def exports(self) -> Iterable[HostExport]:
        return _exports()


@cache
def _exports() -> tuple[HostExport, ...]:
    from jitree.modules.vmvx.kernels import NAMES, address  # 2 ms: many kernels are compiled without them
    from jitree.modules.vmvx.tiled import query_tile_sizes

    made = [
        HostExport(name, cconv, partial(_call, name, cconv), compiled=address(name, cconv))
        for name, cconv in NAMES
    ]
    return (*made, HostExport("query_tile_sizes.2d", "0IIi_II", query_tile_sizes))


def _call(name: str, cconv: str, state: object, *arguments: object) -> None:
    from jitree.modules.vmvx.kernels import in_python
    from jitree.modules.vmvx.operands import call

    kernel = in_python()[name, cconv]
    if not call(name, kernel, cconv, arguments):
        from jitree.modules.vmvx.long_products import compute

        compute(name, kernel, cconv, arguments)
