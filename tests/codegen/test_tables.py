"""Tables of vector math: the package has the numbers, and integers compute the same ones."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from jitree.codegen.vector_math import computed, tables
from jitree.codegen.vector_math.computed import ONE, error_function


def test_elements_of_the_table_of_erf() -> None:
    values, rests = tables.erf_values(), tables.erf_rests()
    for n in (0, 1, 77, 256, tables.ERF_MASK):
        exact = error_function(n * Fraction(tables.ERF_STEP))
        assert values[n] == exact / ONE and math.isclose(values[n], math.erf(n / 256), rel_tol=1e-14)
        assert abs(Fraction(values[n]) + Fraction(rests[n]) - Fraction(exact, ONE)) < Fraction(1, 1 << 105)
    assert len(values) == len(rests) == tables.ERF_MASK + 1
    with pytest.raises(IndexError):
        values[tables.ERF_MASK + 1]


def test_the_file_has_what_integers_give() -> None:
    """Bit for bit; ``python -m jitree.codegen.vector_math.computed`` writes it anew."""
    assert Path(tables.FILE).read_text(encoding="ascii") == computed.text()


def test_tables_are_what_the_file_has() -> None:
    """Each as functions look it up, by rows or values."""
    read = {
        name: [number for row in table() for number in (row if isinstance(row, tuple) else (row,))]
        for name, table in vars(tables).items()
        if hasattr(table, "cache_info") and not name.startswith("_")
    }
    lines = dict(line.split("\t") for line in Path(tables.FILE).read_text(encoding="ascii").splitlines())
    assert {name: struct.pack(f">{len(numbers)}d", *numbers).hex() for name, numbers in read.items()} == lines
    assert {len(row) for row in tables.tanh_pieces() + tables.erf_pieces()} == {tables.PIECE_NUMBERS}


def test_nothing_is_computed_where_functions_are_used() -> None:
    """A builder writes the texts, the plain tier runs the functions; a call could not end meanwhile."""
    code = """
import sys
from jitree.codegen.vector_math import functions, ir, registers
print(functions.erf_f32(0.5), functions.tanh_f32(0.5), functions.sin_f32(1e9))
for mnemonic, function in registers.FUNCTIONS.items():
    ir.function_texts(mnemonic, '@"f"', registers.LANES, "internal", function)
print({"fractions", "jitree.codegen.vector_math.computed"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert result.stdout.splitlines()[-1:] == ["set()"], result.stderr
