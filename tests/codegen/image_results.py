"""A program that prints what the machine code of the package's own images computes, for comparison.

    python -m tests.codegen.image_results function|LEVEL

A level is one of those that images are shipped for; ``function`` runs the loop by the Numba function that its
image is made from, and the tests of all tiers as well, which print to standard error.

Floats that are no number are all printed alike: which of two goes on is open.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator

import numpy as np

from jitree import Session
from jitree.codegen import image
from jitree.codegen.image import shipped
from jitree.tools.cache import own_recipes
from tests.dispatch.loop_function import run_the_table, use_the_function
from tests.dispatch.semantics_reference import edge_columns
from tests.dispatch.test_semantics import COMPARED, by_loop, valid
from tests.modules.hal_programs import ROWS
from tests.modules.test_hal_native import outcome, whole_call
from tests.modules.test_vmvx_native import MMT4D, buffer, compiled

_TILES = 3
_ELEMENTS = _TILES * 8


def instructions() -> Iterator[bytes]:
    """Every instruction on edge values, by the loop."""
    for mnemonic in COMPARED:
        result = by_loop(mnemonic, valid(mnemonic, edge_columns(mnemonic)))
        if result.dtype.kind == "f":
            result[np.isnan(result)] = np.nan
        yield result.tobytes()


def programs() -> Iterator[str]:
    """What a whole call does, by the fast paths of module hal and the command executor."""
    for uri in ("local-sync", "local-task://?threads=2"):
        with Session(uri, tier="fast") as session:
            session.load(whole_call(ROWS).module("m"))
            yield repr(outcome(session, "m"))


def products() -> Iterator[bytes]:
    """What may be fused or reordered: products of tiles."""
    random = np.random.default_rng(5)
    for flags, lhs, rhs, kind in (
        (1, random.standard_normal(_ELEMENTS), random.standard_normal(_ELEMENTS), np.float32),
        (2, random.integers(-128, 128, 2 * _ELEMENTS), random.integers(-128, 128, 2 * _ELEMENTS), np.int8),
    ):
        target = buffer(np.zeros(64, np.int32))
        left, right = (buffer(part.astype(kind)) for part in (lhs, rhs))
        depth = 1 if kind is np.float32 else 2
        arguments = (left, 0, depth * _ELEMENTS, right, 0, depth * _ELEMENTS, target, 0, 64)
        status = compiled("mmt4d", MMT4D, *arguments, 1, 1, _TILES, 8, 8, depth, flags)
        assert status == 0
        yield bytes(target)


def main(kind: str) -> int:
    """Returns the exit status of the tests."""
    status = 0
    if kind == "function":
        use_the_function()
        status = run_the_table()
    else:
        shipped.fitting_level = lambda: kind  # type: ignore[assignment]
    for recipe in own_recipes():
        image.wait(recipe)
    parts: tuple[Callable[[], Iterator[str | bytes]], ...] = (instructions, programs, products)
    for part in parts:
        for number, result in enumerate(part()):
            data = result.encode() if isinstance(result, str) else result
            print(part.__name__, number, len(data), hashlib.sha256(data).hexdigest())
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
