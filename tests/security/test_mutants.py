"""Damaged modules in a sandbox: a status, or results of the program that they still are.

``python -m tests.security.test_mutants COUNT [SEED]`` makes more of them.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.errors import StatusError
from tests.security.programs import VMVX

LIMITS = jitree.Limits(
    memory=1 << 24, time=1.0, load_time=1.0, recursion=100, handles=1000, output=1 << 20, load_size=1 << 20
)


def mutant(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, a part copied elsewhere, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(changed))
        kind = rng.random()
        if kind < 0.7:
            changed[place] = rng.choice((rng.randrange(256), changed[place] ^ 1 << rng.randrange(8), 0, 255))
        elif kind < 0.9:
            length, source = rng.choice((4, 8, 64)), rng.randrange(len(changed))
            changed[place : place + length] = changed[source : source + length]
        else:
            del changed[max(place, 64) :]
    return bytes(changed)


def attempt(data: bytes) -> str:
    """What becomes of a mutant; anything but a status is an error of the test."""
    with jitree.Session("local-sync", sandbox=True, limits=LIMITS) as session:
        try:
            module = session.load(data)
            for name in module:
                np.asarray(module[name](np.ones((8, 8), np.float32)))
        except StatusError as error:
            return error.code.name
    return "OK"


@pytest.mark.parametrize("seed", range(2))
def test_mutants_end_in_a_status(seed: int) -> None:
    rng, data = random.Random(seed), VMVX.read_bytes()
    outcomes = {attempt(mutant(data, rng)) for _ in range(25)}
    assert len(outcomes) > 1


def main(count: int, seed: int) -> None:
    rng, data = random.Random(seed), VMVX.read_bytes()
    outcomes: dict[str, int] = {}
    for _ in range(count):
        made = mutant(data, rng)
        Path("/tmp/mutant.vmfb").write_bytes(made)
        outcome = attempt(made)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(outcomes)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
