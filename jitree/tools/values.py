"""Parses values of the command line, also from files, into plain host data.

    value     := scalar | tensor | "&" tensor | file | "(null)" | "(ignored)"
    tensor    := {dim "x"} type ["=" contents]
    contents  := "" | elements | ("@" | "+") path
    file      := ("@" | "+" | "*") path                # numpy arrays

Whether a text is a scalar or a tensor is chosen by the parameter it is for, not by the text. Files are raw
bytes, numpy arrays in sequence, and numpy archives.

``run`` makes device values of parsed inputs and host values of results; everything between text and these
classes needs no module and no device. (Records of the command line are NamedTuples where a start pays for
making the class: a frozen dataclass takes five times as long.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile

from jitree import errors
from jitree.base import elements
from jitree.base.arguments import number_of
from jitree.base.elements import Bytes
from jitree.base.elements import HostTensor as HostTensor
from jitree.base.pipes import input_file
from jitree.tools import element_parsing
from jitree.types import (
    BY_NAME,
    CLASS_OPAQUE,
    ELEMENT_TYPES,
    ElementType,
    element_type,
    format_shaped_type,
    is_packed,
)

if TYPE_CHECKING:
    import numpy.typing as npt


class Scalar(NamedTuple):
    type_name: str
    """``i32``, ``i64``, ``f32`` or ``f64``."""
    value: int | float


class Null:
    """A null reference."""

    __slots__ = ()


class Ignored:
    """``(ignored)``: a null input, or an expected value that any result satisfies."""

    __slots__ = ()


class HostBuffer(NamedTuple):
    """Bytes without shape: a ``hal.buffer`` or a ``vm.buffer``."""

    type_name: str
    data: Bytes


class HostList(NamedTuple):
    """A ``vm.list``."""

    items: tuple[HostValue, ...]


class Opaque(NamedTuple):
    """A reference of a type without contents that could be shown."""

    type_name: str


HostValue = Scalar | Null | Ignored | HostTensor | HostBuffer | HostList | Opaque

NULL: Final = Null()
IGNORED: Final = Ignored()


def python_value(value: HostValue) -> Any:
    """An argument that is no object of this process: an array, a number or None."""
    match value:
        case Scalar():
            return value.value
        case HostTensor():
            if value.element_type.bits % 8:
                return value.values.astype(value.element_type.dtype).reshape(value.shape)
            return np.ascontiguousarray(value.data).view(value.element_type.dtype).reshape(value.shape)
        case Null() | Ignored():
            return None
    raise errors.InvalidArgumentError(
        "only tensors and numbers can be given to programs that are compared or run in a separate process"
    )


def to_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of an array in row-major order; shares memory where the array is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


START: Final = "@"
REMAINING: Final = "*"


def is_numpy_file(path: str) -> bool:
    """Tells whether a path names arrays with shapes and types, or an archive's."""
    return path.endswith((".npy", ".npz")) or ".npz:" in path


