"""Numbers that are divided, rounded, clamped and cast: the same integers without a division."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from jitree.base.platform import processor
from jitree.dispatch.native.nests import quantising
from jitree.dispatch.native.nests.quantising import Quantised, quantised_of
from jitree.dispatch.native.ssa import SsaFunction
from tests.dispatch.native.nests.checking import check, some_memory
from tests.dispatch.native.nests.harness import Compiled
from tests.dispatch.native.nests.programs import Level, Text, only_nest, program
from tests.dispatch.native.nests.test_clamps import QUANTISED, clamped, stored
from tests.dispatch.semantics_reference import edge_values

COUNT = 4000
SCALES = (0.032229628413915634, 0.01573151722550392, 0.0235294122248888, 1.0, 0.25, 3.0, 7.3e17, 1.1e-17)
RANDOM = np.random.default_rng(0).uniform(1, 2, 8) * 2.0 ** np.arange(-5, 3)


def quantise(text: Text, value: str, scale: float, zero: float, steps: Sequence[str]) -> str:
    """As the compiler writes it."""
    value = text.op("div.f32", value, text.constant(float(np.float32(scale)), "f32"))
    value = text.op("add.f32", text.op("round.f32.even", value), text.constant(zero, "f32"))
    for step in steps:
        value = clamped(text, value, step)
    return text.op("cast.f32.si32", value)


def body(scale: float, zero: float, steps: Sequence[str] = QUANTISED, element: str = "i32") -> SsaFunction:
    def write(text: Text, at: list[str]) -> None:
        value = text.load("f32", 1, at[0])
        text.store(element, 0, at[0], quantise(text, value, scale, zero, steps))

    return program([Level(COUNT)], write)


def found(function: SsaFunction) -> Quantised | None:
    return quantised_of(stored(function))


def near_halves(scale: float, zero: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Numbers whose quotients are a half from integers, and their neighbours; edge values."""
    halves = (np.arange(-140, 140) + 0.5 - zero) * float(np.float32(scale))
    bits = halves.astype(np.float32).view(np.int32)
    near = np.concatenate([(bits + step).view(np.float32) for step in range(-6, 7)])
    values = np.concatenate([edge_values("f32").astype(np.float32), near])
    return np.resize(values, COUNT)


@pytest.mark.parametrize("zero", [3.0, -128.0])
@pytest.mark.parametrize("scale", [*SCALES, *RANDOM])
def test_the_same_integers(scale: float, zero: float) -> None:
    """Of numbers next to where integers change, of infinities, NaN and zeros, as kernels run and not."""
    function = body(scale, zero)
    assert found(function) is not None
    memory = some_memory(function)
    memory[0], memory[1] = np.zeros(4 * COUNT, np.uint8), near_halves(scale, zero).view(np.uint8)
    check(function, memory=memory)
    values = memory[1].view(np.float32)
    usual = (np.abs(values) >= np.float32(2.0**-126)) | (values == 0)
    with np.errstate(all="ignore"):
        integers = np.rint(values / np.float32(scale)) + np.float32(zero)
    integers = np.nan_to_num(np.clip(integers, -128, 127), nan=-128).astype(np.int32)
    refs = [value for value in function.arguments if value.type == "ref"]
    given = dict.fromkeys(function.arguments, 0) | dict(zip(refs, memory, strict=True))
    assert Compiled(only_nest(function)).run(given, is_kernel=True) == COUNT
    np.testing.assert_array_equal(memory[0].view(np.int32)[usual], integers[usual])


@pytest.mark.parametrize("steps", [QUANTISED[::-1], ("lower 0.0", "upper 255.0"), ("upper 9.0", *QUANTISED)])
def test_other_ends(steps: tuple[str, ...]) -> None:
    """What NaN becomes is the end of the innermost clamp."""
    function = body(0.37, 1.0, steps, "i8")
    assert found(function) is not None
    memory = some_memory(function)
    memory[1] = near_halves(0.37, 1.0).view(np.uint8)
    check(function, memory=memory)


OTHERS = {
    "a negative scale": (-0.5, 0.0, QUANTISED),
    "no scale": (0.0, 0.0, QUANTISED),
    "a scale that is no number": (float("nan"), 0.0, QUANTISED),
    "a small scale": (2.0**-61, 0.0, QUANTISED),
    "a large scale": (2.0**61, 0.0, QUANTISED),
    "a zero point that is not whole": (0.5, 0.5, QUANTISED),
    "a far zero point": (0.5, 1024.0, QUANTISED),
    "one end": (0.5, 0.0, QUANTISED[:1]),
    "an end that is not whole": (0.5, 0.0, ("lower -128.5", "upper 127.0")),
    "a far end": (0.5, 0.0, ("lower -128.0", "upper 1024.0")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_divided(name: str) -> None:
    function = body(*OTHERS[name])
    assert found(function) is None
    memory = some_memory(function)
    memory[1] = near_halves(0.5, 0.0).view(np.uint8)
    check(function, memory=memory)


def test_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an instruction for it, a product that is not rounded takes longer than a division."""
    function = body(0.3, 0.0)
    monkeypatch.setattr(processor, "fuses", lambda: False)
    assert found(function) is None


def integers_differ(scale: float, numbers: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bool:
    """Whether the sum of products becomes another integer than the quotient, for any of the numbers."""
    high = np.float32(1 / scale)
    low = np.float32(float(1 / Fraction(scale) - Fraction(float(high))))
    total = numbers.astype(np.float64) * float(high) + (numbers * low).astype(np.float64)
    return bool((np.rint(total.astype(np.float32)) != np.rint(numbers / np.float32(scale))).any())


def test_no_integer_differs() -> None:
    random = np.random.default_rng(1)
    for _ in range(30):
        scale = float(np.float32(random.uniform(1, 2)))
        bits = random.integers(0x3F000000, 0x44000000, 100_000, dtype=np.int32)
        assert not quantising._is_exact(scale) or not integers_differ(scale, bits.view(np.float32))
        near = near_halves(scale, 0.0)
        assert not integers_differ(scale, near[np.abs(near) < 1000])


def is_next_to_a_half(divisor: int) -> bool:
    """Whether a middle of quotients that are nearly one is next to a half, by trying all halves."""
    halves = np.arange(1 << 24, 1 << 25, 1 << 14)
    middles = np.concatenate([halves[1:] - 1, halves + 1])
    for shift in (24, 25):
        rest = (middles * divisor + (1 << shift - 1)) % (1 << shift) - (1 << shift - 1)
        if (np.abs(rest) < 4).any():
            return True
    return False


def test_scales_are_refused_for_middles_next_to_halves() -> None:
    """As trying all halves says. Random scales, and some that are made for it."""
    random = np.random.default_rng(2)
    divisors = [int(number) for number in random.integers(1 << 23, 1 << 24, 200)]
    for half in random.integers(1 << 10, 1 << 11, 20):
        for rest in (-3, -1, 1, 2, 3):
            middle = int(half) * (1 << 14) + 1
            divisors.append(-rest * pow(middle, -1, 1 << 24) % (1 << 24))
    divisors = [divisor for divisor in divisors if divisor >= 1 << 23]
    refused = [divisor for divisor in divisors if not quantising._is_exact(divisor / 2.0**30)]
    assert refused == list(filter(is_next_to_a_half, divisors)) and len(refused) > 20
    assert found(body(refused[-1] / 2.0**30, 0.0)) is None
