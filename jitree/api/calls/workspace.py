"""Measures the memory that a function wants from its caller for intermediate results (``workspace=``).

Compilers state a size, or the name of a function of the module that computes it from the same arguments. What
calls were found to need is kept by their shapes and numbers. Machine code reads that
(:mod:`jitree.api.calls.native.arguments`), so that only the first call of a kind is measured.
"""

from __future__ import annotations

import operator
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.api.calls.declaration import DEPENDS, OUT, TRANSIENTS, WORKSPACE, Parameter, storage_names
from jitree.api.calls.native.layout import MAXIMUM_RANK, Sizes
from jitree.api.calls.number_packing import number_packer
from jitree.api.calls.overlaps import shares_memory
from jitree.api.calls.reference_packing import require_workspace
from jitree.api.calls.refusal import describe
from jitree.base.arguments import shown
from jitree.base.finalizers import guard
from jitree.codegen.record import size_of, words_of
from jitree.errors import InvalidArgumentError, NotFoundError, attribute_of, own_error, pass_interruption
from jitree.hal.buffer import Buffer, BufferView
from jitree.types import ENCODING_OPAQUE

_SIZES: Final = words_of(Sizes)

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Signature
    from jitree.api.calls.overlaps import CalledFunction
    from jitree.vmfb.cconv import Item


_MOST: Final = 256
"""Kinds of calls whose sizes are remembered."""
_FLOATS: Final = {"f": ("<f", "<i"), "F": ("<d", "<q")}
"""By register type: the formats of :mod:`struct` for a float, and for an integer of its bits."""


def workspace_size(function: CalledFunction, shapes: tuple[Any, ...], named: dict[str, Any]) -> int:
    """As :meth:`Function.workspace_size`."""
    signature = function.signature
    size = next((item.workspace for item in signature.arguments if item.workspace is not None), 0)
    if size != DEPENDS:
        return size
    given = _by_name(function, shapes, named)
    return _measured(function, [
        _stand_in(parameter, str(item), given.get(parameter.name), function)
        for parameter, item in zip(
            signature.arguments, function.vm_function.convention.arguments, strict=False
        )
    ])  # fmt: skip


def require_enough(function: CalledFunction, packed: list[object], sizes: KnownSizes) -> None:
    """Raises INVALID_ARGUMENT for memory that is too small or shared. ``sizes``: those of earlier calls."""
    values = list(packed)
    arguments = function.signature.arguments
    position = [item.workspace is not None for item in arguments].index(True)
    memory, values[position] = values[position], None
    for parameter, value in zip(arguments, values, strict=False):
        if shares_memory(memory, [value]):
            raise InvalidArgumentError(
                f"{WORKSPACE}: its memory is also that of {parameter.name}, which the program would "
                "overwrite; pass memory that nothing else lies in, such as session.empty(size, numpy.uint8)"
            )
    if function.signature.measure is None:  # one size for all calls, which the packer knows
        return
    key = sizes.key(values)
    size = sizes.get(key)
    if size is None:
        size = _measured(function, values)
        sizes.remember(key, size)
    assert isinstance(memory, Buffer)
    require_workspace(memory, size)


def _measured(function: CalledFunction, values: list[object]) -> int:
    """What the function that the compiler made for it says. NOT_FOUND without one."""
    name = function.signature.measure
    if name is None:
        raise NotFoundError(
            f"'{function.name}' does not say how much memory it needs: it was compiled without "
            f"{TRANSIENTS}.size"
        )
    context = function.session.context
    measure = context.function_of(function.vm_function.module, name)
    fences = [None] * (len(measure.convention.arguments) - len(values))
    return sum(context.invoke(measure, [*values, *fences]))


