"""Errors of assertions say which dimensions of which arguments do not agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.errors import StatusError
from tests.assembler import Assembler

TIED = Path(__file__).parent.parent / "data" / "programs" / "tied.vmfb"
ROWS = "dimension 0 of argument 0 has to equal dimension 0 of argument 1"
COLUMNS = "dimension 1 of argument 0 has to equal dimension 1 of argument 1"
IMPORTED = "dimension 0 of argument 1 has to equal dimension 0 of argument 0"
FACTORS = "dimension 1 of argument 0 has to equal dimension 0 of argument 1"

SIZES = """
    %i0 = const.i32.zero
    %i1 = const.i32 1
    [%i2:3] = call @hal.buffer_view.dim [%r0, %i0]
    [%i4:5] = call @hal.buffer_view.dim [%r1, %i0]
    [%i6:7] = call @hal.buffer_view.dim [%r0, %i1]
    [%i8:9] = call @hal.buffer_view.dim [%R1, %i1]
"""
FAIL = """
    ^fail:
    %i14 = const.i32 9
    fail %i14, "no"
    ^end:
    return
"""


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def failure(function: Any, *arguments: Any) -> list[str]:
    with pytest.raises(StatusError) as caught:
        function(*arguments)
    return [text for text in caught.value.contexts if " has to equal " in text]


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_programs_of_the_compiler(tier: str) -> None:
    with jitree.Session("local-sync", tier=tier) as session:
        module = session.load(TIED)
        assert failure(module.shared, ones(4), ones(1, 2)) == [IMPORTED]
        assert failure(module.product, ones(2, 3), ones(4, 2)) == [FACTORS]
        assert failure(module.both, ones(2, 3), ones(4, 3)) == [ROWS, COLUMNS]
        assert failure(module.even, ones(3)) == []
        assert failure(module.even, ones(3, 1)) == []
        assert module.product(ones(2, 3), ones(3, 2)).shape == (2, 2)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%i10 = cmp.ne.i64 %i2, %i4\ncond_br %i10, ^fail {}, ^end {}", [ROWS]),
        ("%i10 = cmp.eq.i64 %i2, %i4\ncond_br %i10, ^end {}, ^fail {}", [ROWS]),
        ("%i10 = cmp.eq.i64 %i2, %i4\n%i10 = xor.i32 %i10, %i1\ncond_br %i10, ^fail {}, ^end {}", [ROWS]),
        ("%i10 = trunc.i64.i32 %i2\n%i11 = trunc.i64.i32 %i4\n%i10 = cmp.ne.i32 %i10, %i11\n"
         "cond_br %i10, ^fail {}, ^end {}", [ROWS]),
        ("%i10 = cmp.ne.i64 %i2, %i4\n%i11 = cmp.ne.i64 %i6, %i8\n%i10 = or.i32 %i10, %i11\n"
         "cond_br %i10, ^fail {}, ^end {}", [ROWS, COLUMNS]),
        ("%i10 = cmp.ne.i64 %i2, %i4\ncond_br %i10, ^fail {}, ^next {}\n^next:\n"
         "%i10 = cmp.ne.i64 %i6, %i8\ncond_br %i10, ^fail {}, ^end {}", [ROWS, COLUMNS]),
        ("br ^next {%i6->%i2, %i7->%i3, %i2->%i6, %i3->%i7}\n^next:\n"
         "%i10 = cmp.ne.i64 %i6, %i4\ncond_br %i10, ^fail {}, ^end {}", [FACTORS]),  # in this order
        ("br ^next {%i2->%i12, %i3->%i13}\n^next:\n"
         "%i10 = cmp.ne.i64 %i12, %i4\ncond_br %i10, ^fail {}, ^end {}", [ROWS]),
        ("%i3 = const.i32 1\n%i10 = cmp.ne.i64 %i2, %i4\ncond_br %i10, ^fail {}, ^end {}", []),
        ("%i2 = add.i64 %i2, %i6\n%i10 = cmp.ne.i64 %i2, %i4\ncond_br %i10, ^fail {}, ^end {}", []),
        ("%i10 = cmp.lt.i64.s %i2, %i4\ncond_br %i10, ^fail {}, ^end {}", []),
        ("%i10 = cmp.eq.i64 %i2, %i8\ncond_br %i10, ^fail {}, ^end {}", []),  # they are to differ
        ("%i10 = cmp.ne.i64 %i2, %i4\ncond_br %i10, ^fail {}, ^next {}\n^next:\nbr ^fail", []),
    ],
)  # fmt: skip
def test_ways_to_a_failure(body: str, expected: list[str]) -> None:
    program = Assembler("m").import_function("hal.buffer_view.dim", "0ri_I")
    program.function("f", "0rr_v", SIZES + body + FAIL)
    with jitree.Session("local-sync", tier="plain") as session:
        assert failure(session.load(program.build()).f, ones(2, 3), ones(4, 2)) == expected


def test_only_assertions_are_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else fails, a deadline above all, does not wait for the function to be read."""

    def refuse(*_: object) -> list[str]:
        raise AssertionError("the function was read")

    monkeypatch.setattr("jitree.vmfb.argument_placement.tied", refuse)
    program = Assembler("m").import_function("hal.buffer_view.dim", "0ri_I")
    program.function("f", "0rr_v", SIZES + "return")
    with jitree.Session("local-sync", tier="plain") as session:
        function = session.load(program.build()).f
        assert failure(function, None, None) == []
