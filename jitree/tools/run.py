"""Calls a function of a module: ``jitree run``. It prints, stores or checks the results."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from jitree.base import elements
from jitree.base.cancel_scopes import deadline
from jitree.base.elements import DEFAULT_MAX_ELEMENT_COUNT, Mask, near
from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    UnimplementedError,
    error_context,
    system_refusals,
)
from jitree.tools import devices
from jitree.tools import values as hv
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.observe_flags import looking_into, profiling, require_finite, warm_up
from jitree.tools.program import OpenedProgram, find_function, open_program
from jitree.tools.values import ValueFiles, of_kind, parse_value
from jitree.types import BY_NAME, is_packed

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.function import Function

_ARCHIVE: Final = ".npz"

SUCCESS: Final = "[SUCCESS] all function outputs matched their expected values.\n"
_SIGNLESS: Final = 0x10


def scalar_text(scalar: hv.Scalar) -> str:
    """``7``, ``9.8596``, ``1e-06``."""
    return str(scalar.value) if isinstance(scalar.value, int) else elements.float_text(scalar.value).lower()


def type_text(value: hv.HostValue) -> str:
    """Name of the value's type, as results and mismatches name it."""
    match value:
        case hv.Scalar():
            return value.type_name
        case hv.HostTensor():
            return "hal.buffer_view"
        case hv.HostBuffer() | hv.Opaque():
            return value.type_name
        case hv.HostList():
            return "vm.list"
        case hv.Null() | hv.Ignored():
            return "(null)"


def value_text(value: hv.HostValue, max_element_count: int = DEFAULT_MAX_ELEMENT_COUNT) -> str:
    """The text of any value, ending in a newline."""
    match value:
        case hv.Scalar():
            return f"{value.type_name}={scalar_text(value)}\n"
        case hv.Null() | hv.Ignored():
            return "(null)\n"
        case hv.HostTensor():
            return f"hal.buffer_view\n{value.text(max_element_count)}\n"
        case hv.HostList():
            items = "".join(
                f"child_list[{i}]: {value_text(item, max_element_count)}"
                for i, item in enumerate(value.items)
            )
            return f"vm.list\n{items}\n"
        case hv.HostBuffer(type_name="vm.buffer"):
            return f"vm.buffer\n{_buffer_text(value, max_element_count)}\n"
        case hv.HostBuffer() | hv.Opaque():
            return f"{value.type_name}\n(no printer)\n"


def _buffer_text(buffer: hv.HostBuffer, max_element_count: int) -> str:
    shown = max_element_count if max_element_count >= 0 else len(buffer.data)
    elided = "..." if len(buffer.data) > shown else ""
    return f"{len(buffer.data)} bytes: {buffer.data[:shown].tobytes().hex().upper()}{elided}"


def write_outputs(
    results: Sequence[hv.HostValue],
    specifications: Sequence[str],
    max_element_count: int,
    write: Callable[[str], object],
) -> None:
    """Sends each result where its specification says; ``write`` receives what is printed.

    Without specifications every result is printed as ``result[<i>]: …``. The last one may name a numpy
    archive, which takes all results that remain.
    """
    if not specifications:
        for index, value in enumerate(results):
            write(f"result[{index}]: {value_text(value, max_element_count)}")
        return
    *first, last = specifications
    missing = len(results) - len(specifications)
    if missing and not (missing > 0 and last.endswith(_ARCHIVE)):
        raise OutOfRangeError(
            f"{len(specifications)} outputs specified but the provided variant list only has "
            f"{len(results)} elements"
        )
    shares = [*((value,) for value in results[: len(first)]), results[len(first) :]]
    for share, specification in zip(shares, specifications, strict=True):
        if specification == "-":
            write("".join(value_text(value, max_element_count) for value in share))
        elif specification:
            _write_file(share, specification)


def _write_file(values: Sequence[hv.HostValue], specification: str) -> None:
    if specification[0] not in "@+":
        raise UnimplementedError(
            f"unsupported output mode specification '{specification}'; "
            "`-` prints, `@path` writes and `+path` appends a file"
        )
    path = specification[1:]
    replace = specification[0] == "@"
    with system_refusals(f"unable to write file `{path}`"):
        if path.endswith(_ARCHIVE):
            _write_archive(values, path, replace)
        else:
            (value,) = values
            contents = _npy_bytes(value) if path.endswith(".npy") else _array(value).tobytes()
            with open(path, "wb" if replace else "ab") as file:
                file.write(contents)


def _write_archive(values: Sequence[hv.HostValue], path: str, replace: bool) -> None:
    """Writes an archive in which arrays are named by number, as numpy does."""
    import zipfile  # slow, and most calls write no archive

    contents = [_npy_bytes(value) for value in values]
    if not replace and os.path.exists(path) and not (os.path.isfile(path) and zipfile.is_zipfile(path)):
        raise InvalidArgumentError(f"`{path}` is not a numpy archive, so nothing can be appended to it")
    with zipfile.ZipFile(path, "w" if replace else "a") as archive:
        for content in contents:
            archive.writestr(f"arr_{len(archive.namelist())}.npy", content)


