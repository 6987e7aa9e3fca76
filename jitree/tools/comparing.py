"""Compares two programs, or reduces one to its wrong dispatch: ``jitree diff``, ``reduce``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jitree.compare.peers import is_onnx
from jitree.errors import InvalidArgumentError
from jitree.tools import values as hv
from jitree.tools.element_parsing import parse_float
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.observe_flags import check_finite
from jitree.tools.program import task_parameters
from jitree.tools.values import ValueFiles

if TYPE_CHECKING:
    from jitree.api.function import Function

GROUPS: Final = "module interpreter function input device parameter compare"
_TASK: Final = "local-task"

DIFF_FLAGS: Final = flag_set(
    "diff", "calls two programs with the same values and finds where they depart", GROUPS, positional="module"
)

REDUCE_FLAGS: Final = flag_set(
    "reduce",
    "writes the one dispatch of a call that is wrong (against a second program), not finite or failing",
    f"{GROUPS} finite",
    positional="module",
)


def two_sides(flags: ParsedFlags) -> tuple[Any, Any]:
    """Two modules, or one on two devices."""
    modules, devices = flags.texts("module"), flags.texts("device")
    if (
        not 1 <= len(modules) <= 2
        or len(devices) > 2
        or len(modules) + len(devices) < 3 - (len(modules) == 2)
    ):
        raise InvalidArgumentError(
            "two are compared: name two modules (--device= is of both, or one each), or one and two devices"
        )
    if len(devices) == 2 and any(map(is_onnx, modules)):
        raise InvalidArgumentError("onnxruntime runs ONNX models: --device= is that of the module")
    devices = devices or [""]
    return side(flags, modules[0], devices[0]), side(flags, modules[-1], devices[-1])


def side(flags: ParsedFlags, module: str, device: str | None) -> Any:
    """A program; the path of an ONNX model, which another runtime runs."""
    if is_onnx(module):
        return module
    from jitree.dispatch.context import ContextFlags
    from jitree.params import Mode, open_providers

    parameters = task_parameters(flags)
    if device == _TASK and parameters:
        device = f"{device}?{urlencode(parameters)}"
    options: dict[str, Any] = {
        "tier": flags.text("tier") or None, "arithmetic": flags.text("arithmetic"),
        "prefer": flags.text("prefer") or None,
    }  # fmt: skip
    if flags.boolean("trace_execution"):
        options["flags"] = ContextFlags.TRACE_EXECUTION
    if flags.texts("parameters"):
        options["parameters"] = open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode")))
    return module, device or None, options


def allowed(flags: ParsedFlags) -> dict[str, Any]:
    """The tolerances that are given."""
    found: dict[str, float] = {}
    for name in ("atol", "rtol", "ulp"):
        text = flags.optional(name)
        if text is not None:
            try:
                found[name] = parse_float(text)
            except InvalidArgumentError:
                raise InvalidArgumentError(f"flag '{name}': expected a number but got '{text}'") from None
    return found


def inputs_of(sides: Sequence[Any], flags: ParsedFlags) -> list[Any]:
    """Arguments as Python programs have them."""
    programs = [one for one in sides if isinstance(one, tuple)]
    if not programs:
        raise InvalidArgumentError("one of the two is to be a compiled module: it tells the types of inputs")
    from jitree.api.session import Session
    from jitree.compare.sides import function_of
    from jitree.tools.calling import parse_inputs

    module, device, options = programs[0]
    with ValueFiles() as files, Session(device, **options) as session:
        function: Function = function_of(session.load(module), flags.text("function") or None)
        values = parse_inputs(function, flags.texts("input"), files)
    return [hv.python_value(value) for value in values]


@command(DIFF_FLAGS)
def diff_main(flags: ParsedFlags) -> int:
    """Returns 0, or 1 where the two depart."""
    from jitree.compare.differences import diff

    sides = two_sides(flags)
    found = diff(*sides, flags.text("function") or None, inputs_of(sides, flags), **allowed(flags))
    if flags.text("save") and not found.equal:
        found.save(flags.text("save"))
    sys.stdout.write(f"{found}\n")
    if found.equal:
        return 0
    sys.stdout.write(f"{found.table()}\n")
    for name, alone in zip("ab", found.alone, strict=True):
        sys.stdout.writelines(f"only {name} has {label}\n" for label in alone)
    return 1


@command(REDUCE_FLAGS)
def reduce_main(flags: ParsedFlags) -> int:
    """Returns 0 when the reproduction is written."""
    from jitree.compare.reduction import reduce

    folder, modules, devices = flags.text("save"), flags.texts("module"), flags.texts("device")
    if not folder:
        raise InvalidArgumentError("no folder was given: --save=FOLDER")
    if len(modules) == 1 and len(devices) < 2:
        one, other = side(flags, modules[0], devices[0] if devices else ""), None
    else:
        one, other = two_sides(flags)
    name, inputs = flags.text("function") or None, inputs_of((one, other), flags)
    text = reduce(
        one, folder, name, inputs, against=other, check_finite=check_finite(flags) or True, **allowed(flags)
    )
    sys.stdout.write(f"{text}\nwritten to {folder}: run.py runs it alone\n")
    return 0
