"""Check the types of reference arguments of ``hal``.

Programs pass references without static types: any of them may be null or of another type. A row of an import
table declares its parameters by name and type; :func:`checked` generates the one function that tests
them in front of the implementation, at the cost of a set look-up each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jitree.errors import InternalError, InvalidArgumentError
from jitree.modules.import_rows import ImportRow, Parameter, parse_parameters
from jitree.regs.ref_types import BUFFER_NAME, stated_type
from jitree.vmfb.cconv import Span, parse

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


def call_once(row: ImportRow, state: object, *arguments: Any) -> object:
    """Calls a row's function after the same tests as :func:`checked`, with nothing prepared."""
    full_name = row.full_name
    for argument, parameter in zip(arguments, parse_parameters(row.parameters), strict=True):
        if not isinstance(parameter, list):
            _test(full_name, argument, parameter)
            continue
        for item in argument:
            for value, field in zip((item,) if len(parameter) == 1 else item, parameter, strict=True):
                _test(full_name, value, field)
    return row.implementation()(state, *arguments)


def _test(full_name: str, value: object, parameter: Parameter) -> None:
    name, kind = parameter
    if kind is not None and type(value) not in _ACCEPTED[kind]:
        _ACCEPTED[kind].accept(value, full_name, name)


def checked(row: ImportRow) -> Callable[..., Any]:
    """The row's function after tests of its reference arguments."""
    parameters = parse_parameters(row.parameters)
    _check_shape(row, parameters)
    names = [f"a{index}" for index in range(len(parameters))]
    function, scope = row.implementation(), dict[str, Any]()
    tests: list[str] = []
    for name, parameter in zip(names, parameters, strict=True):
        if isinstance(parameter, list):
            tests += _span_tests(row.full_name, name, parameter, scope)
        elif parameter[1] is not None:
            tests += _tests(row.full_name, name, parameter, scope, "    ")
    if not tests:
        return function
    scope["function"] = function
    arguments = ", ".join(["state", *names])
    lines = [f"def call({arguments}):", *tests, f"    return function({arguments})"]
    exec(compile("\n".join(lines), f"<checks of {row.full_name}>", "exec"), scope)
    return scope["call"]  # type: ignore[no-any-return]


def _tests(full_name: str, value: str, parameter: Parameter, scope: dict[str, Any], indent: str) -> list[str]:
    name, kind = parameter
    accepted = "of_" + (kind or "").replace(".", "_").replace("?", "_or_null")
    scope[accepted] = _ACCEPTED[kind or ""]
    return [
        f"{indent}if type({value}) not in {accepted}:",
        f"{indent}    {accepted}.accept({value}, '{full_name}', '{name}')",
    ]


def _span_tests(full_name: str, name: str, span: list[Parameter], scope: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for index, parameter in enumerate(span):
        if parameter[1] is not None:
            value = "item" if len(span) == 1 else f"item[{index}]"
            lines += _tests(full_name, value, parameter, scope, "        ")
    return [f"    for item in {name}:", *lines] if lines else []


def _check_shape(row: ImportRow, parameters: list[Parameter | list[Parameter]]) -> None:
    """The declared parameters must be those of the calling convention: a slip in a table must not hide."""
    expected = [
        list(item.characters) if isinstance(item, Span) else item for item in parse(row.cconv).arguments
    ]
    declared = [
        [_is_reference(field) for field in item] if isinstance(item, list) else _is_reference(item)
        for item in parameters
    ]
    stated = [
        [character == "r" for character in item] if isinstance(item, list) else item == "r"
        for item in expected
    ]
    if declared != stated:
        raise InternalError(f"parameters of import {row.name} do not match its convention {row.cconv}")


def _is_reference(parameter: Parameter) -> bool:
    return parameter[1] is not None
