"""Every instruction that nests can hold, in vectors and one at a time: the same as the plain tier on edge
values and random bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from jitree.dispatch.native.nests.operations import can_compute
from jitree.dispatch.native.ssa import Value
from jitree.dispatch.semantics import SEMANTICS
from jitree.vmfb.words import FUSED, STRICT
from tests.dispatch.native.nests.harness import Bytes, Compiled
from tests.dispatch.native.nests.interpreter import interpret
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program
from tests.dispatch.semantics_reference import (
    DTYPES,
    Array,
    assert_same_bits,
    by_plain,
    edge_columns,
    edge_values,
    kinds_of,
)  # fmt: skip

COUNT = 96
COMPUTED = [name for name in SEMANTICS if can_compute(name) and not name.endswith(".exact")]
DIVISIONS = [mnemonic for mnemonic in COMPUTED if SEMANTICS[mnemonic].refusal is not None]
DIVISORS = (7, -3, 2**31 - 1)


def _values(kind: str, random: np.random.Generator) -> Array:
    """Edge values in random order, then random bits and numbers of usual size."""
    dtype = np.dtype(DTYPES[kind])
    edges = random.permutation(np.asarray(edge_values(kind), dtype))[: COUNT // 2]
    noise = np.frombuffer(random.bytes(dtype.itemsize * COUNT // 4), dtype)
    usual = random.normal(0, 20, COUNT).astype(dtype)
    return np.concatenate([edges, noise, usual])[:COUNT].copy()


def _check(mnemonic: str, constant: int | None = None) -> Callable[[Sequence[Array]], Array]:
    """Compares with the loop on COUNT values; returns what the nest makes of others."""
    *arguments, result = kinds_of(mnemonic)

    def body(text: Text, at: list[str]) -> None:
        loads = [text.load(kind, number + 1, at[0]) for number, kind in enumerate(arguments)]
        if constant is not None:
            loads[1] = text.constant(constant, arguments[1])
        text.store(result, 0, at[0], text.op(mnemonic.removesuffix(".fused"), *loads))

    function = program([Level(COUNT)], body, STRICT if mnemonic == "fma.f32" else FUSED)
    nest = only_nest(function)
    compiled = Compiled(nest)
    refs = [value for value in function.arguments if value.type == "ref"]

    def values(columns: Sequence[Array], stored: Bytes) -> dict[Value, float | Bytes]:
        buffers = [stored, *(column.view(np.uint8) for column in columns)]
        return dict(zip(refs, [*buffers, *[np.zeros(8, np.uint8)] * len(refs)], strict=False))

    def by_nest(columns: Sequence[Array]) -> Array:
        stored = np.zeros(8 * COUNT, np.uint8)
        assert compiled.run(values(columns, stored)) == COUNT
        found: Array = stored.view(DTYPES[result])[:COUNT]
        return found

    random = np.random.default_rng(len(mnemonic))
    columns = [_values(kind, random) for kind in arguments]
    expected = np.zeros(8 * COUNT, np.uint8)
    interpret(nest.loop, values(columns, expected))
    assert_same_bits(mnemonic, columns, by_nest(columns), expected.view(DTYPES[result])[:COUNT])
    return by_nest


@pytest.mark.parametrize(
    "mnemonic",
    sorted(name for name in COMPUTED if name not in DIVISIONS and not name.startswith("fpowi")),
)
def test_vectors(mnemonic: str) -> None:
    by_nest = _check(mnemonic)
    columns = [np.resize(column, -(-len(column) // COUNT) * COUNT) for column in edge_columns(mnemonic)]
    expected = by_plain(mnemonic, columns)
    for at in range(0, len(expected), COUNT):
        rows = [column[at : at + COUNT] for column in columns]
        result = by_nest(rows).view(expected.dtype)
        assert_same_bits(mnemonic, rows, result, expected[at : at + COUNT])


@pytest.mark.parametrize("mnemonic", sorted(DIVISIONS))
@pytest.mark.parametrize("divisor", DIVISORS)
def test_division_by_constants(mnemonic: str, divisor: int) -> None:
    _check(mnemonic, divisor)


@pytest.mark.parametrize("mnemonic", ["fpowi.f32", "fpowi.f64"])
@pytest.mark.parametrize("exponent", [0, 1, 3, 10, -1, -6])
def test_powers_with_constant_exponents(mnemonic: str, exponent: int) -> None:
    _check(mnemonic, exponent)