def _by_name(function: CalledFunction, shapes: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """INVALID_ARGUMENT for more shapes than arguments, and for unknown names."""
    signature = function.signature
    names = [parameter.name for parameter in signature.arguments if parameter.name != signature.workspace]
    given = dict(named)
    out = None if OUT in names else given.pop(OUT, None)
    if out is not None:
        storage = storage_names(signature)
        several = out if len(storage) > 1 else (out,)
        if not storage or len(storage) != len(several):
            raise InvalidArgumentError(f"{OUT}: expected {len(storage)} shapes but got {shown(out)}")
        given |= dict(zip(storage, several, strict=True))
        names = [name for name in names if name not in storage] + list(storage)
    unknown = [name for name in given if name not in names]
    if unknown or len(shapes) > len(names):
        what = f"argument '{unknown[0]}' is unknown" if unknown else f"{len(shapes)} shapes were given"
        raise InvalidArgumentError(
            f"workspace_size: {what}; `{signature.declaration}` has: {', '.join(names) or 'none'}"
        )
    twice = [name for name in names[: len(shapes)] if name in given]
    if twice:
        raise InvalidArgumentError(f"workspace_size: argument '{twice[0]}' is given twice")
    return given | dict(zip(names, shapes, strict=False))


def _stand_in(parameter: Parameter, item: str, given: Any, function: CalledFunction) -> object:
    """What the function that computes the size takes for an argument: it looks at shapes and numbers only, so
    arrays need no memory."""
    tensor = parameter.tensor
    if parameter.name == function.signature.workspace:
        return None
    if item != "r":
        if given is None:
            raise InvalidArgumentError(f"workspace_size: the number {parameter.name} is missing")
        return number_packer(parameter, item).pack(given)
    if given is None and tensor is not None and None not in tensor.shape:
        given = tensor.shape
    if given is None:
        raise InvalidArgumentError(f"workspace_size: the shape of {parameter.name} is missing")
    try:
        shape = tuple([operator.index(size) for size in attribute_of(given, "shape", given)])
    except TypeError as error:
        pass_interruption(error)
        raise InvalidArgumentError(
            f"workspace_size: {parameter.name}: expected a shape but got {describe(given)}"
        ) from own_error(error)
    expected = shape if tensor is None else tensor.shape
    if len(shape) != len(expected) or any(
        want not in (None, have) for want, have in zip(expected, shape, strict=True)
    ):
        raise InvalidArgumentError(
            f"workspace_size: {parameter.name} is a {tensor} but the shape is {describe(given)}"
        )
    row = None if tensor is None else tensor.element_type
    nothing = function.device.device_allocator.allocate(0, 0, 0)
    return BufferView(nothing, shape, 0 if row is None else row.code, ENCODING_OPAQUE)


class KnownSizes:
    """Bytes by what they depend on. A key has a word for each dimension and each number."""

    __slots__ = ("_items", "_lock", "_rows", "_sizes", "_width", "_words")

    def __init__(self, signature: Signature, items: Sequence[Item]) -> None:
        self._items = tuple(map(str, items))
        self._sizes: dict[tuple[object, ...], int] = {}
        self._width = _width(signature.arguments)
        self._lock = guard()
        self._rows = array("q")
        self._words = array("q", bytes(size_of(Sizes)))
        self._words[_SIZES.width] = self._width or 0

    @property
    def address(self) -> int:
        """Of the Sizes record; 0 where it also depends on what is neither a tensor nor a number."""
        return 0 if self._width is None else self._words.buffer_info()[0]

    def key(self, values: Sequence[object]) -> tuple[object, ...]:
        """What the size of a call depends on, of packed values; None stands for the memory itself."""
        return tuple(
            word for value, item in zip(values, self._items, strict=False) for word in _key_words(value, item)
        )

    def get(self, key: tuple[object, ...]) -> int | None:
        return self._sizes.get(key)

    def remember(self, key: tuple[object, ...], size: int) -> None:
        with self._lock:
            if len(self._sizes) == _MOST:
                self._sizes.clear()
                self._words[_SIZES.count] = 0
            if key not in self._sizes:
                self._sizes[key] = size
                if self._width is not None:
                    self._show([*key, size])  # type: ignore[list-item]

    def _show(self, row: list[int]) -> None:
        """Shows a key and its size to machine code: it may look whenever Python runs; so the count comes
        last."""
        words, length = self._words, len(row)
        if not self._rows:
            self._rows = array("q", bytes(8 * _MOST * length))
            words[_SIZES.rows] = self._rows.buffer_info()[0]
        count = words[_SIZES.count]
        self._rows[count * length : (count + 1) * length] = array("q", row)
        words[_SIZES.count] = count + 1


def _width(parameters: Sequence[Parameter]) -> int | None:
    """The words of a key; None if it depends on more than dimensions and numbers."""
    width = 0
    for parameter in parameters:
        if parameter.workspace is not None:
            continue
        rank = 1
        if parameter.tensor is not None:
            rank = len(parameter.tensor.shape)
        elif parameter.type.startswith("!"):
            return None
        if rank > MAXIMUM_RANK:
            return None
        width += rank
    return width


def _key_words(value: object, item: str) -> Iterator[object]:
    """The dimensions of a view; a number as the bits of its register."""
    if isinstance(value, BufferView):
        yield from value.shape
    elif isinstance(value, float):
        packed, bits = _FLOATS[item]
        yield from struct.unpack(bits, struct.pack(packed, value))
    elif isinstance(value, int):
        half = 1 << 63 if item == "I" else 1 << 31
        yield (value + half) % (2 * half) - half
    elif value is not None:
        yield value
