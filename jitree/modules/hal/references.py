"""Check the types of reference arguments of ``hal``.

Programs pass references without static types: any of them may be null or of another type. A row of an import
table declares its parameters by name and type; :func:`checked` tests them in front of the implementation.
Machine code has done that in most calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jitree.errors import InternalError, InvalidArgumentError
from jitree.modules.import_rows import ImportRow, Parameter, parse_parameters
from jitree.regs.ref_types import BUFFER_NAME, stated_type

HAL_TYPES: Final = (
    "hal.allocator", "hal.buffer", "hal.buffer_view", "hal.channel", "hal.command_buffer",
    "hal.descriptor_set_layout", "hal.device", "hal.event", "hal.executable", "hal.fence", "hal.file",
    "hal.pipeline_layout", "hal.semaphore",
)  # fmt: skip
"""The reference types of the module."""


def type_name(value: object) -> str:
    """The reference type of an object for messages."""
    return stated_type(value) or type(value).__name__


def _check(value: object, kind: str, function: str, parameter: str) -> None:
    """Raises INVALID_ARGUMENT for null, unless ``kind`` ends in ``?``, and for another type."""
    if value is None:
        if not kind.endswith("?"):
            raise InvalidArgumentError(f"ref is null; {function} needs a {kind} as {parameter}")
    elif stated_type(value) != kind.removesuffix("?"):
        raise InvalidArgumentError(
            f"ref type mismatch; {function} needs a {kind.removesuffix('?')} as {parameter} but got a "
            f"{type_name(value)}"
        )


def checked(row: ImportRow) -> Callable[..., Any]:
    """The row's function after tests of its reference arguments."""
    full_name, function = row.full_name, row.implementation()
    tests = _tests(parse_parameters(row.parameters))

    def call(state: object, *arguments: Any) -> object:
        for index, position, kind, name in tests:
            argument = arguments[index]
            if position is None:
                if getattr(type(argument), "VM_TYPE", None) != kind:
                    _check(argument, kind, full_name, name)
                continue
            for item in argument:
                _check(item if position < 0 else item[position], kind, full_name, name)
        return function(state, *arguments)

    return call if tests else function


def _tests(parameters: Sequence[Parameter | list[Parameter]]) -> list[tuple[int, int | None, str, str]]:
    """What references among arguments have to be, and where they are: the argument's number, and None (the
    argument itself), a field of each item of a span, by number, or -1 (the item)."""
    tests: list[tuple[int, int | None, str, str]] = []
    for index, parameter in enumerate(parameters):
        span = parameter if isinstance(parameter, list) else [parameter]
        for position, (name, kind) in enumerate(span):
            if kind is None:
                continue
            if kind.removesuffix("?") not in (*HAL_TYPES, BUFFER_NAME):
                raise InternalError(f"an import declares the unknown reference type {kind}")
            place = None if span is not parameter else position if len(span) > 1 else -1
            tests.append((index, place, kind, name))
    return tests
