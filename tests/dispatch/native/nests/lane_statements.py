"""What is concluded of lanes of vectors and of sizes, as statements in exact integers (``statements.py``)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

from jitree.dispatch.native.nests import folds, joining, products
from jitree.dispatch.native.nests.reductions import LANES
from jitree.vmfb import sizes
from jitree.vmfb.words import OPCODE
from tests.dispatch.native.nests.statements import pick

# -- lanes ---------------------------------------------------------------------------------------------------


def rows(chance: random.Random) -> None:
    """Rows that share vectors: each element has a lane of its own, and a vector has lanes of few rows."""
    width, count = chance.randint(1, 2 * LANES), chance.randint(2, 7)
    pitch = width + chance.choice((0, 0, 1, 2, 5))
    fold = folds.Fold(None, None, None, width, pitch, {})  # type: ignore[arg-type]
    lanes = [row * pitch + column for row in range(count) for column in range(width)]
    assert len(set(lanes)) == len(lanes) and max(lanes) + 1 == fold.lanes_of(count)
    for start in range(0, fold.lanes_of(count), LANES):
        assert len({lane // pitch for lane in lanes if start <= lane < start + LANES}) <= fold.pieces


def joined(chance: random.Random) -> None:
    """Loops that are one in an index of one factor: a table has where each iteration's other factor lies."""
    counts = [chance.randint(1, 7) for _ in range(chance.randint(1, 3))]
    steps = [chance.choice((0, 1, 2, 3, 58, 3364)) for _ in counts]
    entries, further = joining.table_of(counts, steps, chance.choice((1, 4)))
    for number, digits in enumerate(itertools.product(*map(range, counts))):
        whole = [*itertools.accumulate(counts[:0:-1], int.__mul__, initial=1)][::-1]
        place = entries[number % len(entries)] + number // len(entries) * further
        assert [number, place] == [sum(map(int.__mul__, digits, one)) for one in (whole, steps)]


def bytes_in_fours(chance: random.Random) -> None:
    """A factor of bytes that is moved by 128, and what is taken off, give the sum of the products; two of
    widened bytes fit 32 bits."""
    assert all(-(2**31) <= 2 * one * other < 2**31 for one in (-128, 255) for other in (-128, 127, 255))
    turned = products._TURNED % 2**32
    for first, other in itertools.product((-128, -127, -1, 0, 1, 127), (-128, -1, 0, 1, 200, 255)):
        word = [first, -128, 127, chance.randint(-128, 127)]
        moved = [(turned >> 8 * at & 255) ^ (byte % 256) for at, byte in enumerate(word)]
        factors = [other, 255, -128, chance.randint(-128, 255)]
        given = sum(map(int.__mul__, moved, factors)) - 128 * sum(factors)
        assert given == sum(map(int.__mul__, word, factors))


def exponents(chance: random.Random) -> None:
    """Where exponents add up to enough, and to no more than that, products and sums are zero or normal."""
    one = chance.randint(1, products.GREATEST)
    for other in range(1, products.GREATEST + 1):  # odd numbers of the exponents, times 2**268
        is_left = not products.LEAST_OF_BOTH <= one + other <= products.GREATEST_OF_BOTH
        smallest, greatest = 129 * 129 << one + other, 255 * 255 << one + other
        assert is_left or (smallest % (1 << 268 - 126) == 0 and greatest < 1 << 268 + 128)
    assert one < products.LEAST_OF_SUM or (1 << one) % (1 << 150 - 126) == 0


# -- sizes ---------------------------------------------------------------------------------------------------


def upper_halves(chance: random.Random) -> None:
    """A shift that is followed no further leaves bits of the upper half: the lower one is any number."""
    opcode, width = chance.choice([*_WIDTHS.items()])
    half, amount = width // 2, chance.randrange(2 * width)
    block: Any = SimpleNamespace(starts=[0], words=[opcode, 0, 0, 0])
    if _flow([amount])._leaves_upper_half(0, (block, 0)):
        for number in (2**width - 1, 2**half - 1, 2**half, chance.randrange(2**width)):
            assert number >> amount % width == (number >> half << half) >> amount % width


_WIDTHS: Final = {OPCODE["shr.i32.u"]: 32, OPCODE["shr.i64.u"]: 64}


def masks(chance: random.Random) -> None:
    """A mask that is followed further clears the lowest bits alone."""
    mask = chance.choice((pick(chance), -(1 << chance.randrange(64))))
    if not _flow([mask])._is_mask(0, None, 0):
        for number in (2**63 - 1, -1, -(2**63), pick(chance)):
            assert 0 <= number - (number & mask) < (mask & -mask or 1)


def _flow(constants: Sequence[int]) -> Any:
    flow: Any = sizes._Flow.__new__(sizes._Flow)
    flow._constants = lambda *place: iter(constants)
    return flow
