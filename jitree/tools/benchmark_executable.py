"""Measures dispatches of an executable without its module: ``jitree benchmark-executable``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jitree.base.near_names import near_path
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    pass_interruption,
)
from jitree.tools import benchmark, devices
from jitree.tools.benchmark_report import (
    Benchmark,
    BenchmarkRow,
    aggregates,
    machine_context,
    machine_header,
    measure,
)
from jitree.tools.element_parsing import parse_integer
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.program import open_devices, show_statistics
from jitree.tools.reporting import error_line
from jitree.tools.values import HostTensor, ValueFiles, parse_value

if TYPE_CHECKING:
    from jitree.hal.command_buffer import BufferRange
    from jitree.hal.device import Device
    from jitree.hal.executable import Executable

_WORD: Final = 1 << 32
_DISPATCHES: Final = 4
"""The stage of commands that dispatches are in."""
_GRID: Final = re.compile(r"(\d{1,9}),(\d{1,9}),(\d{1,9})", re.ASCII)

FLAGS: Final = flag_set(
    "benchmark-executable",
    "measures how long dispatches of an executable take, without a module",
    "kernel interpreter device benchmark refused",
    ignored_prefixes=("benchmark_",),
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0, or 1 when a dispatch fails."""
    if devices.answer_queries(flags):
        return 0
    if "time_unit" not in flags.given:
        flags.values["time_unit"] = "ns"
    plan = benchmark.measuring_plan(flags)
    grids = [_grid(text) for text in flags.texts("workgroup_count")]
    with ExitStack() as stack:
        (device, *_) = opened = open_devices(flags, stack)
        stack.callback(show_statistics, flags, opened)
        executable = _load(device, flags)
        bindings = _bindings(device, flags.texts("binding"))
        context = machine_context()
        sys.stderr.write(machine_header(context))
        rows: list[BenchmarkRow] = []
        failed = False
        for grid in grids:
            name = f"BM_dispatch_{'x'.join(map(str, grid))}/process_time/real_time"
            made: list[BenchmarkRow]
            try:
                batch = _batch(device, executable, grid, bindings, flags)
                made, failure = measure(Benchmark(name, batch), plan)
            except StatusError as error:
                made, failure = [BenchmarkRow(name, name, 0, 0, 0, error_message=error_line(error))], error
            rows += made + aggregates(made)
            if failure is not None:
                failed = True
                print(error_line(failure), file=sys.stderr)
        benchmark.write_report(rows, context, flags)
    return int(failed)


def _grid(text: str) -> tuple[int, int, int]:
    match = _GRID.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"flag '--workgroup_count': '{text}' is not of the form <x>,<y>,<z>")
    return int(match[1]), int(match[2]), int(match[3])


def _load(device: Device, flags: ParsedFlags) -> Executable:
    from jitree.hal.enums import CachingMode
    from jitree.hal.executable import ExecutableParameters
    from jitree.loaders.processor_needs import need_of_executable

    path = flags.text("executable_file")
    if not path or not flags.text("executable_format"):
        raise InvalidArgumentError(
            "no executable was given: --executable_format=embedded-elf-x86_64 --executable_file=<file>"
        )
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        pass_interruption(error)
        raise NotFoundError(f"cannot read '{path}': {error.strerror}{near_path(path)}") from None
    format = flags.text("executable_format")
    need = need_of_executable(memoryview(data), format)
    if need is not None:
        raise FailedPreconditionError(f"'{path}' {need.refusal()}")
    constants = tuple(_constants(flags, "executable_constant"))
    parameters = ExecutableParameters(format, memoryview(data), constants, CachingMode.ALIAS_PROVIDED_DATA)
    return device.create_executable_cache("benchmark").prepare_executable(parameters)


def _constants(flags: ParsedFlags, name: str) -> list[int]:
    """32-bit words; negative numbers as they lie in memory."""
    return [parse_integer(text, -(_WORD >> 1), _WORD - 1) % _WORD for text in flags.texts(name)]


def _bindings(device: Device, texts: Sequence[str]) -> list[BufferRange]:
    from jitree.api.calls.transfers import copy_to_device
    from jitree.hal.command_buffer import BufferRange
    from jitree.types import BY_NAME

    ranges = []
    with ValueFiles() as files:
        for value in (value for text in texts for value in parse_value(text, "r", files)):
            if not isinstance(value, HostTensor):
                raise InvalidArgumentError(
                    "flag '--binding': a binding is <shape>x<type>[=<values>] or a file"
                )
            view = copy_to_device(value.data, BY_NAME["ui8"], device)
            ranges.append(BufferRange(0, view.buffer, 0, value.data.nbytes))
    return ranges


def _batch(
    device: Device,
    executable: Executable,
    grid: tuple[int, int, int],
    bindings: Sequence[BufferRange],
    flags: ParsedFlags,
) -> Callable[[], None]:
    """Runs one command buffer with a batch of dispatches, and waits for it."""
    from jitree.hal.command_buffer import CommandBufferMode, CommandCategory
    from jitree.hal.fence import Fence

    commands = device.create_command_buffer(CommandBufferMode.DEFAULT, CommandCategory.DISPATCH)
    for _ in range(flags.integer("batch_size")):
        commands.dispatch(
            executable, flags.integer("entry_point"), grid, _constants(flags, "constant"), bindings
        )
        commands.execution_barrier(_DISPATCHES, _DISPATCHES)
    commands.finalize()

    def run() -> None:
        signal = Fence.create(device)
        device.queue_execute(-1, None, signal, commands)
        signal.wait()

    return run
