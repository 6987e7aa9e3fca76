"""Every instruction that nests can hold, in vectors and one at a time: the same as the plain tier on edge
values and random bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from jitree.dispatch.native.nests.operations import can_compute
from jitree.dispatch.semantics import SEMANTICS
from jitree.vmfb.isa import BY_MNEMONIC
from tests.dispatch.native.nests.harness import Bytes, Compiled, interpret
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program
from tests.dispatch.semantics_reference import edge_values

COUNT = 96
DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}
COMPUTED = [mnemonic for mnemonic in SEMANTICS if can_compute(mnemonic)]
DIVISIONS = [mnemonic for mnemonic in COMPUTED if SEMANTICS[mnemonic].division is not None]
DIVISORS = (7, -3, 2**31 - 1)


def _kinds(mnemonic: str) -> tuple[list[str], str]:
    kinds = [operand.kind.removeprefix("r.") for operand in BY_MNEMONIC[mnemonic].operands]
    return kinds[:-1], kinds[-1]


def _values(kind: str, random: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Edge values in random order, then random bits and numbers of usual size."""
    dtype = np.dtype(DTYPES[kind])
    edges = random.permutation(np.asarray(edge_values(kind), dtype))[: COUNT // 2]
    noise = np.frombuffer(random.bytes(dtype.itemsize * COUNT // 4), dtype)
    usual = random.normal(0, 20, COUNT).astype(dtype)
    return np.concatenate([edges, noise, usual])[:COUNT].copy().view(np.uint8)


def _check(mnemonic: str, count: int, constant: int | None = None) -> None:
    arguments, result = _kinds(mnemonic)

    def body(text: Text, at: list[str]) -> None:
        loads = [text.load(kind, number + 1, at[0]) for number, kind in enumerate(arguments)]
        if constant is not None:
            loads[1] = text.constant(constant, arguments[1])
        text.store(result, 0, at[0], text.op(mnemonic, *loads))

    function = program([Level(count)], body)
    nest = only_nest(function)
    random = np.random.default_rng(len(mnemonic))
    buffers: list[Bytes] = [np.zeros(8 * COUNT, np.uint8), *(_values(kind, random) for kind in arguments)]
    spare = np.zeros(8, np.uint8)
    refs = [value for value in function.arguments if value.type == "ref"]
    expected = [buffer.copy() for buffer in buffers]
    interpret(nest.loop, dict(zip(refs, [*expected, *[spare] * len(refs)], strict=False)))
    compiled = Compiled(nest)
    assert compiled.run(dict(zip(refs, [*buffers, *[spare] * len(refs)], strict=False))) == count
    dtype = DTYPES[result]
    one, other = buffers[0].view(dtype)[:count], expected[0].view(dtype)[:count]
    same = one.view(f"u{one.itemsize}") == other.view(f"u{one.itemsize}")
    if result.startswith("f"):
        same |= np.isnan(one) & np.isnan(other)
    wrong = np.flatnonzero(~same)[:4]
    operands = [buffer.view(DTYPES[kind])[wrong] for buffer, kind in zip(buffers[1:], arguments, strict=True)]
    assert not len(wrong), f"{mnemonic} of {operands}: {one[wrong]}, not {other[wrong]}"


@pytest.mark.parametrize(
    "mnemonic",
    sorted(name for name in COMPUTED if name not in DIVISIONS and not name.startswith("fpowi")),
)
def test_vectors(mnemonic: str) -> None:
    _check(mnemonic, COUNT)


@pytest.mark.parametrize("mnemonic", sorted(DIVISIONS))
@pytest.mark.parametrize("divisor", DIVISORS)
def test_division_by_constants(mnemonic: str, divisor: int) -> None:
    _check(mnemonic, COUNT, divisor)


@pytest.mark.parametrize("mnemonic", ["fpowi.f32", "fpowi.f64"])
@pytest.mark.parametrize("exponent", [0, 1, 3, 10, -1, -6])
def test_powers_with_constant_exponents(mnemonic: str, exponent: int) -> None:
    _check(mnemonic, COUNT, exponent)
