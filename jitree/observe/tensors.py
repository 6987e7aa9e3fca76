"""Describes tensors and dispatches for observers, and detects changed bytes of memory.

Changes are detected without a copy of more than 4 MiB: of more, each line of 64 bytes leaves a number of 16
bits. One change in 65536 is not seen, and those next to it are.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from jitree.base.elements import is_integer, unpack_integers
from jitree.base.events import DISPATCH
from jitree.base.finalizers import Unique
from jitree.hal.stepwise import looked_at
from jitree.observe.export_names import TensorKind, flat
from jitree.types import CLASS_UNSIGNED, is_packed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Set

    import numpy.typing as npt

    from jitree.hal.stepwise import DeviceStep, Extent, Look
    from jitree.observe.origins import CallOrigin
    from jitree.observe.tolerance import Statistics
    from jitree.types import ElementType

LINE: Final = 64
_COPIED: Final = 4 << 20
_PIECE: Final = 8 << 20
"""Bytes that are looked at together."""
_GAP: Final = 4096
"""Unchanged bytes between what counts as two changes."""
_FACTORS: Final = np.arange(1, LINE // 4, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
_KEPT_BITS: Final = np.uint64(48)


def pieces(extent: Extent, look: Look, size: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a range, so many at a time."""
    address, length = extent
    if length <= size:  # as of nearly all tensors
        return iter((look(extent),) if length else ())
    return (look((address + first, min(size, length - first))) for first in range(0, length, size))


