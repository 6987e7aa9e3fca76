"""Measures how long functions of modules and of executables take: ``jitree benchmark``."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitree import errors
from jitree.base.arguments import text_of
from jitree.base.near_names import near_path
from jitree.tools import devices
from jitree.tools.benchmark_report import (
    Benchmark,
    BenchmarkRow,
    Duration,
    MeasuringPlan,
    ReportLayout,
    aggregates,
    machine_context,
    machine_header,
    measure,
    parse_duration,
    render,
)
from jitree.tools.element_parsing import parse_integer
from jitree.tools.flags import ParsedFlags, command, flag_set, whole_file
from jitree.tools.observe_flags import is_profiled, profiling, wait_for_compiled_code
from jitree.tools.program import OpenedProgram, find_function, open_devices, open_program, show_statistics
from jitree.tools.reporting import error_line, in_colours, use_colours
from jitree.tools.run import finish
from jitree.tools.values import HostTensor, ValueFiles, parse_value

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.hal.command_buffer import BufferRange
    from jitree.hal.device import Device
    from jitree.hal.executable import Executable
    from jitree.tools.calling import PreparedCall, Submission

    Call = Callable[[], Any]


_BENCHMARK: Final = "iree.benchmark"
"""The attribute that says what a function which the compiler made for measuring measures."""
_DISPATCH: Final = "dispatch"
"""One dispatch, as often as the function's argument says."""
_ENTRY: Final = "entry"
"""A function of the program, with inputs that the compiler chose."""