def _npy_bytes(value: hv.HostValue) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, _array(value), version=(1, 0), allow_pickle=False)
    return stream.getvalue()


def _array(value: hv.HostValue) -> npt.NDArray[Any]:
    """The value as numpy stores it: types numpy does not have become opaque bytes (``V2``, ``V1`` …)."""
    match value:
        case hv.Scalar():
            row = BY_NAME[value.type_name]
            data = np.array(value.value).astype(row.dtype).reshape(1).view(np.uint8)
            return _tensor_array(hv.HostTensor(row, (), data))
        case hv.Null():
            return np.empty(0, np.int8)
        case hv.HostBuffer():
            return value.data.view(np.int8)
        case hv.HostTensor():
            return _tensor_array(value)
    raise InvalidArgumentError(
        f"a result of type {type_text(value)} cannot be written to a file; "
        "expected: !hal.buffer, !hal.buffer_view, !vm.buffer"
    )


def _tensor_array(tensor: hv.HostTensor) -> npt.NDArray[Any]:
    row = tensor.element_type
    if is_packed(row):
        return tensor.values.astype(np.int8).reshape(tensor.shape)
    foreign = row.numpy_name.startswith(("bfloat", "float8"))
    dtype = np.dtype(f"V{row.bits // 8}" if foreign else row.numpy_name)
    return np.ascontiguousarray(tensor.data).view(dtype).reshape(tensor.shape)


class Tolerances(NamedTuple):
    """Allows ``abs(a - e) <= absolute[type] + relative * abs(e)``. Types not listed compare their bytes."""

    absolute: dict[str, float]
    relative: float


EXACT: Final = Tolerances({}, 0.0)
"""Every type compares its bytes."""


def compare(
    results: Sequence[hv.HostValue],
    expected: Sequence[hv.HostValue],
    tolerances: Tolerances,
    max_element_count: int,
) -> list[str]:
    """One text (ending in a newline) for every result that differs; empty when all match."""
    if len(results) != len(expected):
        return [f"[FAILED] expected {len(expected)} list elements but {len(results)} provided\n"]
    failures = []
    for index, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
        difference = _compare_value(actual, wanted, tolerances, max_element_count)
        if difference is not None:
            failures.append(f"[FAILED] result[{index}]: {difference}")
    return failures


def _compare_value(
    actual: hv.HostValue, wanted: hv.HostValue, tolerances: Tolerances, max_element_count: int
) -> str | None:
    match actual, wanted:
        case _, hv.Ignored():
            return None
        case hv.Null(), hv.Null():
            return None
        case hv.Scalar(), hv.Scalar() if actual.type_name == wanted.type_name:
            return _compare_scalars(actual, wanted, tolerances)
        case hv.HostTensor(), hv.HostTensor():
            return _compare_tensors(actual, wanted, tolerances, max_element_count)
        case hv.HostBuffer(), hv.HostBuffer() if actual.type_name == wanted.type_name:
            return _compare_buffers(actual, wanted)
    return f"variant types mismatch; expected {_variant_type(wanted)} but got {_variant_type(actual)}\n"


def _variant_type(value: hv.HostValue) -> str:
    return "empty" if isinstance(value, hv.Null) else type_text(value)


def _compare_scalars(actual: hv.Scalar, wanted: hv.Scalar, tolerances: Tolerances) -> str | None:
    if actual.value == wanted.value:
        return None
    absolute = tolerances.absolute.get(actual.type_name)
    values = np.array(actual.value), np.array(wanted.value)
    if absolute is not None and near(*values, absolute, tolerances.relative):
        return None
    return (
        f"{actual.type_name} values differ\n"
        f"  expected: {scalar_text(wanted)}\n  actual: {scalar_text(actual)}\n"
    )


def _compare_buffers(actual: hv.HostBuffer, wanted: hv.HostBuffer) -> str | None:
    if np.array_equal(actual.data, wanted.data):
        return None
    return (
        f"{actual.type_name} contents differ\n  expected: {len(wanted.data)} bytes\n"
        f"  actual: {len(actual.data)} bytes\n"
    )


def _compare_tensors(
    actual: hv.HostTensor, wanted: hv.HostTensor, tolerances: Tolerances, max_element_count: int
) -> str | None:
    tail = f"expected that the view is equal to contents of a view of {wanted.shaped_type}\n"
    blocks = f"  expected:\n{wanted.text(max_element_count)}\n  actual:\n{actual.text(max_element_count)}\n"
    if actual.shape != wanted.shape or not _same_type(actual, wanted):
        head = f"metadata is {actual.shaped_type}; expected that the view matches {wanted.shaped_type}; "
        return head + tail + blocks
    differing = np.flatnonzero(~_matching(actual, wanted, tolerances))
    if not len(differing):
        return None
    first = int(differing[0])
    return (
        f"element at index {first} ({actual.element_text(first)}) does not match the expected "
        f"({wanted.element_text(first)}); {tail}{blocks}{_summary(actual, wanted, differing)}"
    )


