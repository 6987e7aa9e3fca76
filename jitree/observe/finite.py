"""Finds the first dispatch that makes a non-finite value from finite ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import is_one_of, items, shown
from jitree.base.elements import is_float, is_integer
from jitree.base.events import DISPATCH
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, NonFiniteError
from jitree.observe.observation import Onlooker
from jitree.observe.tensors import DECLARED, GIVEN, GUESSED, ObservedDispatch, ObservedTensor
from jitree.observe.tolerance import bits_text, split

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.stepwise import Extent, Look
    from jitree.observe.export_names import TensorKind
    from jitree.observe.origins import Argument, ObservedCall
    from jitree.types import ElementType

_CERTAIN: Final = frozenset((DECLARED, GIVEN))
"""Sources of types that are known; for others the elements have to look like numbers."""
_SAMPLE: Final = 1 << 16
_PLAUSIBLE: Final = 0.75
"""Part of the elements that must be of usual size; random bits have less than half of them."""
_SMALL_NEGATIVE: Final = {2: 4, 4: 16, 8: 32}
"""By bytes of a number: the bits of an integer that begins with ones, which is NaN as a number."""
_LARGEST_KEPT: Final = 64 << 20
"""Bytes of inputs that an error keeps."""

Array = Any


class Fault(NamedTuple):
    """The first such element of a tensor."""

    coordinate: tuple[int, ...]
    value: float
    bits: str

    def __str__(self) -> str:
        return f"{self.value:g} at {self.coordinate} (bits {self.bits})"


class Check(NamedTuple):
    """One thing to look for."""

    name: str
    applies: Callable[[ElementType], bool]
    finds: Callable[[Array], Array]
    """Elements of a piece → whether each is one."""
    spread_by: Callable[[Array], Array]
    """… in inputs: where they have one, it is not the dispatch that made it."""


def _denormal(piece: Array) -> Array:
    import ml_dtypes

    return (piece != 0) & (abs(piece) < ml_dtypes.finfo(piece.dtype).smallest_normal)


def _saturated(piece: Array) -> Array:
    limits = np.iinfo(piece.dtype)
    return (piece == limits.max) | ((piece == limits.min) & (limits.min < 0))


def _not_finite(piece: Array) -> Array:
    return np.logical_not(np.isfinite(piece))


def _is_inexact(row: ElementType) -> bool:
    return is_float(row) or row.dtype.kind == "c"


def _is_narrow(row: ElementType) -> bool:
    return is_float(row) and row.bits <= 16


CHECKS: Final = {
    check.name: check
    for check in (
        Check("nan", _is_inexact, np.isnan, np.isnan),
        Check("infinity", _is_inexact, np.isinf, _not_finite),
        Check("overflow", _is_narrow, _not_finite, _not_finite),
        Check("denormals", is_float, _denormal, _denormal),
        Check("saturated", lambda row: is_integer(row) and row.bits >= 8, _saturated, _saturated),
    )
}
_NOT_FINITE: Final = ("nan", "infinity", "overflow")
"""Checks that find nothing where all is finite."""
INPUTS: Final = "inputs"
DEFAULT: Final = ("nan", "infinity")


def choice_of(check_finite: bool | str | Iterable[str]) -> tuple[str, ...]:
    """Names of checks; True means DEFAULT, "inputs" these and arguments. INVALID_ARGUMENT for others."""
    if isinstance(check_finite, bool):
        return DEFAULT if check_finite else ()
    names = (check_finite,) if isinstance(check_finite, str) else items("check_finite", check_finite)
    for name in names:
        if not is_one_of(name, (INPUTS, *CHECKS)):
            known = ", ".join([INPUTS, *CHECKS])
            raise InvalidArgumentError(
                f"check_finite: expected True or some of {known} but got {shown(name)}"
            )
    return (*names, *DEFAULT) if set(names) == {INPUTS} else names


class FiniteCheck(Onlooker):
    """Raises NonFiniteError in the first dispatch that makes what is looked for."""

    needs_changes = True

    def __init__(self, names: Sequence[str]) -> None:
        self._checks = [CHECKS[name] for name in dict.fromkeys(names) if name != INPUTS]
        self._finds_finite = not all(check.name in _NOT_FINITE for check in self._checks)
        self._refuses_arguments = INPUTS in names
        self.first_read: str = ""
        """What first read a value that is not finite and that no dispatch made."""
        self.first_reader: int | None = None
        """The number of that dispatch in the call."""

    def begins(self, call: ObservedCall) -> None:
        self.first_read, self.first_reader = "", None
        if self._refuses_arguments:
            for number, value in call.arguments.items():
                _require_finite(number, value, call)

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if dispatch.kind != DISPATCH:
            return
        suspects = [(n, t) for n, t in enumerate(dispatch.outputs) if self._finds_finite or not is_finite(t)]
        for check in self._checks if suspects else ():
            for number, tensor in suspects:
                fault = find(tensor, check.applies, check.finds)
                if fault is None or not tensor.has_changed(fault.coordinate):
                    continue
                spread = self._spread(dispatch, check, tensor)
                if spread and not self.first_read:
                    self.first_read, self.first_reader = spread, dispatch.ordinal
                if spread:
                    continue
                raise _made(dispatch, number, fault)

    def _spread(self, dispatch: ObservedDispatch, check: Check, made: ObservedTensor) -> str:
        """Which input had one before, or another tensor that may have been read: one whose type is unknown
        may have that of what is made."""
        read = [(f"input {number}", tensor) for number, tensor in enumerate(dispatch.inputs)]
        for tensor in dispatch.bound():
            assert made.kind is not None
            tensor.guess_element({made.kind.element}, GUESSED)
            read.append((f"binding {tensor.binding}", tensor))
        for place, tensor in read:
            fault = find(tensor, check.applies, _Untouched(check.spread_by, tensor, made.changes))
            if fault is not None:
                where = f"; {dispatch.location}" if dispatch.location else ""
                return f"{dispatch.label} reads {fault} in {place}, {_source(tensor)}{where}"
        return ""


class _Untouched:
    """Checks what the dispatch has not written, piece by piece, in order:
    in memory that tensors share, what is bound as an input holds outputs as well."""

    def __init__(
        self, finds: Callable[[Array], Array], tensor: ObservedTensor, changes: Sequence[Extent]
    ) -> None:
        self._finds = finds
        self._address = tensor.extent[0]
        self._changes = changes

    def __call__(self, piece: Array) -> Array:
        begin, size = self._address, piece.dtype.itemsize
        self._address += piece.nbytes
        found = self._finds(piece)
        if found.any():
            for address, length in self._changes:
                first, last = (address - begin) // size, -(-(address + length - begin) // size)
                found[max(first, 0) : max(last, 0)] = False
        return found


def find(
    tensor: ObservedTensor, applies: Callable[[ElementType], bool], finds: Callable[[Array], Array]
) -> Fault | None:
    """Finds the first element that a check reports, if its type is known."""
    kind = tensor.kind
    if kind is None or not applies(kind.element) or kind.element.bits < 8:
        return None
    fault = first_fault(tensor.pieces(), kind.shape, finds)
    if fault is not None and tensor.source not in _CERTAIN and not _is_plausible(next(tensor.pieces())):
        return None
    return fault


def is_finite(tensor: ObservedTensor) -> bool:
    """Whether a tensor has finite elements only; also if it is none of inexact numbers."""
    kind = tensor.kind
    if kind is None or not _is_inexact(kind.element) or kind.element.bits < 8:
        return True
    return all(np.isfinite(piece).all() for piece in split(tensor.pieces()))


def first_fault(
    parts: Iterable[Array], shape: tuple[int, ...], finds: Callable[[Array], Array]
) -> Fault | None:
    """The first element of an array, given in parts, that a check finds."""
    first = 0
    for piece in split(parts):
        found = finds(piece)
        if found.any():
            place = int(found.argmax())
            element = piece[place : place + 1]
            coordinate = tuple(map(int, np.unravel_index(first + place, shape))) if shape else ()
            return Fault(coordinate, float(element[0].real), bits_text(element))
        first += len(piece)
    return None


def _is_plausible(array: npt.NDArray[Any]) -> bool:
    """Whether elements are like numbers of their type: integers that are read so are tiny, -1 is a NaN with
    all bits set, and random bits have any size."""
    flat = array.reshape(-1)[:_SAMPLE]
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    if flat.dtype.kind in "iub" or flat.dtype.itemsize == 1:
        return True
    size = flat.dtype.itemsize
    if (flat.view(f"u{size}")[np.isnan(flat)] >= (-1 << _SMALL_NEGATIVE[size]) % (1 << 8 * size)).any():
        return False
    numbers = flat[np.isfinite(flat)]
    if not len(numbers):
        return True
    sizes = abs(numbers.astype(np.float64))
    usual = (sizes == 0) | ((sizes > 2.0**-60) & (sizes < 2.0**60))
    return bool(usual.mean() >= _PLAUSIBLE)


def _source(tensor: ObservedTensor) -> str:
    return f"which comes from {tensor.origin or 'elsewhere: constants, parameters or the host'}"


def _made(dispatch: ObservedDispatch, number: int, fault: Fault) -> NonFiniteError:
    output = dispatch.outputs[number]
    is_known = all(tensor.kind is not None for tensor in dispatch.inputs)
    inputs = "its inputs have none" if is_known else "none of its inputs whose types are known has one"
    read = ", ".join(f"input {n} ({each.type}), {_source(each)}" for n, each in enumerate(dispatch.inputs))
    error = NonFiniteError(
        f"{dispatch.label} makes {fault} in output {number} ({output.type}, type: {output.source}), and "
        f"{inputs}{': ' if read else ''}{read}"
    )
    fill(error, fault, f"output {number}")
    error.dispatch, error.ordinal = dispatch.name, dispatch.ordinal
    error.location = dispatch.location
    size = sum(tensor.extent[1] for tensor in dispatch.inputs)
    if size <= _LARGEST_KEPT:
        error.inputs = tuple(np.array(tensor.array) for tensor in dispatch.inputs)
    where = [text for text in (dispatch.location, dispatch.call_site) if text]
    for text in where:
        error.with_context(text)
    return error


def _require_finite(number: int, value: Argument, call: ObservedCall) -> None:
    fault = None
    if isinstance(value, tuple):
        fault = fault_of_tensor(*value, call.look)
    elif not math.isfinite(value):
        fault = Fault((), value, "0x" + np.float64(value).tobytes()[::-1].hex())
    if fault is not None:
        error = NonFiniteError(f"argument {number} of {call.function} has {fault}; pass finite values")
        fill(error, fault, f"argument {number}")
        raise error


def fault_of_tensor(extent: Extent, kind: TensorKind, look: Look) -> Fault | None:
    """The first element of a tensor that is not finite; it must be ready."""
    if not _is_inexact(kind.element):
        return None
    tensor = ObservedTensor(0, extent, kind, DECLARED, "", look)
    return first_fault(tensor.pieces(), kind.shape, _not_finite)


def fill(error: NonFiniteError, fault: Fault, operand: str) -> None:
    """Sets what the error says of the element."""
    error.coordinate, error.value, error.bits, error.operand = *fault, operand
