"""Packs Python numbers, and lists, as values and lists of the VM."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter, width_of
from jitree.api.calls.refusal import refused
from jitree.api.calls.transfers import native_row
from jitree.base.arguments import is_masked
from jitree.base.elements import is_float
from jitree.errors import StatusError, own_error, pass_interruption
from jitree.regs.layout import LIST_F32, LIST_F64, LIST_I64, LIST_VARIANT, VALUE_TYPE_CODES
from jitree.regs.list import VmList
from jitree.regs.ref_types import to_bits
from jitree.types import BY_NAME

if TYPE_CHECKING:
    import numpy.typing as npt

NUMBER_BITS: Final = {"i": 32, "I": 64, "f": 32, "F": 64}
"""Width of the numbers of a calling convention."""

F32_MAX: Final = float.fromhex("0x1.fffffep127")
_F64_EXACT: Final = 1 << 53

Pack = Callable[[Any], Any]

_CODES: Final[dict[type, int]] = {int: LIST_I64, float: LIST_F64}
_PASSED_AS: Final = {"i8": "i", "i16": "i", "i32": "i", "i64": "I", "f32": "f", "f64": "F"}
"""Element types of lists of numbers, and how the VM passes such a number."""
ANYTHING: Final = "?"
LIST_CODES: Final = {**VALUE_TYPE_CODES, ANYTHING: LIST_VARIANT}
"""By element type the LIST_* code of a list."""


class NumberPacker(Protocol):
    def pack(self, value: Any) -> int | float: ...


def number_packer(parameter: Parameter, character: str) -> NumberPacker:
    """The packer of a number that the calling convention passes as ``character``."""
    if character in "fF":
        return SinglePacker(parameter) if character == "f" else DoublePacker(parameter)
    narrow = narrow_float(parameter.type)
    if narrow is not None:
        return FloatBitsPacker(parameter, narrow)
    return IntegerPacker(parameter, NUMBER_BITS[character])


def _scalar(value: object) -> object:
    """Returns the element of a rank 0 array, None if masked. Python takes a masked one as an index; anything
    else as it is."""
    if is_masked(value):
        return None
    if isinstance(value, (np.ndarray, Array)) and value.ndim == 0:
        return np.asarray(value)[()]
    return value


def _is_float(number: object) -> TypeGuard[float]:
    """Whether it is a float of Python, numpy or ml_dtypes."""
    if isinstance(number, (float, np.floating)):
        return True
    row = native_row(number.dtype) if isinstance(number, np.generic) else None
    return row is not None and is_float(row)


class IntegerPacker:
    """Packs an integer of a declared width, as the VM holds it. It is sign extended to 32 or 64 bits.

    Takes whatever has that integer value exactly. Types without a sign hold signed values, as results show
    them; of numpy's unsigned integers of their width they take the bits, as tensors do.
    """

    __slots__ = ("_carrier", "_high", "_low", "_name", "_type", "_unchanged_high", "_wrap")

    def __init__(self, parameter: Parameter, storage_bits: int) -> None:
        declared = parameter.type
        bits = min(width_of(declared) or storage_bits, storage_bits)
        unsigned, signed = declared.startswith("ui"), declared.startswith("si")
        self._name = parameter.name
        self._type = declared
        is_natural = unsigned or bits == 1
        self._low = 0 if is_natural else -(1 << (bits - 1))
        self._high = (1 << bits) - 1 if is_natural else (1 << (bits - 1)) - 1
        self._unchanged_high = self._high if bits < storage_bits else (1 << (bits - 1)) - 1
        self._wrap = 1 << bits
        self._carrier = None if is_natural or signed else f"uint{bits}"
        """The name of numpy's type whose bits are taken."""

    @property
    def unchanged(self) -> tuple[int, int]:
        """Returns the least and largest value that registers keep."""
        return self._low, self._unchanged_high

    def pack(self, value: Any) -> int:
        integer: int = value if type(value) is int else self._integer(value)
        if not self._low <= integer <= self._high:
            raise refused(self._name, self._type, value, self._range(integer))
        return integer if integer <= self._unchanged_high else integer - self._wrap

    def _range(self, integer: int) -> str:
        text = f"; it takes {self._low} to {self._high}"
        if self._carrier is None or not self._high < integer < self._wrap:
            return text
        return f"{text}, and the bits of numpy.{self._carrier}({integer})"

    def _integer(self, value: object) -> int:
        number = _scalar(value)
        if isinstance(number, (float, np.floating)) and math.isfinite(number) and number == int(number):
            return int(number)
        if isinstance(number, (bool, np.bool_)):
            return int(number)
        try:
            integer = operator.index(number)  # type: ignore[arg-type]
        except TypeError as error:
            pass_interruption(error)
            raise refused(self._name, self._type, value) from own_error(error)
        is_carried = isinstance(number, np.unsignedinteger) and number.dtype.name == self._carrier
        return integer - self._wrap if is_carried and integer > self._high else integer


class DoublePacker:
    """An f64. Integers must be exact."""

    __slots__ = ("_name", "_type")

    def __init__(self, parameter: Parameter) -> None:
        self._name = parameter.name
        self._type = parameter.type

    def pack(self, value: Any) -> float:
        if type(value) is float:
            return value
        return self._float(value)

    def _float(self, value: object) -> float:
        number = _scalar(value)
        if _is_float(number):
            wide = float(number)
            if math.isinf(wide) and number != wide:
                raise refused(self._name, self._type, value, "; it is too large")
            return wide
        if isinstance(number, np.timedelta64):  # numpy derives it from integers
            raise refused(self._name, self._type, value)
        if isinstance(number, (int, np.integer, np.bool_)):
            integer = int(number)
            if abs(integer) <= _F64_EXACT or (
                integer.bit_length() <= 1024 and int(float(integer)) == integer
            ):
                return float(integer)
            raise refused(self._name, self._type, value, "; it has no such value")
        raise refused(self._name, self._type, value)


class SinglePacker(DoublePacker):
    """An f32, or a narrower float. Floats are rounded, but not to infinity; integers must be exact."""

    __slots__ = ("_dtype",)

    def __init__(self, parameter: Parameter, dtype: npt.DTypeLike = np.float32) -> None:
        super().__init__(parameter)
        self._dtype: np.dtype[Any] = np.dtype(dtype)

    def pack(self, value: Any) -> float:
        if type(value) is float and -F32_MAX <= value <= F32_MAX:
            return value
        return self._rounded(value)

    def _rounded(self, value: object) -> float:
        number = self._float(value)
        if not math.isfinite(number):
            return number
        with np.errstate(over="ignore"):
            rounded = float(np.array(number).astype(self._dtype))
        if not math.isfinite(rounded):
            raise refused(self._name, self._type, value, "; it is too large")
        if rounded != number and isinstance(_scalar(value), int | np.integer):
            raise refused(self._name, self._type, value, "; it has no such value")
        return rounded


class FloatBitsPacker(SinglePacker):
    """A float below 32 bits, whose bits programs keep in a 32-bit integer."""

    __slots__ = ()

    def pack(self, value: Any) -> int:
        if isinstance(value, np.generic) and value.dtype == self._dtype:
            bits = value.tobytes()
        else:
            bits = np.array(self._rounded(value)).astype(self._dtype).tobytes()
        return int.from_bytes(bits, "little")


def narrow_float(declared: str) -> np.dtype[Any] | None:
    """The dtype of a declared float below 32 bits."""
    row = BY_NAME.get(declared)
    return row.dtype if row is not None and is_float(row) and row.bits < 32 else None


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
