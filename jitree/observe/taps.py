"""Taps the inputs and outputs of a session's dispatches while a ``with`` block runs.

Tensors go to a function, or to a file while they come: npz, or safetensors.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Protocol, overload
from zipfile import ZIP_STORED, ZipFile

import numpy as np

from jitree import errors
from jitree.base.arguments import shown
from jitree.base.events import DISPATCH
from jitree.base.finalizers import Finalized, Unique, guard
from jitree.base.folding import warn
from jitree.base.platform.available_resources import available_memory
from jitree.observe.export_names import TensorKind, sizes_of
from jitree.observe.observation import Observation, Onlooker
from jitree.observe.tensors import GIVEN, ObservedDispatch, ObservedTensor
from jitree.observe.tolerance import statistics
from jitree.types import BY_NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TYPES: Final = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL", "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
"""Names of safetensors."""
_ALIGNMENT: Final = 8

Keep = Literal["stats", "tensors"] | Callable[[ObservedDispatch], object]
Ordinals = int | slice | range | Iterable[int] | None
STATS: Final = "stats"
TENSORS: Final = "tensors"
_MOST_NEAR: Final = 5
_LONGEST: Final = 256
"""Characters of names that are compared, which takes the square of them."""
_LOOKED_FOR: Final = 1 << 20
"""Bytes from which on it is looked whether there is room for them."""


class TensorFile(Protocol):
    """An open file."""

    def add(self, name: str, tensor: ObservedTensor) -> None:
        """Writes a tensor, piece by piece; nothing of it is kept."""

    def close(self) -> None:
        """Completes the file."""


class _NumpyArchive:
    """Types that numpy does not know are written as unsigned integers of their bits."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = ZipFile(path, "w", ZIP_STORED, allowZip64=True)

    def add(self, name: str, tensor: ObservedTensor) -> None:
        dtype = tensor.dtype
        if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float8")):
            dtype = np.dtype(f"u{dtype.itemsize}")
        header = {"descr": dtype.str, "fortran_order": False, "shape": tensor.array_shape}
        with (
            errors.system_refusals(f"cannot write '{self._path}'"),
            self._file.open(f"{name}.npy", "w", force_zip64=True) as member,
        ):
            np.lib.format.write_array_header_1_0(member, header)
            for piece in tensor.pieces():
                member.write(piece.view(np.uint8).data)

    def close(self) -> None:
        with errors.system_refusals(f"cannot write '{self._path}'"):
            self._file.close()


class _SafeTensors:
    """The header comes first and is known last: bytes wait in a file beside it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: BinaryIO = open(f"{path}.part", "w+b")
        self._header: dict[str, Any] = {}
        self._length = 0

    def add(self, name: str, tensor: ObservedTensor) -> None:
        end = self._length
        with errors.system_refusals(f"cannot write '{self._path}'"):
            for piece in tensor.pieces():
                end += self._waiting.write(piece.view(np.uint8).data)
        kind = _TYPES.get(tensor.dtype.name)
        shape = [*tensor.array_shape] if kind else [end - self._length]
        self._header[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [self._length, end]}
        self._length = end

    def close(self) -> None:
        header = json.dumps(self._header).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        try:
            with (
                errors.system_refusals(f"cannot write '{self._path}'"),
                self._waiting,
                open(self._path, "wb") as file,
            ):
                self._waiting.seek(0)
                file.write(len(header).to_bytes(8, "little") + header)
                shutil.copyfileobj(self._waiting, file, 1 << 20)
        finally:
            with suppress(FileNotFoundError):  # an interrupted end is repeated
                os.unlink(f"{self._path}.part")


_KINDS: Final[dict[str, Callable[[str], TensorFile]]] = {"npz": _NumpyArchive, "safetensors": _SafeTensors}


def create_tensor_file(path: str | os.PathLike[str]) -> TensorFile:
    """A file of the kind that its name ends with. INVALID_ARGUMENT for other endings."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else repr(path)
    kind = _KINDS.get(name.rpartition(".")[2])
    if kind is not None:
        with errors.system_refusals(f"cannot write '{name}'"):
            return kind(name)
    raise errors.InvalidArgumentError(
        f"tensors go to files that end with .npz or .safetensors, not to '{name}'"
    )


