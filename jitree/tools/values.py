"""Parses the values of ``--input=`` and ``--expected_output=``.

    value     := scalar | tensor | "&" tensor | file | "(null)" | "(ignored)"
    tensor    := {dim "x"} type ["=" contents]
    contents  := "" | elements | ("@" | "+") path
    file      := ("@" | "+" | "*") path                # numpy arrays

Whether a text is a scalar or a tensor is chosen by the parameter it is for, not by the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from jitree.base import elements
from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    ResourceExhaustedError,
    error_context,
    pass_interruption,
)
from jitree.tools import element_parsing
from jitree.tools import host_values as hv
from jitree.tools.value_files import ValueFiles, is_numpy_file
from jitree.types import BY_NAME, CLASS_OPAQUE, ELEMENT_TYPES, ElementType, format_shaped_type, is_packed

SCALAR_TYPES: Final = {"i": "i32", "I": "i64", "f": "f32", "F": "f64"} | {
    row.name: row.name for row in ELEMENT_TYPES if elements.is_float(row) and row.bits < 32
}
"""Type names of the kinds of scalars: letters of a calling convention, and the floats that it passes as the
bits of an integer. Every other kind is a reference."""

_OPAQUE_SCALAR: Final = re.compile(r"\*[0-9]+\s*(=|$)")
"""``*32=01020304``: a tensor of rank 0, where ``*name.npy`` is a file."""
_MAX_DIMENSION: Final = (1 << 63) - 1


def parse_values(texts: Sequence[str], kinds: Sequence[str], files: ValueFiles) -> list[hv.HostValue]:
    """The values for parameters of the given kinds, in order.

    One text may yield several values (``*arrays.npy``). Fewer values than parameters are returned as
    they are; more are INVALID_ARGUMENT. Contexts name the text.
    """
    values: list[hv.HostValue] = []
    for text in texts:
        with error_context("parsing function inputs"), error_context(f"parsing input `{text}`"):
            kind = kinds[len(values)] if len(values) < len(kinds) else None
            if kind is None:
                raise InvalidArgumentError(f"function expected fewer input values; it takes {len(kinds)}")
            parsed = parse_value(text, kind, files)
            if len(values) + len(parsed) > len(kinds):
                raise InvalidArgumentError(
                    f"function expected fewer input values; it takes {len(kinds)}, "
                    f"with these there are {len(values) + len(parsed)}"
                )
            values += [_as_input(*pair) for pair in zip(parsed, kinds[len(values) :], strict=False)]
    return values


def _as_input(value: hv.HostValue, kind: str) -> hv.HostValue:
    """``(null)`` and ``(ignored)`` are 0 for a scalar parameter and a null reference for the others."""
    if not isinstance(value, hv.Null | hv.Ignored):
        return of_kind(value, kind)
    if kind not in SCALAR_TYPES:
        return hv.NULL
    return hv.Scalar(SCALAR_TYPES[kind], 0 if kind in "iI" else 0.0)


def of_kind(value: hv.HostValue, kind: str) -> hv.HostValue:
    """An array of rank 0, which is how files hold scalars, as the scalar that it is for a scalar kind."""
    if kind not in SCALAR_TYPES or not isinstance(value, hv.HostTensor):
        return value
    row = BY_NAME[SCALAR_TYPES[kind]]
    if value.shape or not _interchangeable(value.element_type, row):
        raise InvalidArgumentError(
            f"the parameter is a scalar {row.name}, the file holds a {value.shaped_type} array"
        )
    return hv.Scalar(row.name, value.data.view(row.dtype)[0].item())


def parse_value(text: str, kind: str, files: ValueFiles) -> list[hv.HostValue]:
    """What one text gives a parameter of a kind (see SCALAR_TYPES); several only for files."""
    text = text.strip()
    if not text:
        raise InvalidArgumentError("no value specified for input")
    if text == "(null)":
        return [hv.NULL]
    if text == "(ignored)":
        return [hv.IGNORED]
    if text[0] in "@+*" and not _OPAQUE_SCALAR.match(text):
        return list(files.read_arrays(text[0], text[1:].strip()))
    if kind in SCALAR_TYPES:
        return [_parse_scalar(text, SCALAR_TYPES[kind])]
    if text[0] == "&":
        return [hv.HostBuffer("hal.buffer", parse_tensor(text[1:], files).data)]
    return [parse_tensor(text, files)]


def _parse_scalar(text: str, type_name: str) -> hv.Scalar:
    if elements.is_float(BY_NAME[type_name]):
        value = element_parsing.parse_elements([_single_number(text, type_name)], BY_NAME[type_name])
        return hv.Scalar(type_name, float(value[0]))
    bits = int(type_name[1:])
    low, high = element_parsing.integer_range(BY_NAME[type_name])
    number = element_parsing.parse_integer(_single_number(text, type_name), low, high)
    return hv.Scalar(type_name, number - (1 << bits) if number >= 1 << (bits - 1) else number)


def _single_number(text: str, type_name: str) -> str:
    """The number of a scalar's text, which may repeat its type: ``7`` or ``i32=7``."""
    prefix, separator, number = text.partition("=")
    if not separator:
        return text
    if prefix.strip() == type_name:
        return number.strip()
    raise InvalidArgumentError(
        f"parsing value `{text}` as {type_name}: the parameter is a scalar, not a tensor"
    )


