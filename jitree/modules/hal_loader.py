"""The host module ``hal_loader``: executables that programs run without a device, on the calling thread."""

# ruff: noqa: E501 - one import, one line where it fits

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.executable import Executable, ExecutableCache, ExecutableLoader, LocalExecutable
from jitree.hal.local import executor
from jitree.modules.hal.executable import parameters_of
from jitree.modules.hal.module import CheckedExport
from jitree.modules.hal.references import ImportRow, register_hal_types
from jitree.modules.hal.values import text
from jitree.regs.objects import VmBuffer
from jitree.regs.ref_types import RefTypes

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

MAXIMUM_BINDINGS: Final = 32
"""Of one dispatch."""


class HalLoaderModule(HostModule):
    """Executables come from ``loaders``."""

    name = "hal_loader"
    version = 1

    def __init__(self, loaders: Sequence[ExecutableLoader]) -> None:
        self.loaders = tuple(loaders)

    def exports(self) -> Iterable[HostExport]:
        return _exports()

    def register_types(self, ref_types: RefTypes) -> None:
        register_hal_types(ref_types)

    def create_state(self, context: ModuleContext) -> ExecutableCache:
        return ExecutableCache(self.name, self.loaders)


def query_support(cache: ExecutableCache, executable_format: VmBuffer) -> int:
    return int(cache.can_prepare_format(text(executable_format)))


def load(
    cache: ExecutableCache, executable_format: VmBuffer, data: VmBuffer, constants: VmBuffer | None
) -> Executable:
    """NOT_FOUND when no loader takes the format; INVALID_ARGUMENT for constants that are not whole words."""
    return cache.prepare_executable(parameters_of(executable_format, data, constants))


def lookup_function(cache: ExecutableCache, executable: Executable, name: VmBuffer) -> int:
    return executable.lookup(text(name))


def dispatch(
    cache: ExecutableCache,
    executable: LocalExecutable,
    function: int,
    x: int,
    y: int,
    z: int,
    constants: Sequence[int],
    bindings: Sequence[tuple[VmBuffer, int, int]],
) -> None:
    """Runs a grid of workgroups to its end.

    OUT_OF_RANGE for a function that the executable lacks and ranges outside their buffers,
    RESOURCE_EXHAUSTED for too many bindings, INVALID_ARGUMENT for other numbers of constants and bindings
    than the function takes; what the function fails with.
    """
    if len(bindings) > MAXIMUM_BINDINGS:
        raise ResourceExhaustedError(f"a dispatch with {len(bindings)} bindings; at most {MAXIMUM_BINDINGS}")
    if not 0 <= function < executable.function_count:
        raise OutOfRangeError(
            f"function {function} of an executable with {executable.function_count} functions"
        )
    _check_count("constants", executable.constant_count(function), len(constants), executable, function)
    _check_count("bindings", executable.binding_count(function), len(bindings), executable, function)
    ranges = [_range(*binding) for binding in bindings]
    commands = CommandList()
    grid = (x & 0xFFFFFFFF, y & 0xFFFFFFFF, z & 0xFFFFFFFF)
    commands.dispatch(executable, function, grid, constants, ranges)
    executor.execute(commands, commands.addresses, commands.lengths)


def _check_count(
    what: str, takes: int | None, given: int, executable: LocalExecutable, function: int
) -> None:
    if takes is not None and takes != given:
        name = executable.function_name(function) or f"function {function}"
        raise InvalidArgumentError(
            f"{name} of executable '{executable.name}' takes {takes} {what} but got {given}"
        )


def _range(buffer: VmBuffer, offset: int, length: int) -> tuple[int, int, int]:
    if not 0 <= offset <= offset + length <= buffer.length:
        raise OutOfRangeError(
            f"bytes {offset} to {offset + length} of a binding are outside its buffer of {buffer.length} bytes"
        )
    return DIRECT, buffer.address + offset, length


_BINDINGS: Final = "[buffer: vm.buffer, offset, length]"

ROWS: Final = (
    ImportRow("executable.query_support", "0r_i", "executable_format: vm.buffer", query_support),
    ImportRow("executable.load", "0rrr_r",
        "executable_format: vm.buffer, executable_data: vm.buffer, constants: vm.buffer?", load),
    ImportRow("executable.lookup.function", "0rr_I", "executable: hal.executable, function_name: vm.buffer",
        lookup_function),
    ImportRow("executable.dispatch", "0rIiiiCiDCrIID_v",
        f"executable: hal.executable, function_id, workgroup_x, workgroup_y, workgroup_z, [value], {_BINDINGS}",
        dispatch),
    # Up to 3.11.
    ImportRow("executable.dispatch", "0riiiiCiDCrIID_v",
        f"executable: hal.executable, entry_point, workgroup_x, workgroup_y, workgroup_z, [value], {_BINDINGS}",
        dispatch),
)  # fmt: skip


@cache
def _exports() -> tuple[HostExport, ...]:
    return tuple(CheckedExport(row, HalLoaderModule.name) for row in ROWS)
