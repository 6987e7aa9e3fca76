"""Answer ``hal.buffer_view.*``: make, check and trace tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.errors import InvalidArgumentError, ResourceExhaustedError
from jitree.hal.buffer import Buffer, BufferView
from jitree.modules.import_rows import text, unsigned32
from jitree.types import CLASS_OPAQUE, INTEGER_CLASSES, element_type

if TYPE_CHECKING:
    from jitree.modules.hal.module import HalState
    from jitree.regs.buffer import VmBuffer

MAXIMUM_RANK: Final = 128
MAXIMUM_TRACED: Final = 128
_BITS: Final = 0xFF
"""The bits of an element type's code that have the size of an element."""


def create(
    state: HalState,
    buffer: Buffer,
    offset: int,
    length: int,
    element_type: int,
    encoding: int,
    shape: Sequence[int],
) -> BufferView:
    """OUT_OF_RANGE where the shape does not fit into the range: the program has computed both, of sizes that
    may have wrapped."""
    if len(shape) > MAXIMUM_RANK:
        raise InvalidArgumentError(f"a buffer view of rank {len(shape)}; at most {MAXIMUM_RANK}")
    return BufferView(buffer.subspan(offset, length), tuple(shape), element_type, encoding)


def assert_(
    state: HalState,
    view: BufferView,
    message: VmBuffer,
    element_type: int,
    encoding: int,
    shape: Sequence[int],
) -> None:
    """What a program demands of an argument."""
    if view.encoding == encoding and view.element_type == element_type and view.shape == tuple(shape):
        return
    check_view(view, text(message), element_type, encoding, shape)


def check_view(
    view: BufferView, subject: str, element_type: int, encoding: int, shape: Sequence[int | None]
) -> None:
    """INVALID_ARGUMENT unless the view can be used as a tensor of that type and shape.

    Opaque encodings pass, and integers and opaque elements of equal width. None is a dimension of any size.
    """
    if view.encoding not in (encoding, 0):
        raise InvalidArgumentError(
            f"{subject} encoding mismatch; expected {unsigned32(encoding):08x} but have "
            f"{unsigned32(view.encoding):08x}"
        )
    if not compatible_elements(view.element_type, element_type):
        raise InvalidArgumentError(
            f"{subject} element type mismatch; expected {type_text(element_type)} but have "
            f"{type_text(view.element_type)}"
        )
    check_shape(view.shape, subject, shape)


def compatible_elements(actual: int, expected: int) -> bool:
    """Whether elements of one type can be read as another: integers as those of any sign, opaque ones as any,
    all of the same width. 0 says nothing about elements."""
    if actual in (expected, 0):
        return True
    if actual & _BITS != expected & _BITS:
        return False
    return actual >> 24 == CLASS_OPAQUE or (
        actual >> 24 in INTEGER_CLASSES and expected >> 24 in INTEGER_CLASSES
    )


def check_shape(actual: Sequence[int], subject: str, expected: Sequence[int | None]) -> None:
    """INVALID_ARGUMENT unless the shapes agree; None is a dimension of any size."""
    if len(actual) != len(expected):
        raise _shape_error(
            f"{subject} shape rank mismatch; expected {_rank_text(len(expected))} but have "
            f"{_rank_text(len(actual))}",
            actual,
            expected,
        )
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        if want is not None and have != want:
            raise _shape_error(
                f"{subject} shape dimension {index} mismatch; expected {want} but have {have}",
                actual,
                expected,
            )


def _shape_error(message: str, actual: Sequence[int], expected: Sequence[int | None]) -> InvalidArgumentError:
    return InvalidArgumentError(
        message, f"expected shape `{_shape_text(expected)}`, actual shape `{_shape_text(actual)}`"
    )


def _shape_text(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


def _rank_text(rank: int) -> str:
    return str(rank) if rank else "0 (scalar)"


def type_text(code: int) -> str:
    return f"{element_type(code).name} ({unsigned32(code):08x})"


def dim(state: HalState, view: BufferView, index: int) -> int:
    """0 for a dimension that the view does not have."""
    return view.shape[index] if 0 <= index < len(view.shape) else 0


def trace(state: HalState, key: VmBuffer, views: Sequence[BufferView]) -> None:
    """Hands tensors to the host's sink; nothing happens without one."""
    if len(views) > MAXIMUM_TRACED:
        raise ResourceExhaustedError(f"a trace of {len(views)} buffer views; at most {MAXIMUM_TRACED}")
    if state.trace_sink is not None:
        state.trace_sink(text(key), views)
