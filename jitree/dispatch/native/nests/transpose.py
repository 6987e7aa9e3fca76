"""Transposes a square of vectors in registers."""

from __future__ import annotations

from jitree.dispatch.native.nests.writer import Writer


def transpose(writer: Writer, vector: str, rows: list[str]) -> list[str]:
    """The columns of as many rows as the vector type has elements, a power of two.

    In step k the bit k of row and column number change places: two shuffles for each pair of rows.
    """
    count = len(rows)
    rows = list(rows)
    bit = 1
    while bit < count:
        low = [lane if not lane & bit else count + (lane ^ bit) for lane in range(count)]
        high = [lane ^ bit if not lane & bit else count + lane for lane in range(count)]
        masks = ["<" + ", ".join(f"i32 {lane}" for lane in order) + ">" for order in (low, high)]
        for first in range(count):
            if first & bit:
                continue
            pair = f"{vector} {rows[first]}, {vector} {rows[first | bit]}"
            rows[first], rows[first | bit] = (
                writer.let(f"shufflevector {pair}, <{count} x i32> {mask}") for mask in masks
            )
        bit *= 2
    return rows
