"""What ``jitree diff`` and ``jitree reduce`` share: from flags to two programs and their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from jitree.compare.peers.onnx_models import is_onnx
from jitree.errors import InvalidArgumentError, error_context
from jitree.tools import host_values as hv
from jitree.tools.flags import ParsedFlags
from jitree.tools.number_parsing import parse_float
from jitree.tools.program import task_parameters
from jitree.tools.value_files import ValueFiles
from jitree.tools.values import parse_values

if TYPE_CHECKING:
    from jitree.api.function import Function

GROUPS: Final = "module function input device parameter compare"
_TASK: Final = "local-task"


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
    from jitree.tools.calling import argument_kinds

    module, device, options = programs[0]
    with ValueFiles() as files, Session(device, **options) as session:
        function: Function = function_of(session.load(module), flags.text("function") or None)
        with error_context(f"`{function.declaration}`"):
            values: Sequence[hv.HostValue] = parse_values(
                flags.texts("input"), argument_kinds(function), files
            )
    return [hv.python_value(value) for value in values]
