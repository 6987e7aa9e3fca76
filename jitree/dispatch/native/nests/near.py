"""Loads elements of lanes near each other: two rows, looked up in registers.

A gather takes as long as its elements one after the other, and little runs beside it: 42 cycles for 16 of
them, where a row takes one. Indices that are computed for each element, as those of a resized image, often
lie near each other. Where those of all lanes lie in 32 elements, from a few before the first or the last
lane's on, these are loaded, and AVX-512 looks the lanes up in them. Doubling an image took 245 us, and takes
180. Whether they do is seen for each vector: lanes may belong to two rows of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jitree.dispatch.native.nests.folds import has_masks
from jitree.dispatch.native.nests.reductions import LANES
from jitree.dispatch.native.nests.writer import NestBuffer, Writer

BEFORE: Final = 8
"""Elements before both the first and the last lane's that others may have: those of another row."""
_ROWS: Final = 2
_ELEMENT_BYTES: Final = 4
_LONGEST: Final = 1 << 33
"""Bytes of a buffer in which differences of 32 bits tell elements apart."""
_LOOK_UP: Final = {"float": "ps", "i32": "d"}
"""The instruction's suffix, by LLVM's type of elements."""


def may_be_near(kind: str, lanes: int, mask: str | None) -> bool:
    """Whether the processor looks up such elements; all lanes have one."""
    return has_masks() and kind in _LOOK_UP and lanes == LANES and mask is None


def load_near(
    writer: Writer, buffer: NestBuffer, kind: str, pointer: str, distances: str, gather: Callable[[], str]
) -> str:
    """Loads the elements at distances from a place in a buffer, which has them; ``gather`` writes what gives
    those that are not near each other."""
    vector, narrow = f"<{LANES} x {kind}>", f"<{LANES} x i32>"
    small = writer.let(f"trunc <{LANES} x i64> {distances} to {narrow}")
    ends = [writer.let(f"extractelement {narrow} {small}, i64 {lane}") for lane in (0, LANES - 1)]
    least = writer.let(f"sext i32 {writer.intrinsic('smin', 'i32', 1, ends)} to i64")
    first = writer.let(f"sub i64 {least}, {BEFORE}")
    place = writer.at(kind, pointer, first)
    origin = writer.splat("i32", writer.let(f"trunc i64 {first} to i32"), LANES)
    indices = writer.let(f"sub {narrow} {small}, {origin}")
    near = writer.let(f"and i1 {_is_inside(writer, buffer, place)}, {_are_near(writer, indices)}")
    with writer.maybe(near, [(vector, "zeroinitializer")]) as looked_up:
        rows = [writer.load(vector, writer.at(kind, place, LANES * row)) for row in range(_ROWS)]
        looked_up.next = [_looked_up(writer, kind, rows, indices)]
    far = writer.let(f"xor i1 {near}, true")
    with writer.maybe(far, [(vector, looked_up.result[0])]) as gathered:
        gathered.next = [gather()]
    return gathered.result[0]


def _is_inside(writer: Writer, buffer: NestBuffer, place: str) -> str:
    """Whether the buffer has all of the rows, and is not too long."""
    begin, start = (writer.let(f"ptrtoint ptr {name} to i64") for name in (place, buffer.address))
    offset = writer.let(f"sub i64 {begin}, {start}")
    rows = _ROWS * LANES * _ELEMENT_BYTES
    least = writer.intrinsic("usub.sat", "i64", 1, [buffer.length, str(rows - 1)])
    short = writer.let(f"icmp ult i64 {buffer.length}, {_LONGEST}")
    return writer.let(f"and i1 {short}, {writer.let(f'icmp ult i64 {offset}, {least}')}")


def _are_near(writer: Writer, indices: str) -> str:
    """Whether all lanes' elements are in the rows."""
    limit = writer.splat("i32", str(_ROWS * LANES), LANES)
    fit = writer.let(f"icmp ult <{LANES} x i32> {indices}, {limit}")
    bits = writer.let(f"bitcast <{LANES} x i1> {fit} to i{LANES}")
    return writer.let(f"icmp eq i{LANES} {bits}, -1")


def _looked_up(writer: Writer, kind: str, rows: list[str], indices: str) -> str:
    name = f"@llvm.x86.avx512.vpermi2var.{_LOOK_UP[kind]}.512"
    vector, numbers = f"<{LANES} x {kind}>", f"<{LANES} x i32>"
    writer.context.declare(f"declare {vector} {name}({vector}, {numbers}, {vector})")
    return writer.let(f"call {vector} {name}({vector} {rows[0]}, {numbers} {indices}, {vector} {rows[1]})")
