"""Calls a function of a compiled module: ``jitree run``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from jitree.base.cancel_scopes import deadline
from jitree.errors import error_context
from jitree.tools import devices, outputs
from jitree.tools import values as hv
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.observe_flags import looking_into, profiling, require_finite, warm_up
from jitree.tools.outputs import write_outputs
from jitree.tools.program import OpenedProgram, find_function, open_program
from jitree.tools.values import ValueFiles, of_kind, parse_value, parse_values

if TYPE_CHECKING:
    from jitree.api.function import Function

FLAGS: Final = flag_set(
    "run",
    "calls a function of a compiled module and prints, stores or checks its results",
    "module packed sandbox deadline function input value device parameter seeing profiling profiled refused",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0, or 1 when results differ from what was expected."""
    if devices.answer_queries(flags):
        return 0
    with open_program(flags) as program, ValueFiles() as files:
        return _run(program, flags, files)


def _run(program: OpenedProgram, flags: ParsedFlags, files: ValueFiles) -> int:
    from jitree.tools.calling import argument_kinds, prepare

    with error_context("creating run context"):
        function = find_function(program, flags.text("function"))
    with error_context(f"`{function.declaration}`"):
        inputs = parse_values(flags.texts("input"), argument_kinds(function), files)
    sys.stdout.write(f"EXEC @{function.name}\n")
    sys.stdout.flush()
    prepared = prepare(function, inputs)
    session = program.session
    first = warm_up(session, prepared, flags)
    with profiling(session, flags), looking_into(session, flags), deadline(flags.number("timeout")):
        called = prepared.call()
        require_finite(session, called)
        results = first or prepared.to_host(called)
    with error_context(f"`{function.declaration}`"), error_context("processing function outputs"):
        return finish(function, results, flags, files)


def finish(function: Function, results: list[hv.HostValue], flags: ParsedFlags, files: ValueFiles) -> int:
    """Prints, stores or checks the results of a call; returns the exit code."""
    limit = flags.integer("output_max_element_count")
    if "expected_output" not in flags.given:
        with error_context("outputting results"):
            write_outputs(results, flags.texts("output"), limit, sys.stdout.write)
        return 0
    wanted = _parse_expected(function, flags.texts("expected_output"), files)
    failures = outputs.compare(results, wanted, tolerances(flags), limit)
    sys.stdout.write("".join(failures) or outputs.SUCCESS)
    return 1 if failures else 0


def _parse_expected(function: Function, texts: Sequence[str], files: ValueFiles) -> list[hv.HostValue]:
    """Expected values; texts beyond the number of results are read as tensors and counted later."""
    from jitree.tools.calling import result_kinds

    kinds = result_kinds(function)
    values: list[hv.HostValue] = []
    for text in texts:
        with error_context("parsing expected function outputs"), error_context(f"parsing input `{text}`"):
            parsed = parse_value(text, kinds[len(values)] if len(values) < len(kinds) else "r", files)
            rest = (*kinds[len(values) :], *repeat("r", len(parsed)))
            values += [of_kind(*pair) for pair in zip(parsed, rest, strict=False)]
    return values


def tolerances(flags: ParsedFlags) -> outputs.Tolerances:
    """How close results have to be."""
    if flags.text("equality_mode") == "exact":
        return outputs.EXACT
    types = ("f16", "bf16", "f32", "f64")
    absolute = {name: flags.number(f"expected_{name}_threshold") for name in types}
    return outputs.Tolerances(absolute, flags.number("expected_rtol"))
