"""Functions of batches: any number of rows, padded to the shapes that a module accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitree.api.calls.refusal import describe
from jitree.api.function import Function
from jitree.errors import FailedPreconditionError, InvalidArgumentError

Rows = npt.NDArray[Any]


class PaddedFunction:
    """Takes arrays of any number of rows, and gives as many. It calls the function of the smallest size that
    is large enough, with the last row repeated; more rows than the largest takes are several calls. A
    function whose arguments lack the axis of rows is called for each."""

    def __init__(self, *functions: Function, sizes: Sequence[int] = ()) -> None:
        """``functions``: one, or one for each number of rows, of equal arguments otherwise. ``sizes``: which
        numbers of rows one is called with that would take any, so that it sees few different shapes.

        INVALID_ARGUMENT for functions of which none takes rows of tensors, and sizes that are none.
        """
        if not functions or not all(isinstance(function, Function) for function in functions):
            raise InvalidArgumentError(f"PaddedFunction: expected functions but got {describe(functions)}")
        self._by_size: dict[int, Function] = {}
        self._any: Function | None = None
        self.functions = functions
        for function in functions:
            declared = [argument.tensor for argument in function.arguments]
            shapes = [tensor.shape for tensor in declared if tensor is not None]
            if not shapes or len(shapes) < len(declared):
                raise InvalidArgumentError(
                    f"`{function.declaration}`: expected a function whose arguments are all tensors; bind "
                    "others beforehand"
                )
            self._ranks = tuple(map(len, shapes))
            leading = {shape[0] for shape in shapes if shape} - {None}
            if len(leading) == 1 and all(shape and shape[0] for shape in shapes):
                self._by_size[leading.pop() or 0] = function
            else:
                self._any = function
        if not all(isinstance(size, (int, np.integer)) and size > 0 for size in sizes):
            raise InvalidArgumentError(f"sizes: expected numbers of rows but got {describe(sizes)}")
        if self._any is not None:
            self._by_size |= dict.fromkeys(sizes, self._any)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that it calls functions with; empty where that is any number."""
        return tuple(sorted(self._by_size))

    def __call__(self, *arrays: Any) -> Any:
        """The results, as arrays of numpy with a row for each row given. INVALID_ARGUMENT for arrays of
        different numbers of rows."""
        rows = [np.asarray(array) for array in arrays]
        counts = {array.shape[0] if array.ndim else -1 for array in rows}
        if len(rows) != len(self._ranks) or len(counts) != 1 or -1 in counts:
            raise InvalidArgumentError(
                f"`{self.functions[0].declaration}`: expected {len(self._ranks)} arrays with as many rows "
                f"each but got shapes {', '.join(str(array.shape) for array in rows) or 'of none'}"
            )
        count = counts.pop()
        if all(array.ndim == rank + 1 for array, rank in zip(rows, self._ranks, strict=True)):
            parts = [self._items(rows, count)]
        elif self._any is not None and not self._by_size:
            parts = [self._cut(self._any(*rows), count, count)]
        else:
            parts = [self._padded(rows, *chunk) for chunk in self._chunks(count)]
        joined = [
            np.concatenate(column) if len(parts) > 1 else column[0] for column in zip(*parts, strict=True)
        ]
        return joined[0] if len(joined) == 1 else tuple(joined)

    def _chunks(self, count: int) -> list[tuple[int, int, int]]:
        """(first row, end, rows of the call)"""
        chunks: list[tuple[int, int, int]] = []
        start = 0
        while start < count or not chunks:
            size = next((size for size in self.sizes if size >= count - start), self.sizes[-1])
            chunks.append((start, min(start + size, count), size))
            start += size
        return chunks

    def _padded(self, rows: Sequence[Rows], start: int, end: int, size: int) -> list[Rows]:
        given = [array[start:end] for array in rows]
        if end - start < size:
            given = [
                np.concatenate([part, np.repeat(part[-1:], size - len(part), 0)])
                if len(part)
                else np.zeros((size, *part.shape[1:]), part.dtype)
                for part in given
            ]
        return self._cut(self._by_size[size](*given), end - start, size)

    def _items(self, rows: Sequence[Rows], count: int) -> list[Rows]:
        """Calls a function that takes one row without the axis, for each row."""
        function = self.functions[0]
        made = [_results(function(*items)) for items in zip(*rows, strict=True)]
        if not made:
            zeros = [np.zeros(array.shape[1:], array.dtype) for array in rows]
            return [np.empty((0, *np.shape(value)), value.dtype) for value in _results(function(*zeros))]
        return [np.stack(column) for column in zip(*made, strict=True)]

    def _cut(self, results: Any, count: int, size: int) -> list[Rows]:
        values = _results(results)
        for value in values:
            if value.ndim == 0 or value.shape[0] != size:
                raise FailedPreconditionError(
                    f"`{self.functions[0].declaration}`: a call with {size} rows gave shape {value.shape}; "
                    "each result must have as many rows"
                )
        return [value[:count] for value in values]


def _results(results: Any) -> list[Rows]:
    return [np.asarray(value) for value in (results if isinstance(results, tuple) else (results,))]


def stacked(items: Sequence[Rows], fill: float | None) -> Rows:
    """Items as rows; with ``fill``, shorter ones are filled up at their ends. INVALID_ARGUMENT for a number
    that integers do not have."""
    if fill is None:
        return np.stack(items)
    kind = items[0].dtype
    with np.errstate(invalid="ignore"):
        held = np.asarray(fill).astype(kind)
    if kind.kind in "biu" and held != fill:
        raise InvalidArgumentError(f"fill: arrays of {kind} cannot be filled up with {fill}")
    shape = tuple(max(sizes) for sizes in zip(*(item.shape for item in items), strict=True))
    rows = np.full((len(items), *shape), held)
    for number, item in enumerate(items):
        part: tuple[Any, ...] = (number, *(slice(size) for size in item.shape))
        rows[part] = item
    return rows
