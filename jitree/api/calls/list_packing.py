"""Python's lists and tuples as lists of the VM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from jitree.api.calls.declaration import Parameter
from jitree.api.calls.number_packing import number_packer
from jitree.errors import StatusError
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I64, LIST_VARIANT, VALUE_TYPE_CODES
from jitree.regs.list import VmList
from jitree.regs.ref_types import to_bits

Pack = Callable[[Any], Any]

_CODES: Final[dict[type, int]] = {int: LIST_I64, float: LIST_F64}
_PASSED_AS: Final = {"i8": "i", "i16": "i", "i32": "i", "i64": "I", "f32": "f", "f64": "F"}
"""Element types of lists of numbers, and how the VM passes such a number."""
ANYTHING: Final = "?"
LIST_CODES: Final = {**VALUE_TYPE_CODES, ANYTHING: LIST_VARIANT}
"""By element type the LIST_* code of a list."""


def element_of(parameter: Parameter) -> str | None:
    """The element type of a list that may have numbers; None of other parameters."""
    element = parameter.type.partition("list<")[2].removesuffix(">")
    return element if element in LIST_CODES else None


def list_packer(parameter: Parameter, pack: Pack) -> Callable[[Sequence[Any]], VmList]:
    """The packer of a list; ``pack`` is that of elements that are no numbers."""
    element = element_of(parameter)
    if element is not None and element != ANYTHING:
        number = number_packer(Parameter(parameter.name, element), _PASSED_AS[element])
        return partial(_numbers, parameter.name, number.pack, VALUE_TYPE_CODES[element])
    integer = number_packer(Parameter(parameter.name, "i64"), "I")
    return partial(_anything, parameter.name, integer.pack, pack)


def _numbers(name: str, pack: Pack, code: int, values: Sequence[Any]) -> VmList:
    return _of_values(code, code, _packed(name, pack, values))


def _of_values(element_type: int, code: int, numbers: list[Any]) -> VmList:
    if code in (LIST_F32, LIST_F64):
        numbers = [to_bits(code, value) for value in numbers]
    return VmList.of_values(element_type, code, numbers)


def _anything(name: str, integer: Pack, pack: Pack, values: Sequence[Any]) -> VmList:
    """Integers become i64, floats f64."""

    def element(value: Any) -> object:
        if isinstance(value, int):
            return integer(value)
        return value if isinstance(value, float) else pack(value)

    elements = _packed(name, element, values)
    kinds = set(map(type, elements))
    if len(kinds) == 1 and not kinds.isdisjoint(_CODES):
        return _of_values(LIST_VARIANT, _CODES[kinds.pop()], elements)
    packed = VmList(capacity=len(values))
    for value in elements:
        packed.append(value)
    return packed


def _packed(name: str, pack: Pack, values: Sequence[Any]) -> list[Any]:
    packed: list[Any] = []
    try:
        for value in values:
            packed.append(pack(value))
    except StatusError as error:
        raise error.with_context(f"element {len(packed)} of the list for {name}") from None
    return packed