def parse_tensor(text: str, files: ValueFiles) -> hv.HostTensor:
    """A tensor from ``4x2xf32=…``."""
    shaped_type, separator, contents = text.partition("=")
    if not separator and "x" not in shaped_type and not _is_element_type(shaped_type.strip()):
        raise InvalidArgumentError(
            "invalid tensor specification, requires at least a shape/type (`4x2xf32=...`)"
        )
    shape, row = parse_shaped_type(shaped_type)
    contents = contents.strip()
    if contents[:1] in ("@", "+"):
        return _read_contents(contents[0], contents[1:].strip(), shape, row, files)
    return hv.HostTensor(row, shape, parse_contents(contents, shape, row))


def _is_element_type(name: str) -> bool:
    try:
        element_parsing.find_element_type(name)
    except InvalidArgumentError:
        return False
    return True


def parse_shaped_type(text: str) -> tuple[tuple[int, ...], ElementType]:
    """``4x2xf32`` → ((4, 2), f32); ``f32`` and ``xf32`` have no dimensions."""
    text = text.strip()
    start = text.find("complex<")
    before, _, rest = text[: start if start >= 0 else None].rpartition("x")
    shape = []
    for axis, dimension in enumerate(before.split("x") if before else ()):
        if not (dimension.isascii() and dimension.isdigit()) or int(dimension) > _MAX_DIMENSION:
            raise InvalidArgumentError(f"shape[{axis}] invalid value '{dimension}' of '{text}'")
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
        raise OutOfRangeError(
            f"output data overflow: element_capacity={count} < dst_i={len(tokens)}{spelling}"
        )
    if 1 < len(tokens) < count:
        raise OutOfRangeError(
            f"input data string underflow: dst_i={len(tokens)} < element_capacity={count}{spelling}"
        )
    with _memory_for(length):
        if len(items) < count:
            items = np.repeat(items, count)
        return elements.pack_integers(items, row) if is_packed(row) else hv.to_bytes(items)


def _zeros(length: int) -> elements.Bytes:
    with _memory_for(length):
        return np.zeros(length, np.uint8)


@contextmanager
def _memory_for(length: int) -> Iterator[None]:
    """RESOURCE_EXHAUSTED when an array cannot be made because there is no memory of that length."""
    try:
        yield
    except (MemoryError, ValueError, OverflowError) as error:
        pass_interruption(error)
        raise ResourceExhaustedError(f"a tensor of {length} bytes does not fit in memory") from None


def _read_contents(
    mode: str, path: str, shape: tuple[int, ...], row: ElementType, files: ValueFiles
) -> hv.HostTensor:
    if not is_numpy_file(path):
        return hv.HostTensor(row, shape, files.read_bytes(mode, path, row.byte_length(shape)))
    array, *others = files.read_arrays(mode, path)
    if others:
        raise InvalidArgumentError(f"`{path}` holds {len(others) + 1} arrays; name one: `@{path}:<key>`")
    same_type = _interchangeable(array.element_type, row)
    if not same_type or array.shape != shape:
        raise InvalidArgumentError(
            f"`{path}` holds a {array.shaped_type} array, not {format_shaped_type(shape, row)}"
        )
    return hv.HostTensor(row, shape, array.data)


def _interchangeable(stored: ElementType, wanted: ElementType) -> bool:
    """Integers differ by signedness only; numpy stores types it does not know as opaque bytes."""
    if stored.bits != wanted.bits:
        return False
    both_integers = elements.is_integer(stored) and elements.is_integer(wanted)
    return both_integers or stored.numerical_class in (wanted.numerical_class, CLASS_OPAQUE)