class Digest:
    """What a range of memory held when this was made."""

    def __init__(self, extent: Extent, look: Look) -> None:
        self.extent = extent
        self._look = look
        self._unit = 1 if extent[1] <= _COPIED else LINE
        self._before = [self._seen(piece) for piece in self._pieces()]

    def is_as_before(self, written: Sequence[Extent]) -> bool:
        """Whether nothing has changed but these ranges; False also where only all of it tells."""
        address, length = self.extent
        if self._unit != 1 or len(self._before) != 1:
            return False
        before, now, first = self._before[0], self._look(self.extent), 0
        for start, size in (*sorted(written), (address + length, 0)):
            last = min(start - address, length)
            if first < last and before[first:last].tobytes() != now[first:last].tobytes():
                return False
            first = max(first, start + size - address)
        return True

    def changes(self) -> list[list[Extent]]:
        """Lists ranges that have changed since, to the byte or line, near ones together. A gap is left where
        a tensor may begin after it."""
        found: list[list[Extent]] = []
        for run in self._runs():
            gap = run[0] - sum(found[-1][-1]) if found else _GAP
            if gap >= _GAP:
                found.append([run])
            elif gap and not run[0] % LINE:
                found[-1].append(run)
            else:
                start = found[-1][-1][0]
                found[-1][-1] = start, sum(run) - start
        return found

    def _runs(self) -> Iterator[Extent]:
        """What is changed, without gaps that end at a line."""
        address = self.extent[0]
        for before, piece in zip(self._before, self._pieces(), strict=True):
            different = np.flatnonzero(before != self._seen(piece))
            if len(different) == 0:
                address += len(piece)
                continue
            first, last = int(different[0]) * self._unit, (int(different[-1]) + 1) * self._unit
            if (address + first) // LINE == (address + last - 1) // LINE:  # as most small tensors
                yield address + first, min(last, len(piece)) - first
            else:
                places = address + different[1:] * self._unit
                gaps = np.diff(different)
                ends = np.flatnonzero((gaps > 1) & ((places % LINE == 0) | (gaps > _GAP)))
                firsts = different[np.concatenate(([0], ends + 1))] * self._unit
                lasts = (different[np.concatenate((ends, [len(different) - 1]))] + 1) * self._unit
                for first, last in zip(firsts, np.minimum(lasts, len(piece)), strict=True):
                    yield address + int(first), int(last - first)
            address += len(piece)

    def _pieces(self) -> Iterator[npt.NDArray[np.uint8]]:
        return pieces(self.extent, self._look, _PIECE)

    def _seen(self, piece: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        if self._unit == 1:
            return piece.copy()
        rest = -len(piece) % LINE
        whole = np.append(piece, np.zeros(rest, np.uint8)) if rest else piece
        words = whole.view(np.uint64).reshape(-1, LINE // 8)
        return ((words @ _FACTORS) >> _KEPT_BITS).astype(np.uint16)


class ComparedMemory(Unique):
    """Bytes that a dispatch has changed, compared on demand while readers look."""

    __slots__ = ("_digests", "_found")

    def __init__(self, digests: Sequence[Digest], written: Sequence[Extent]) -> None:
        """``written``: what it is known to write. Without a comparison that counts as changed."""
        self._digests = digests
        self._found = written

    @property
    def found(self) -> Sequence[Extent]:
        if self._digests:
            self._found = [run for digest in self._digests for group in digest.changes() for run in group]
            self._digests = ()
        return self._found

    def end(self) -> None:
        """The memory may hold something else from now on."""
        self._digests = ()


GUESSED: Final = "guess: as the inputs"
"""The source of a type that nothing says, where all inputs have one."""
ALIKE: Final = "guess: as all other tensors"
"""… nothing says it, and all tensors whose types are known have one."""
UNKNOWN: Final = "unknown"
"""The source of a type that is not known: the tensor is shown as bytes."""
DECLARED: Final = "declared"
"""… the function that was called declares it."""
GIVEN: Final = "given"
"""The user says it."""
NAMED: Final = "name"
"""… the export's name says it, and lengths agree."""
ELEMENTS_NAMED: Final = "name, element type only"
"""… the export's name says what the elements are."""


VALUE: Final = "value"
"""The word before the ordinal of what is no dispatch, but was shown by another runtime."""
READ: Final = "a read of constants or parameters"
"""The origin of a tensor that the read of a queue has filled."""
ARGUMENT: Final = "argument "
"""Before a number, as the origin of a tensor."""


def has_elements(element: ElementType) -> bool:
    """Whether numpy can show elements of a type one by one: integers that share bytes are unpacked."""
    return element.bits >= 8 or (is_integer(element) and is_packed(element))


def dtype_of(element: ElementType) -> np.dtype[Any]:
    """In arrays: integers that share bytes have one each."""
    if is_packed(element):
        return np.dtype(np.uint8 if element.numerical_class == CLASS_UNSIGNED else np.int8)
    return element.dtype


def elements_of(data: npt.NDArray[np.uint8], element: ElementType, count: int) -> npt.NDArray[Any]:
    """Bytes as so many elements, which have them."""
    if is_packed(element):
        return unpack_integers(data, element, count).astype(dtype_of(element))
    return data.view(element.dtype)


@lru_cache(256)
def _plain(kind: TensorKind) -> tuple[int, np.dtype[Any]] | None:
    """Bytes and dtype of a tensor that one piece shows, else None."""
    element, length = kind.element, kind.byte_length
    is_one = has_elements(element) and not is_packed(element) and length <= _PIECE // 2
    return (length, element.dtype) if is_one else None


class ObservedTensor(Unique):
    """A tensor that a dispatch reads or writes.

    ``array`` is a read-only view of the device's memory (a copy, where the host does not see that) while the
    dispatch is looked at, and a copy of it where it is kept.
    """

    __slots__ = (
        "_changes", "_is_over", "_kept", "binding", "extent", "kind", "look", "offset", "origin", "source",
        "stats",
    )  # fmt: skip

    def __init__(
        self,
        binding: int,
        extent: Extent,
        kind: TensorKind | None,
        source: str,
        origin: str,
        look: Look = looked_at,
    ) -> None:
        self.binding = binding
        """Number of the dispatch's binding that it lies in."""
        self.extent = extent
        self.offset: int | None = None
        """Bytes before it in a block of constants that the binding is; None of other tensors."""
        self.kind = kind
        """None where only the bytes are known."""
        self.source = source
        """Where the type comes from: DECLARED, GIVEN, NAMED, UNKNOWN."""
        self.origin = origin
        """What made the contents, as far as that is known: ``main_dispatch_3_… (dispatch 3)``."""
        self._changes: Sequence[Extent] | ComparedMemory = ()
        self.stats: Statistics | None = None
        self.look = look
        self._kept: npt.NDArray[Any] | None = None
        self._is_over = False

    @property
    def changes(self) -> Sequence[Extent]:
        """Memory that the dispatch has changed."""
        changes = self._changes
        return changes.found if isinstance(changes, ComparedMemory) else changes

    @changes.setter
    def changes(self, changes: Sequence[Extent] | ComparedMemory) -> None:
        self._changes = changes

    @property
    def type(self) -> str:
        """``4x71xf32``, ``1152 bytes``"""
        return f"{self.extent[1]} bytes" if self.kind is None else str(self.kind)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.extent[1],) if self.kind is None else self.kind.shape

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The elements, bytes where the type is unknown; None when the dispatch is over and nothing is
        kept."""
        return self._kept if self._is_over or self._kept is not None else self._view()

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of ``array``."""
        kind = self.kind
        return (self._elements[1],) if kind is None or not has_elements(kind.element) else kind.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of ``array``: bytes where the type is unknown, or numpy has none for it."""
        kind = self.kind
        return (
            np.dtype(np.uint8) if kind is None or not has_elements(kind.element) else dtype_of(kind.element)
        )

    @property
    def array_bytes(self) -> int:
        """That ``array`` takes where it is kept."""
        return prod(self.array_shape) * self.dtype.itemsize

    def pieces(self) -> Iterator[npt.NDArray[Any]]:
        """The elements in order, in parts of one dimension: without a copy of all."""
        if self._kept is not None:
            return iter((self._kept.reshape(-1),))
        bits = 8 if self.kind is None else self.kind.element.bits
        plain = None if self.kind is None else _plain(self.kind)
        if plain is not None:
            return iter((self.look((self.extent[0], plain[0])).view(plain[1]),))
        parts = pieces(self._elements, self.look, _PIECE // bits * bits)
        return (self._typed(piece, number * (_PIECE // bits * 8)) for number, piece in enumerate(parts))

    @property
    def _elements(self) -> Extent:
        """Where the elements are, without padding after them."""
        return self.extent[0], self.extent[1] if self.kind is None else self.kind.byte_length

    def guess(self, inputs: Sequence[ObservedTensor]) -> None:
        """Without a type, elements of the one that all inputs have, in a row. Where the name has them so, the
        shape of an input as large: the compiler folds loops of elementwise operations."""
        self.guess_element({tensor.kind.element for tensor in inputs if tensor.kind is not None}, GUESSED)
        if self.kind is not None and len(self.kind.shape) == 1 and self.source == NAMED:
            shapes = {t.kind.shape for t in inputs if t.kind and prod(t.kind.shape) == self.kind.shape[0]}
            if len(shapes) == 1:
                self.kind = self.kind._replace(shape=shapes.pop())

    def guess_element(self, elements: Set[ElementType], source: str) -> None:
        """Guesses elements without a type: of the only one of these in a row. It does so if there is only
        one."""
        if self.kind is None and len(elements) == 1:
            self.kind = flat(next(iter(elements)), self.extent[1])
            self.source = UNKNOWN if self.kind is None else source

    def keep(self) -> None:
        """Copies the elements."""
        if self._kept is None:
            kept, first = np.empty(prod(self.array_shape), self.dtype), 0
            for piece in self.pieces():
                kept[first : first + piece.size] = piece
                first += piece.size
            self._kept = kept.reshape(self.array_shape)

    def end(self) -> None:
        """The memory may hold something else from now on."""
        self._is_over = True

    def has_changed(self, coordinate: tuple[int, ...]) -> bool:
        """Whether the dispatch has written something else than what was there to an element."""
        assert self.kind is not None
        place = np.ravel_multi_index(coordinate, self.kind.shape) if coordinate else 0
        size = self.kind.element.bits // 8
        element = self.extent[0] + int(place) * size, size
        return any(first < sum(element) and element[0] < first + length for first, length in self.changes)

    def seen(self, look: Look | None, changes: Sequence[Extent] | ComparedMemory) -> ObservedTensor:
        """Makes another one of the same, whose memory is looked at by ``look``; None: it is no more."""
        made = ObservedTensor(self.binding, self.extent, self.kind, self.source, self.origin)
        made.offset, made._changes = self.offset, changes
        if look is None:
            made.end()
        else:
            made.look = look
        return made

    def _view(self) -> npt.NDArray[Any]:
        return self._typed(self.look(self._elements), 0).reshape(self.array_shape)

    def _typed(self, data: npt.NDArray[np.uint8], first: int) -> npt.NDArray[Any]:
        """The elements from a number on in bytes that hold them."""
        if self.kind is None or not has_elements(self.kind.element):
            return data
        element = self.kind.element
        return elements_of(data, element, min(self.kind.size - first, data.size * 8 // element.bits))

    def __repr__(self) -> str:
        return f"<{self.type} in binding {self.binding}; type: {self.source}>"


Group = tuple["ObservedTensor", ...]


class ObservedDispatch(Unique):
    """One dispatch of a call, or another operation of a queue."""

    __slots__ = (
        "_changes", "_compiled", "_found", "_inputs", "_look", "_origin", "_outputs", "bound", "constants",
        "executable", "kind", "left_to", "name", "operands", "ordinal", "workgroups",
    )  # fmt: skip

    what: ClassVar[str] = DISPATCH
    """The word before its ordinal."""

    def __init__(
        self, step: DeviceStep, origin: CallOrigin, ordinal: int | None, kernel: tuple[str, str] = ("", "")
    ) -> None:
        """``kernel``: the name of its executable, and what that says of where the dispatch comes from."""
        self.kind = step.kind
        """``dispatch``, ``fill``, ``copy``, ``update``, ``read`` or ``write``."""
        self.name = step.name
        """The full name of the export; that of the operation for others."""
        self.ordinal = ordinal
        """Number among the dispatches of the call; None for what is no dispatch."""
        self.executable, self._compiled = kernel
        self.workgroups = step.workgroups
        self.operands = step.operands
        """Address and bytes of each binding."""
        self.constants = step.constants
        self.left_to = step.left_to
        """The dispatch with which a kernel does its work, where it is in a run that is replaced: then it has
        no outputs."""
        self.bound: Callable[[], Sequence[ObservedTensor]] = tuple
        """While it is looked at: all tensors in the memory bound to it, but for outputs. In an allocation
        that tensors share there are more of them than inputs."""
        self._origin = origin
        self._look: Look | None = step.look
        self._inputs: Group | None = None
        self._outputs: Group | None = None

    def show(self, inputs: Group, outputs: Group, changes: Sequence[Extent] | ComparedMemory = ()) -> None:
        """Shows copies of these tensors, which are made when somebody asks for one. ``changes``: memory that
        the dispatch has changed."""
        self._found, self._changes = (inputs, outputs), changes

    def end(self) -> None:
        """The memory may hold something else from now on."""
        self._look, self.bound = None, tuple
        if isinstance(self._changes, ComparedMemory):
            self._changes.end()
        for tensor in (*(self._inputs or ()), *(self._outputs or ())):
            tensor.end()

    @property
    def inputs(self) -> Group:
        if self._inputs is None:
            self._inputs = tuple([tensor.seen(self._look, ()) for tensor in self._found[0]])
        return self._inputs

    @property
    def outputs(self) -> Group:
        if self._outputs is None:
            self._outputs = tuple([tensor.seen(self._look, self._changes) for tensor in self._found[1]])
        return self._outputs

    @property
    def call(self) -> int:
        """Number of the call in the session, since something observes it."""
        call = self._origin.call
        return 0 if call is None else call.number

    @property
    def function(self) -> str:
        """``module.function`` that was called."""
        call = self._origin.call
        return "" if call is None else call.function

    @property
    def location(self) -> str:
        """The function of the program that submitted it, and sources.

        Those of the function where the module says them, of the dispatch where the executable does."""
        return self._origin.location + self._compiled

    @property
    def call_site(self) -> str:
        """The line of Python that called."""
        return self._origin.call_site

    @property
    def stats(self) -> Statistics | None:
        """Those of the first output."""
        return self.outputs[0].stats if self.outputs else None

    @property
    def label(self) -> str:
        """``main_dispatch_3_matmul_4x71x64_f32 (dispatch 3)``"""
        return self.name if self.ordinal is None else f"{self.name} ({self.what} {self.ordinal})"

    def __repr__(self) -> str:
        return f"<{self.label} of {self.function or 'no call'}>"