def dispatch_rows(
    function: Function, batch: Callable[[], object], calls: int, batch_size: int
) -> list[BenchmarkRow]:
    """Rows of ``--dispatch_statistics``: each dispatch with its time in one call, in a pass of as many calls
    as were measured."""
    batches = max(1, calls // batch_size)
    calls = batches * batch_size
    with function.session.profile() as profile:
        for _ in range(batches):
            batch()
    table = profile.table()
    if not len(table):
        print(f"jitree: no dispatch was measured: {table.note or 'the program has none'}", file=sys.stderr)
    whole = sum(row.total for row in table)
    rows = []
    for row in table:
        name = f"BM_{function.name}/{row.name}"
        counters = {"calls": row.calls / calls, "percent": 100 * row.total / whole}
        busy = row.total * (row.threads or 1.0)
        rows.append(BenchmarkRow(name, name, calls, row.total / calls, busy / calls, counters=counters))
    return rows


FLAGS: Final = flag_set(
    "benchmark",
    "measures how long functions of a compiled module take",
    "module interpreter packed function input value device parameter profiling batches benchmark refused",
    positional="module",
    ignored_prefixes=("benchmark_",),
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0, or 1 when a benchmark fails."""
    if devices.answer_queries(flags):
        return 0
    if flags.boolean("dispatch_statistics") and is_profiled(flags):
        raise errors.InvalidArgumentError("--dispatch_statistics cannot be combined with other profiles")
    plan = measuring_plan(flags)
    with open_program(flags) as program, ValueFiles() as files:
        return _run(program, plan, flags, files)


def measuring_plan(flags: ParsedFlags) -> MeasuringPlan:
    """How often and how long the flags want to measure."""
    for name in ("batch_size", "batch_concurrency", "benchmark_repetitions"):
        if name in flags.values and flags.integer(name) < 1:
            raise errors.InvalidArgumentError(f"flag '--{name}': {flags.integer(name)} is less than 1")
    duration = parse_duration(flags.text("benchmark_min_time"))
    if flags.text("benchmark_out"):
        _write(flags.text("benchmark_out"), "")  # before it measures for a report that cannot be written
    if flags.boolean("benchmark_dry_run"):
        return MeasuringPlan(Duration(iterations=1), batch_size=flags.integer("batch_size"))
    return MeasuringPlan(
        duration,
        flags.integer("benchmark_repetitions"),
        flags.number("benchmark_min_warmup_time"),
        flags.integer("batch_size"),
    )


def _write(path: str, text: str) -> None:
    with errors.system_refusals(f"unable to write file `{path}`"):
        Path(path).write_text(text)


def _run(program: OpenedProgram, plan: MeasuringPlan, flags: ParsedFlags, files: ValueFiles) -> int:
    functions = {
        f"BM_{function.name}/process_time/real_time": function
        for function in _functions(program, flags.text("function"))
    }
    if flags.boolean("enable_output_processing") and len(functions) != 1:
        raise errors.InvalidArgumentError(
            f"flag 'enable_output_processing' needs one function, here are {len(functions)}; use --function"
        )
    selected = _filtered(list(functions), flags.text("benchmark_filter"))
    if not selected:
        pattern = flags.text("benchmark_filter") or "."
        print(f"Failed to match any benchmarks against regex: {pattern}", file=sys.stderr)
        return 1  # where iree-benchmark-module gives 0: scripts are to see it
    if flags.boolean("benchmark_list_tests"):
        sys.stdout.write("".join(f"{name}\n" for name in selected))
        return 0
    context = machine_context() | _extra_context(flags)
    if flags.text("benchmark_format") != "json":  # which has it
        sys.stderr.write(machine_header(context))
    wait_for_compiled_code(program.session)
    rows: list[BenchmarkRow] = []
    failed = False
    last = LastResults() if flags.boolean("enable_output_processing") else None
    for name in selected:
        with profiling(program.session, flags):
            measured, failure = _measure(name, functions[name], plan, flags, files, last)
        rows += measured + aggregates([row for row in measured if row.name == name])
        if failure is not None:
            print(error_line(failure), file=sys.stderr)
            failed = True
    write_report(rows, context, flags)
    if last is not None and not failed:
        return last.process(functions[selected[0]], flags, files)
    return 1 if failed else 0


def _functions(program: OpenedProgram, name: str) -> list[Function]:
    """The named function; else every export that the compiler made to be measured or that takes nothing."""
    if name:
        return [find_function(program, name)]
    functions = [program.module[name] for name in program.module.names]
    return [function for function in functions if _is_measurable(function)]


def _is_measurable(function: Function) -> bool:
    if function.reflection.get(_BENCHMARK) in (_DISPATCH, _ENTRY):
        return True
    return "$" not in function.name and not function.arguments


def _is_repeating(function: Function, flags: ParsedFlags) -> bool:
    """Tells whether a function takes the batch's size and makes all its calls itself. Named, it is measured
    as any other, with the inputs that are given."""
    return not flags.text("function") and function.reflection.get(_BENCHMARK) == _DISPATCH


def _filtered(names: Sequence[str], pattern: str) -> list[str]:
    """The names that a regular expression matches somewhere; ``-`` in front takes the others."""
    wanted = not pattern.startswith("-")
    try:
        expression = re.compile(pattern.removeprefix("-"))
    except re.error as error:
        raise errors.InvalidArgumentError(f"flag '--benchmark_filter': '{pattern}': {error}") from None
    return [name for name in names if (expression.search(name) is not None) == wanted]


def _extra_context(flags: ParsedFlags) -> dict[str, str]:
    pairs = {}
    for text in flags.texts("benchmark_context"):
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise errors.InvalidArgumentError(f"flag '--benchmark_context': '{text}' is not <key>=<value>")
        pairs[key] = value
    return pairs


# -- one benchmark -----------------------------------------------------------------------------------


class LastResults:
    """What the call that was measured last returned, for `--output` and `--expected_output`."""

    def __init__(self) -> None:
        self._prepared: PreparedCall | None = None
        self._results: Any = None
        self._is_python = False

    def keep_from(self, prepared: PreparedCall) -> tuple[Call, Submission]:
        """The two ways to call a function, which leave their results here: as the VM gives them where Python
        programs get lists, which do not say what their elements are; those calls take longer."""
        self._prepared = prepared
        self._is_python = prepared.is_plain
        call = prepared.python_call() if prepared.is_plain else prepared.call
        submission, wait = _submission(prepared)

        def kept_call() -> Any:
            self._results = None  # those of the call before die first, as without this
            self._results = call()
            return self._results

        def kept_start() -> Any:
            started = submission()()
            self._is_python = prepared.shows_its_end
            self._results = started if self._is_python else started[0]
            return started

        return kept_call, (lambda: kept_start, wait)

    def process(self, function: Function, flags: ParsedFlags, files: ValueFiles) -> int:
        """Prints, stores or checks the results; returns the exit code."""
        assert self._prepared is not None
        with (
            errors.error_context(f"`{function.declaration}`"),
            errors.error_context("processing function outputs"),
        ):
            results = self._prepared.vm_results(self._results) if self._is_python else self._results
            return finish(function, self._prepared.to_host(results), flags, files)


def _measure(
    name: str,
    function: Function,
    plan: MeasuringPlan,
    flags: ParsedFlags,
    files: ValueFiles,
    last: LastResults | None,
) -> tuple[list[BenchmarkRow], errors.StatusError | None]:
    from jitree.tools.calling import PreparedCall, parse_inputs

    is_repeating = _is_repeating(function, flags)
    texts = [str(plan.batch_size)] if is_repeating else flags.texts("input")
    inputs = parse_inputs(function, texts, files)
    try:
        prepared = PreparedCall(function, inputs)
    except errors.StatusError as error:
        return [BenchmarkRow(name, name, 0, 0.0, 0.0, error_message=error_line(error))], error
    call, submission = prepared.python_call(), _submission(prepared)
    if last is not None:
        call, submission = last.keep_from(prepared)
    concurrency = flags.integer("batch_concurrency") if function.signature.fences else 1
    batch = _batch(call, submission, 1 if is_repeating else plan.batch_size, concurrency)
    is_settled = partial(getattr, function, "is_settled")
    rows, failure = measure(Benchmark(name, batch, is_settled), plan)
    if is_repeating:  # as in the reference, whatever unit the report has
        rows = [replace(row, unit="us") for row in rows]
    if failure is None and flags.boolean("dispatch_statistics"):
        rows += dispatch_rows(function, batch, sum(row.iterations for row in rows), plan.batch_size)
    return rows, failure


def _submission(prepared: PreparedCall) -> Submission:
    """Begins a call as Python programs do that can wait, which takes less time."""
    return prepared.python_start() if prepared.shows_its_end else prepared.start()


def _batch(
    call: Callable[[], object], submission: Submission, size: int, concurrency: int
) -> Callable[[], object]:
    """Makes the calls of a batch and waits for results, which die while timed."""
    if size == 1:
        return call
    if concurrency == 1:

        def one_after_the_other() -> None:
            for _ in range(size):
                call()

        return one_after_the_other

    submit, wait = submission
    places = [index % concurrency for index in range(size - concurrency)]

    def overlapping() -> None:
        start = submit()
        running = [start() for _ in range(min(size, concurrency))]
        for place in places:  # of the one that has begun first
            wait(running[place])
            running[place] = start()
        for started in running:
            wait(started)

    return overlapping


# -- reports -----------------------------------------------------------------------------------------


def write_report(rows: Sequence[BenchmarkRow], context: dict[str, Any], flags: ParsedFlags) -> None:
    """Prints the report, and writes it to the file that the flags name."""
    unit = flags.text("benchmark_time_unit") or flags.text("time_unit")
    layout = ReportLayout(unit, flags.boolean("benchmark_counters_tabular"))
    repeated = flags.integer("benchmark_repetitions") > 1
    only_aggregates = repeated and flags.boolean("benchmark_report_aggregates_only")
    filed = _aggregated(rows) if only_aggregates else rows
    only_displayed = repeated and flags.boolean("benchmark_display_aggregates_only")
    shown = _aggregated(rows) if only_aggregates or only_displayed else rows
    if flags.text("benchmark_format") == "console":
        _colour(sys.stdout, flags.text("benchmark_color").lower())
    sys.stdout.write(render(flags.text("benchmark_format"), shown, lambda: context, layout))
    path = flags.text("benchmark_out")
    if path:
        _write(path, render(flags.text("benchmark_out_format"), filed, lambda: context, layout))


def _colour(stream: Any, choice: str) -> None:
    if choice == "auto":
        in_colours(stream)
    elif choice not in ("false", "no", "off", "0"):
        use_colours(stream, "")


def _aggregated(rows: Sequence[BenchmarkRow]) -> list[BenchmarkRow]:
    """The report without single measurements; failures stay."""
    return [row for row in rows if row.aggregate is not None or row.error_message is not None]


# -- Of one function of an executable --------------------------------------------------------------------


_WORD: Final = 1 << 32
_DISPATCHES: Final = 4
"""The stage of commands that dispatches are in."""
_GRID: Final = re.compile(r"(\d{1,9}),(\d{1,9}),(\d{1,9})", re.ASCII)

EXECUTABLE_FLAGS: Final = flag_set(
    "benchmark-executable",
    "measures how long dispatches of an executable take, without a module",
    "kernel interpreter device benchmark refused",
    ignored_prefixes=("benchmark_",),
)


@command(EXECUTABLE_FLAGS)
def executable_main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0, or 1 when a dispatch fails."""
    if devices.answer_queries(flags):
        return 0
    if "time_unit" not in flags.given:
        flags.values["time_unit"] = "ns"
    plan = measuring_plan(flags)
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
                batch = _dispatches(device, executable, grid, bindings, flags)
                made, failure = measure(Benchmark(name, batch), plan)
            except errors.StatusError as error:
                made, failure = [BenchmarkRow(name, name, 0, 0, 0, error_message=error_line(error))], error
            rows += made + aggregates(made)
            if failure is not None:
                failed = True
                print(error_line(failure), file=sys.stderr)
        write_report(rows, context, flags)
    return int(failed)


def _grid(text: str) -> tuple[int, int, int]:
    match = _GRID.fullmatch(text)
    if match is None:
        raise errors.InvalidArgumentError(
            f"flag '--workgroup_count': '{text}' is not of the form <x>,<y>,<z>"
        )
    return int(match[1]), int(match[2]), int(match[3])


def _load(device: Device, flags: ParsedFlags) -> Executable:
    from jitree.hal.enums import CachingMode
    from jitree.hal.executable import ExecutableParameters
    from jitree.loaders.processor_needs import need_of_executable

    path = flags.text("executable_file")
    if not path or not flags.text("executable_format"):
        raise errors.InvalidArgumentError(
            "no executable was given: --executable_format=embedded-elf-x86_64 --executable_file=<file>"
        )
    try:
        data = whole_file(path)
    except (OSError, ValueError) as error:  # the latter of a name that no file can have
        errors.pass_interruption(error)
        reason = error.strerror if isinstance(error, OSError) else text_of(error)
        raise errors.NotFoundError(f"cannot read '{path}': {reason}{near_path(path)}") from None
    format = flags.text("executable_format")
    need = need_of_executable(memoryview(data), format)
    if need is not None:
        raise errors.FailedPreconditionError(f"'{path}' {need.refusal()}")
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
                raise errors.InvalidArgumentError(
                    "flag '--binding': a binding is <shape>x<type>[=<values>] or a file"
                )
            view = copy_to_device(value.data, BY_NAME["ui8"], device)
            ranges.append(BufferRange(0, view.buffer, 0, value.data.nbytes))
    return ranges


def _dispatches(
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