class ValueFiles:
    """Keeps one command's files open, so that ``+`` continues where a read ended."""

    def __init__(self) -> None:
        self._open: dict[str, BinaryIO] = {}

    def __enter__(self) -> ValueFiles:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()

    def _at(self, mode: str, path: str) -> BinaryIO:
        file = self._open.get(path)
        if path == "-":
            from jitree.vmfb.archive import standard_input

            return standard_input()
        if file is None:
            file = self._open[path] = _opened(path)
        if mode == START:
            file.seek(0)
        return file

    def read_bytes(self, mode: str, path: str, length: int) -> elements.Bytes:
        """Reads ``length`` bytes from a file's start (``@``) or the last read's end (``+``)."""
        raw = self._at(mode, path).read(length)
        if len(raw) < length:
            raise errors.OutOfRangeError(f"end-of-file: `{path}` has {len(raw)} of the {length} bytes wanted")
        return np.frombuffer(raw, np.uint8)

    def read_arrays(self, mode: str, path: str) -> list[HostTensor]:
        """The array a value like ``@f.npy`` names; ``*f.npy`` and ``@f.npz`` may name several."""
        archive, separator, key = path.partition(".npz:")
        if separator:
            return [self._archive_array(f"{archive}.npz", key)]
        if path.endswith(".npz"):
            return self._archive_arrays(path)
        if not path.endswith(".npy"):
            from jitree.tools.input_files import is_other_file, read_tensors

            if is_other_file(path):
                return read_tensors(path)
            raise errors.UnimplementedError(
                "only .npy, .npz, .safetensors and .json files carry a shape and type, and images whose "
                f"layout is stated; give them: `4x2xf32=@{path}`"
            )
        file = self._at(mode, path)
        if mode != REMAINING:
            return [array_tensor(read_next(file, path))]
        tensors = []
        while not is_at_end(file):
            tensors.append(array_tensor(read_next(file, path)))
        return tensors

    def _archive_arrays(self, path: str) -> list[HostTensor]:
        with _open_archive(path) as archive:
            if not archive.files:
                raise errors.OutOfRangeError(f"end-of-file: no array in `{path}`")
            return [_member(archive, name) for name in archive.files]

    def _archive_array(self, path: str, key: str) -> HostTensor:
        with _open_archive(path) as archive:
            if key not in archive.files:
                raise errors.NotFoundError(f"no array `{key}` in `{path}`; it has {', '.join(archive.files)}")
            return _member(archive, key)


def missing_file(path: str) -> errors.NotFoundError:
    """Says that a file is not there, and which one is like it."""
    from jitree.base.near_names import near_path  # only failures pay for it

    return errors.NotFoundError(f"unable to open file `{path}`: it does not exist{near_path(path)}")


def _opened(path: str) -> BinaryIO:
    with errors.system_refusals(f"unable to open file `{path}`"):
        try:
            return input_file(path)
        except FileNotFoundError:
            raise missing_file(path) from None


@contextmanager
def _open_archive(path: str) -> Iterator[NpzFile]:
    """The archive; INVALID_ARGUMENT for what is none, or damaged where it is read."""
    with _opened(path) as file, _reading(path, "archive"), NpzFile(file, allow_pickle=False) as archive:
        yield archive


@contextmanager
def _reading(path: str, what: str) -> Iterator[None]:
    """INVALID_ARGUMENT for what numpy cannot read, RESOURCE_EXHAUSTED for what does not fit in memory."""
    from jitree.params.numpy_files import DAMAGE, UNKNOWN  # needs zipfile, which is slow to import

    try:
        with np.errstate(all="ignore"):  # sizes that do not fit 64 bits
            yield
    except errors.StatusError:
        raise
    except (*DAMAGE, *UNKNOWN) as error:
        errors.pass_interruption(error)
        raise errors.InvalidArgumentError(f"`{path}` is not a numpy {what}: {error}") from None
    except MemoryError as error:
        errors.pass_interruption(error)
        raise errors.ResourceExhaustedError(f"`{path}` does not fit in memory: {error}") from None


def _member(archive: NpzFile, name: str) -> HostTensor:
    from jitree.params.numpy_files import read_array

    opened, file = archive.zip, f"{name}.npy"
    assert opened is not None, "it is open"
    with opened.open(file if file in opened.namelist() else name) as stream:
        is_array = stream.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
        stream.seek(0)
        if not is_array:
            raise ValueError(f"`{name}` in it is no array")
        return array_tensor(read_array(stream))


def is_at_end(file: BinaryIO) -> bool:
    """Whether a file has no more bytes."""
    position = file.tell()
    ended = not file.read(1)
    file.seek(position)
    return ended


def read_next(file: BinaryIO, path: str) -> npt.NDArray[Any]:
    """Reads the array that follows in a file."""
    from jitree.params.numpy_files import read_array

    if is_at_end(file):
        raise errors.OutOfRangeError(f"end-of-file: no further array in `{path}`")
    with _reading(path, "array file"):
        return read_array(file)


def array_tensor(array: npt.NDArray[Any]) -> HostTensor:
    """A tensor of an array's contents; signed integers stay signed, as numpy files say."""
    row = _array_element_type(array.dtype)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return HostTensor(row, tuple(array.shape), to_bytes(native))


