"""A module made by IREE's compiler, on every tier. Source: tests/data/vm/programs.mlir."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from jitree.errors import FailedPreconditionError, InvalidArgumentError
from jitree.regs.list import VmList
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.harness import Vm

PROGRAMS = BytecodeModule.load(Path(__file__).parents[1] / "data" / "vm" / "programs.vmfb")


@pytest.fixture
def programs(vm: Vm) -> Vm:
    return vm.add(PROGRAMS)


@pytest.mark.parametrize(("a", "b"), [(1071, 462), (2**62, 6**20), (0, 5), (7, 0)])
def test_gcd(programs: Vm, a: int, b: int) -> None:
    assert programs.call("gcd", a, b) == [math.gcd(a, b)]


def test_recursion(programs: Vm) -> None:
    assert programs.call("fibonacci", 15) == [610]


def test_constants(programs: Vm) -> None:
    assert programs.call("sum_primes") == [41]


def test_globals(programs: Vm) -> None:
    assert [programs.call("count_calls") for _ in range(3)] == [[1], [2], [3]]
    assert programs.keep("squares", 5) == [None]
    [squares] = programs.keep("squares", 3)
    assert isinstance(squares, VmList)
    assert list(squares) == [0, 1, 4, 9, 16]


def test_tables(programs: Vm) -> None:
    months = [programs.call("day_length", month)[0] for month in range(-1, 6)]
    assert months == [31, 31, 28, 31, 30, 31, 31]


@pytest.mark.parametrize("x", [0.0, 0.25, -3.0, 100.0, -200.0])
def test_floats(programs: Vm, x: float) -> None:
    expected = 0.0 if x < -100 else 1 / (1 + math.exp(-x))
    assert programs.call("logistic", x)[0] == pytest.approx(expected, rel=1e-6)


def test_failing_on_purpose(programs: Vm) -> None:
    assert programs.call("refuse", 0) == []
    with pytest.raises(FailedPreconditionError, match="refused by the program") as failure:
        programs.call("refuse", 9)
    assert failure.value.backtrace[0].startswith("programs.refuse+")
    with pytest.raises(InvalidArgumentError):
        programs.call("refuse", 3)


def test_yields(programs: Vm) -> None:
    assert programs.call("patience", 100) == [100]
    assert asyncio.run(programs.context.invoke_async(programs.function("patience"), [10])) == [10]