class Selection(Unique):
    """Which dispatches are meant."""

    def __init__(
        self,
        patterns: str | Sequence[str],
        ordinals: Ordinals = None,
        module: str | None = None,
        function: str | None = None,
    ) -> None:
        """Patterns are names with ``*`` and ``?``; the name of another operation (``copy``) means that."""
        self._patterns = tuple(patterns) if isinstance(patterns, (list, tuple)) else (patterns,)
        if not self._patterns or not all(isinstance(pattern, str) for pattern in self._patterns):
            raise errors.InvalidArgumentError(
                f"tap: expected a pattern such as '*softmax*' but got {shown(patterns)}"
            )
        self._ordinals = _ordinals(ordinals)
        self._module = module
        self._function = function
        self.names: dict[str, None] = {}
        """The names of all dispatches that were there to select from."""
        self._functions: dict[str, None] = {}
        """… that were called, modules and functions."""
        self._last = 0
        """Their highest ordinal."""
        self._known: dict[tuple[str, ...], bool] = {}
        """Whether one is meant, but for its ordinal."""

    def __contains__(self, dispatch: ObservedDispatch) -> bool:
        if dispatch.kind != DISPATCH:
            return dispatch.kind in self._patterns
        ordinal = dispatch.ordinal or 0
        if ordinal > self._last:
            self._last = ordinal
        name, function = dispatch.name, dispatch.function
        module = "" if self._module is None else _submitting_module(dispatch)
        is_meant = self._known.get((name, function, module))
        if is_meant is None:
            self.names[name] = self._functions[function] = None
            called_module, _, called = function.rpartition(".")
            is_meant = self._known[name, function, module] = (
                self._is_name(name)
                and (self._module is None or self._module in (called_module, module))
                and (self._function is None or self._function in (called, function))
            )
        return is_meant and (self._ordinals is None or dispatch.ordinal in self._ordinals)

    def _is_name(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def nothing(self) -> errors.NotFoundError:
        """No dispatch was meant, though there were some."""
        pattern = ", ".join(self._patterns)
        why = f"no dispatch matches '{pattern}'"
        if any(map(self._is_name, self.names)):
            return errors.NotFoundError(
                f"{why} with these ordinals, this module and this function; dispatches up to {self._last} "
                f"ran, in calls of {', '.join(self._functions)}"
            )
        return errors.NotFoundError(
            f"{why}; names near it: {near(pattern, self.names) or 'none, no dispatch has run'}"
        )


def near(pattern: str, names: Iterable[str]) -> str:
    """The names that are most like a pattern."""
    wanted = pattern.strip("*")[:_LONGEST]
    return ", ".join(sorted(names, key=lambda name: -_likeness(wanted, name[:_LONGEST]))[:_MOST_NEAR])


def _likeness(pattern: str, name: str) -> int:
    """Characters of the pattern that a name has, in pairs and more."""
    same = SequenceMatcher(None, pattern, name, autojunk=False).get_matching_blocks()
    return sum(block.size for block in same if block.size > 1)


def _submitting_module(dispatch: ObservedDispatch) -> str:
    return dispatch.location.partition("+")[0].rpartition(".")[0]


def _ordinals(given: Ordinals) -> range | frozenset[int] | None:
    if given is None:
        return None
    try:
        if isinstance(given, slice):
            ends = operator.index(given.start or 0), operator.index(given.stop or 0)
            found: range | frozenset[int] = range(
                ends[0], ends[1] if given.stop is not None else 1 << 62, given.step or 1
            )
        elif isinstance(given, range):
            found, ends = given, (given[0], given[-1]) if given else (0, 0)
        else:
            found = frozenset((given,) if isinstance(given, int) else map(operator.index, given))
            ends = min(found, default=0), 0
    except (TypeError, ValueError) as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(
            f"ordinals: expected a number, a range or several numbers but got {shown(given)}"
        ) from None
    if min(ends) < 0:
        raise errors.InvalidArgumentError(
            f"ordinals: {shown(given)} counts from the end of a call, which is not known while it runs"
        )
    return found


def given_types(types: Mapping[int, str] | None) -> dict[int, TensorKind]:
    """Types of bindings by their numbers. INVALID_ARGUMENT for anything else."""
    if types is None:
        return {}
    if not isinstance(types, Mapping) or not all(type(binding) is int for binding in types):
        raise errors.InvalidArgumentError(
            f"types: expected types by number of binding, such as {{1: '4x71xf32'}}, but got {shown(types)}"
        )
    return {binding: tensor_type(text) for binding, text in types.items()}


def tensor_type(text: str) -> TensorKind:
    """``4x71xf32`` INVALID_ARGUMENT for anything else."""
    *shape, element = text.split("x") if isinstance(text, str) else ("", shown(text))
    sizes = sizes_of(shape)
    if element not in BY_NAME or sizes is None:
        raise errors.InvalidArgumentError(f"types: expected a type such as 4x71xf32 but got {shown(text)}")
    return TensorKind(BY_NAME[element], sizes)


class Taps(Unique, Finalized, Onlooker, Sequence[ObservedDispatch]):
    """The dispatches that were tapped, in the order in which they ran."""

    def __init__(
        self,
        observation: Observation,
        selection: Selection,
        keep: Keep = STATS,
        types: Mapping[int, str] | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if not callable(keep) and keep not in (STATS, TENSORS):
            raise errors.InvalidArgumentError(
                f"keep: expected 'stats', 'tensors' or a function but got {shown(keep)}"
            )
        if path is not None and keep != TENSORS:
            raise errors.InvalidArgumentError("path: only whole tensors go to a file; add keep='tensors'")
        self._observation = observation
        self._selection = selection
        self._keep = keep
        self._types = given_types(types)
        self._unused_types = dict(self._types)
        self._file = None if path is None else create_tensor_file(path)
        self._dispatches: list[ObservedDispatch] = []
        self._lock = guard()
        self._is_over = self._is_complete = False
        self.will_end()
        observation.add(self)

    # -- as an onlooker --------------------------------------------------------------------------------

    def types(self, dispatch: ObservedDispatch) -> Mapping[int, TensorKind]:
        return self._types if self._types and dispatch in self._selection else {}

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if dispatch not in self._selection:
            return
        with self._lock:
            if self._is_over:
                return
            self._dispatches.append(dispatch)
            for tensor in (*dispatch.inputs, *dispatch.outputs) if self._unused_types else ():
                if tensor.source == GIVEN:
                    self._unused_types.pop(tensor.binding, None)
            if self._keep == STATS:
                for tensor in dispatch.outputs:
                    tensor.stats = statistics(tensor.pieces, tensor.shape, tensor.type)
            elif self._file is not None:
                for name, tensor in self._named(dispatch, len(self._dispatches) - 1):
                    self._file.add(name, tensor)
            elif self._keep == TENSORS:
                tensors = (*dispatch.inputs, *dispatch.outputs)
                require_memory(dispatch.label, sum(tensor.array_bytes for tensor in tensors))
                for tensor in tensors:
                    tensor.keep()
        if callable(self._keep):
            self._keep(dispatch)

    # -- as a sequence ---------------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: int) -> ObservedDispatch: ...

    @overload
    def __getitem__(self, index: slice) -> list[ObservedDispatch]: ...

    def __getitem__(self, index: int | slice) -> ObservedDispatch | list[ObservedDispatch]:
        try:
            return self._dispatches[index]
        except IndexError:
            count = len(self._dispatches)
            raise errors.OutOfRangeError(
                f"tap {index} of {count}: {self._selection.nothing().message}"
            ) from None

    def __len__(self) -> int:
        return len(self._dispatches)

    @errors.folded
    def plot(self) -> Figure:
        """Draws what the statistics say of each output: range, root of the mean square, values that are not
        finite. A figure of matplotlib; UNAVAILABLE without that."""
        from jitree.observe.plots import plot_statistics

        return plot_statistics(self._dispatches)

    def __iter__(self) -> Iterator[ObservedDispatch]:
        return iter(tuple(self._dispatches))

    @property
    def has_statistics(self) -> bool:
        return self._keep == STATS

    @errors.folded
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the tensors that were kept: npz or safetensors, by dispatch name.

        INVALID_ARGUMENT if none were, and for other endings."""
        if self._keep != TENSORS or self._file is not None:
            raise errors.InvalidArgumentError(
                "save: no tensors were kept; tap with keep='tensors' and without path="
            )
        file = create_tensor_file(path)
        for number, dispatch in enumerate(self):
            for name, tensor in self._named(dispatch, number):
                file.add(name, tensor)
        file.close()

    def _named(self, dispatch: ObservedDispatch, number: int) -> Iterator[tuple[str, ObservedTensor]]:
        """Tensors of a dispatch with their names in a file; ``number`` is that of the tap."""
        place = f".{number}" if dispatch.ordinal is None else f".{dispatch.ordinal}"
        later = dispatch.call - self._dispatches[0].call
        call = f"call{later}." if later else ""
        for kind, tensors in (("input", dispatch.inputs), ("output", dispatch.outputs)):
            for index, tensor in enumerate(tensors):
                yield f"{call}{dispatch.name}{place}.{kind}{index}", tensor

    @errors.folded
    def require_some(self) -> None:
        """NOT_FOUND, with names that are near, if nothing was tapped; INVALID_ARGUMENT for types that no
        tensor has."""
        if not self._dispatches:
            raise self._selection.nothing()
        for binding, kind in self._unused_types.items():
            last = self._dispatches[-1]
            raise errors.InvalidArgumentError(
                f"types: no dispatch that was tapped has the {kind.byte_length} bytes of {kind} in binding "
                f"{binding}; {last.label} has {', '.join(map(repr, (*last.inputs, *last.outputs)))}"
            )

    def stop(self) -> None:
        """Looks at nothing more, and completes the file; again, it does what an interrupt has left."""
        self._observation.remove(self)
        with self._lock:
            self._is_over = True
            if not self._is_complete and self._file is not None:
                self._file.close()
            self._is_complete = True

    def end(self) -> None:
        """Nothing refers to it any more."""
        was_over = self._is_over
        self.stop()
        if not was_over:
            warn(
                "a tap ended because nothing refers to it any more; use it in a with block, or stop it",
                ResourceWarning,
            )

    def __enter__(self) -> Taps:
        return self

    @errors.folded
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """NOT_FOUND if dispatches ran and none was meant."""
        self.stop()
        if error is None and self._selection.names:
            self.require_some()

    def __str__(self) -> str:
        lines = []
        for dispatch in self:
            made = "; ".join(
                f"{tensor.type} ({tensor.source})" if tensor.stats is None else str(tensor.stats)
                for tensor in dispatch.outputs
            )
            if dispatch.left_to:
                made = f"nothing, a kernel does its work with {dispatch.left_to}"
            lines.append(f"{dispatch.label}: {made}")
        return "\n".join(lines) or f"<jitree taps of nothing: {self._selection.nothing().message}>"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from jitree.base.page import notebook
        from jitree.observe.graph import dispatch_pieces

        return notebook("tap", dispatch_pieces(self))


def require_memory(label: str, size: int) -> None:
    """RESOURCE_EXHAUSTED if the system has no memory left for that many bytes."""
    if size < _LOOKED_FOR:
        return
    available = available_memory()
    if size > available:
        raise errors.ResourceExhaustedError(
            f"keeping the tensors of {label} takes {size} bytes of memory and {available} are left; "
            "let them go to a file (path=), keep statistics, or tap fewer dispatches"
        )