def _array_element_type(dtype: np.dtype[Any]) -> ElementType:
    bits = dtype.itemsize * 8
    match dtype.kind:
        case "b":
            return BY_NAME["i1"]
        case "i":
            return BY_NAME[f"si{bits}"]
        case "u":
            return BY_NAME[f"ui{bits}"]
        case "f" if bits <= 64:
            return BY_NAME[f"f{bits}"]
        case "c" if bits <= 128:
            return BY_NAME[f"cf{bits}"]
        case "V" if dtype.fields is None and 0 < bits <= 248:
            return element_type(bits)
    raise errors.UnimplementedError(f"arrays of dtype {dtype} have no element type")


SCALAR_TYPES: Final = {"i": "i32", "I": "i64", "f": "f32", "F": "f64"} | {
    row.name: row.name for row in ELEMENT_TYPES if elements.is_float(row) and row.bits < 32
}
"""Type names of the kinds of scalars: letters of a calling convention, and the floats that it passes as the
bits of an integer. Every other kind is a reference."""

_OPAQUE_SCALAR: Final = re.compile(r"\*[0-9]+\s*(=|$)")
"""``*32=01020304``: a tensor of rank 0, where ``*name.npy`` is a file."""
_MAX_DIMENSION: Final = (1 << 63) - 1


def of_kind(value: HostValue, kind: str) -> HostValue:
    """Gives an array of rank 0, a file's scalar, as a scalar if wanted."""
    if kind not in SCALAR_TYPES or not isinstance(value, HostTensor):
        return value
    row = BY_NAME[SCALAR_TYPES[kind]]
    if value.shape or not _interchangeable(value.element_type, row):
        raise errors.InvalidArgumentError(
            f"the parameter is a scalar {row.name}, the file holds a {value.shaped_type} array"
        )
    return Scalar(row.name, value.data.view(row.dtype)[0].item())


def parse_value(text: str, kind: str, files: ValueFiles) -> list[HostValue]:
    """What one text gives a parameter of a kind (see SCALAR_TYPES); several only for files."""
    text = text.strip()
    if not text:
        raise errors.InvalidArgumentError("no value specified for input")
    if text == "(null)":
        return [NULL]
    if text == "(ignored)":
        return [IGNORED]
    if text[0] in "@+*" and not _OPAQUE_SCALAR.match(text):
        return list(files.read_arrays(text[0], text[1:].strip()))
    if kind in SCALAR_TYPES:
        return [_parse_scalar(text, SCALAR_TYPES[kind])]
    if text[0] == "&":
        return [HostBuffer("hal.buffer", parse_tensor(text[1:], files).data)]
    return [parse_tensor(text, files)]


def _parse_scalar(text: str, type_name: str) -> Scalar:
    if elements.is_float(BY_NAME[type_name]):
        value = element_parsing.parse_elements([_single_number(text, type_name)], BY_NAME[type_name])
        return Scalar(type_name, float(value[0]))
    bits = int(type_name[1:])
    low, high = element_parsing.integer_range(BY_NAME[type_name])
    number = element_parsing.parse_integer(_single_number(text, type_name), low, high)
    return Scalar(type_name, number - (1 << bits) if number >= 1 << (bits - 1) else number)


def _single_number(text: str, type_name: str) -> str:
    """The number of a scalar's text, which may repeat its type: ``7`` or ``i32=7``."""
    prefix, separator, number = text.partition("=")
    if not separator:
        return text
    if prefix.strip() == type_name:
        return number.strip()
    raise errors.InvalidArgumentError(
        f"parsing value `{text}` as {type_name}: the parameter is a scalar, not a tensor"
    )


def parse_tensor(text: str, files: ValueFiles) -> HostTensor:
    """A tensor from ``4x2xf32=…``."""
    shaped_type, separator, contents = text.partition("=")
    if not separator and "x" not in shaped_type and not is_element_type(shaped_type.strip()):
        raise errors.InvalidArgumentError(
            "invalid tensor specification, requires at least a shape/type (`4x2xf32=...`)"
        )
    shape, row = parse_shaped_type(shaped_type)
    contents = contents.strip()
    if contents[:1] in ("@", "+"):
        return _read_contents(contents[0], contents[1:].strip(), shape, row, files)
    return HostTensor(row, shape, parse_contents(contents, shape, row))