def _same_type(actual: hv.HostTensor, wanted: hv.HostTensor) -> bool:
    """Equal types; a signless integer (which numpy files cannot state) goes with both signednesses."""
    given, asked = actual.element_type, wanted.element_type
    if given.code == asked.code:
        return True
    integers = elements.is_integer(given) and elements.is_integer(asked) and given.bits == asked.bits
    return integers and _SIGNLESS in (given.numerical_class, asked.numerical_class)


def _matching(actual: hv.HostTensor, wanted: hv.HostTensor, tolerances: Tolerances) -> Mask:
    """Per element: whether it matches."""
    absolute = tolerances.absolute.get(actual.element_type.name)
    if absolute is None:
        return actual.has_bits_of(wanted)
    return near(actual.values, wanted.values, absolute, tolerances.relative)


def _summary(actual: hv.HostTensor, wanted: hv.HostTensor, differing: npt.NDArray[np.intp]) -> str:
    text = f"  {len(differing)} of {actual.element_count} elements differ"
    if not (elements.is_integer(actual.element_type) or elements.is_float(actual.element_type)):
        return text + "\n"
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(_wide(actual)[differing] - _wide(wanted)[differing])
    distance = np.where(np.isnan(distance), -1.0, distance)
    worst = int(np.argmax(distance))
    if distance[worst] < 0:
        return text + "\n"
    position = np.unravel_index(int(differing[worst]), actual.shape) if actual.shape else ()
    where = ",".join(str(int(axis)) for axis in position)
    return f"{text}; largest |a-e| = {distance[worst]:g} at [{where}]\n"


def _wide(tensor: hv.HostTensor) -> npt.NDArray[np.float64]:
    return tensor.values.astype(np.float64)


FLAGS: Final = flag_set(
    "run",
    "calls a function of a compiled module and prints, stores or checks its results",
    "module interpreter packed sandbox deadline function input value device parameter seeing finite "
    "profiling profiled refused",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0, or 1 when results differ from what was expected."""
    if devices.answer_queries(flags):
        return 0
    with open_program(flags) as program, ValueFiles() as files:
        return _run(program, flags, files)


def _run(program: OpenedProgram, flags: ParsedFlags, files: ValueFiles) -> int:
    from jitree.tools.calling import parse_inputs, prepare

    with error_context("creating run context"):
        function = find_function(program, flags.text("function"))
    inputs = parse_inputs(function, flags.texts("input"), files)
    sys.stdout.write(f"EXEC @{function.name}\n")
    sys.stdout.flush()
    prepared = prepare(function, inputs)
    session = program.session
    first = warm_up(session, prepared, flags)
    with profiling(session, flags), looking_into(session, flags), deadline(flags.number("timeout")):
        called = prepared.call()
        require_finite(session, called)
        results = first or prepared.to_host(called)
    with error_context(f"`{function.declaration}`"), error_context("processing function outputs"):
        return finish(function, results, flags, files)


def finish(function: Function, results: list[hv.HostValue], flags: ParsedFlags, files: ValueFiles) -> int:
    """Prints, stores or checks the results of a call; returns the exit code."""
    limit = flags.integer("output_max_element_count")
    if "expected_output" not in flags.given:
        with error_context("outputting results"):
            write_outputs(results, flags.texts("output"), limit, sys.stdout.write)
        return 0
    wanted = _parse_expected(function, flags.texts("expected_output"), files)
    failures = compare(results, wanted, tolerances(flags), limit)
    sys.stdout.write("".join(failures) or SUCCESS)
    return 1 if failures else 0


def _parse_expected(function: Function, texts: Sequence[str], files: ValueFiles) -> list[hv.HostValue]:
    """Expected values; texts beyond the number of results are read as tensors and counted later."""
    from jitree.tools.calling import result_kinds

    kinds = result_kinds(function)
    values: list[hv.HostValue] = []
    for text in texts:
        with error_context("parsing expected function outputs"), error_context(f"parsing input `{text}`"):
            parsed = parse_value(text, kinds[len(values)] if len(values) < len(kinds) else "r", files)
            rest = (*kinds[len(values) :], *repeat("r", len(parsed)))
            values += [of_kind(*pair) for pair in zip(parsed, rest, strict=False)]
    return values


def tolerances(flags: ParsedFlags) -> Tolerances:
    """How close results have to be."""
    if flags.text("equality_mode") == "exact":
        return EXACT
    types = ("f16", "bf16", "f32", "f64")
    absolute = {name: flags.number(f"expected_{name}_threshold") for name in types}
    return Tolerances(absolute, flags.number("expected_rtol"))
