"""Check the types of reference arguments of ``hal``.

Programs pass references without static types: any of them may be null or of another type. A row of an import
table declares its parameters by name and type; :func:`checked` tests them in front of the implementation, at
the cost of a set look-up each. Machine code has done that in most calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


class AcceptedClasses(set[type]):
    """Classes known to be of one reference type; grows as objects of new subclasses come by."""

    def __init__(self, name: str, nullable: bool) -> None:
        super().__init__({type(None)} if nullable else set())
        self.name = name

    def accept(self, value: object, function: str, parameter: str) -> None:
        """Takes in the class of ``value``, or raises INVALID_ARGUMENT: it is null or of another type."""
        if stated_type(value) == self.name:
            self.add(type(value))
        elif value is None:
            raise InvalidArgumentError(f"ref is null; {function} needs a {self.name} as {parameter}")
        else:
            raise InvalidArgumentError(
                f"ref type mismatch; {function} needs a {self.name} as {parameter} but got a "
                f"{type_name(value)}"
            )


def type_name(value: object) -> str:
    """The reference type of an object for messages."""
    return stated_type(value) or type(value).__name__


class _KnownTypes(dict[str, AcceptedClasses]):
    """The classes of each declared type, once something declares it: programs use few of them."""

    def __missing__(self, kind: str) -> AcceptedClasses:
        name = kind.removesuffix("?")
        if name not in (*HAL_TYPES, BUFFER_NAME):
            raise InternalError(f"an import declares the unknown reference type {kind}")
        return self.setdefault(kind, AcceptedClasses(name, nullable=name != kind))


_ACCEPTED: Final = _KnownTypes()


def checked(row: ImportRow) -> Callable[..., Any]:
    """The row's function after tests of its reference arguments."""
    full_name, function = row.full_name, row.implementation()
    tests = [
        (index, *test)
        for index, parameter in enumerate(parse_parameters(row.parameters))
        for test in _tests(parameter)
    ]

    def call(state: object, *arguments: Any) -> object:
        for index, position, accepted, name in tests:
            argument = arguments[index]
            if position is None:
                if type(argument) not in accepted:
                    accepted.accept(argument, full_name, name)
                continue
            for item in argument:
                value = item if position < 0 else item[position]
                if type(value) not in accepted:
                    accepted.accept(value, full_name, name)
        return function(state, *arguments)

    return call if tests else function


def _tests(parameter: Parameter | list[Parameter]) -> Iterator[tuple[int | None, AcceptedClasses, str]]:
    """What references of a parameter have to be, and where they are.

    None: the argument itself; a field of each item of a span, by number; -1: the item."""
    span = parameter if isinstance(parameter, list) else [parameter]
    for position, (name, kind) in enumerate(span):
        if kind is not None:
            place = None if span is not parameter else position if len(span) > 1 else -1
            yield place, _ACCEPTED[kind], name