def is_element_type(name: str) -> bool:
    """Whether a name is one of an element type."""
    try:
        element_parsing.find_element_type(name)
    except errors.InvalidArgumentError:
        return False
    return True


def parse_shaped_type(text: str) -> tuple[tuple[int, ...], ElementType]:
    """``4x2xf32`` → ((4, 2), f32); ``f32`` and ``xf32`` have no dimensions."""
    text = text.strip()
    start = text.find("complex<")
    before, _, rest = text[: start if start >= 0 else None].rpartition("x")
    shape = []
    for axis, dimension in enumerate(before.split("x") if before else ()):
        if not (dimension.isascii() and dimension.isdigit()) or number_of(dimension) > _MAX_DIMENSION:
            raise errors.InvalidArgumentError(f"shape[{axis}] invalid value '{dimension}' of '{text}'")
        shape.append(int(dimension))
    return tuple(shape), element_parsing.find_element_type(rest + text[start:] if start >= 0 else rest)


def parse_contents(contents: str, shape: tuple[int, ...], row: ElementType) -> elements.Bytes:
    """The bytes of a tensor's elements; none gives zeros, one is repeated for all elements."""
    length = row.byte_length(shape)
    count = elements.count_elements(shape)
    tokens = element_parsing.split_elements(contents)
    if not tokens:
        return _zeros(length)
    items = element_parsing.parse_elements(tokens, row)
    spelling = element_parsing.spelling_of(row)
    if len(tokens) > count:
        raise errors.OutOfRangeError(
            f"output data overflow: element_capacity={count} < dst_i={len(tokens)}{spelling}"
        )
    if 1 < len(tokens) < count:
        raise errors.OutOfRangeError(
            f"input data string underflow: dst_i={len(tokens)} < element_capacity={count}{spelling}"
        )
    with _memory_for(length):
        if len(items) < count:
            items = np.repeat(items, count)
        return elements.pack_integers(items, row) if is_packed(row) else to_bytes(items)


def _zeros(length: int) -> elements.Bytes:
    with _memory_for(length):
        return np.zeros(length, np.uint8)


@contextmanager
def _memory_for(length: int) -> Iterator[None]:
    """Refuses (RESOURCE_EXHAUSTED) an array that there is no memory for."""
    try:
        yield
    except (MemoryError, ValueError, OverflowError) as error:
        errors.pass_interruption(error)
        raise errors.ResourceExhaustedError(f"a tensor of {length} bytes does not fit in memory") from None


def _read_contents(
    mode: str, path: str, shape: tuple[int, ...], row: ElementType, files: ValueFiles
) -> HostTensor:
    if not is_numpy_file(path) and "." in path:
        from jitree.tools.input_files import is_other_file, read_as

        if is_other_file(path) and "?" in path:
            return read_as(path, shape, row)
    if not is_numpy_file(path) and ".safetensors" not in path:
        return HostTensor(row, shape, files.read_bytes(mode, path, row.byte_length(shape)))
    array, *others = files.read_arrays(mode, path)
    if others:
        raise errors.InvalidArgumentError(
            f"`{path}` holds {len(others) + 1} arrays; name one: `@{path}:<key>`"
        )
    same_type = _interchangeable(array.element_type, row)
    if not same_type or array.shape != shape:
        raise errors.InvalidArgumentError(
            f"`{path}` holds a {array.shaped_type} array, not {format_shaped_type(shape, row)}"
        )
    return HostTensor(row, shape, array.data)


def _interchangeable(stored: ElementType, wanted: ElementType) -> bool:
    """Integers differ by signedness only; numpy stores types it does not know as opaque bytes."""
    if stored.bits != wanted.bits:
        return False
    both_integers = elements.is_integer(stored) and elements.is_integer(wanted)
    return both_integers or stored.numerical_class in (wanted.numerical_class, CLASS_OPAQUE)
