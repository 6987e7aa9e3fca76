"""``arithmetic=``: how the products of VMVX kernels round, on all tiers and in sandboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.vmvx.vmfb"
X = np.random.default_rng(7).random((8, 8), np.float32)


def classified(image: Any, **options: Any) -> bytes:
    with jitree.Session("local-sync", **options) as session:
        return np.asarray(session.load(DIGITS).classify(image)).tobytes()


@pytest.mark.parametrize("tier", ["plain", "fast", "native"])
def test_tiers_agree_in_both(tier: str) -> None:
    strict, fused = classified(X, tier="fast", arithmetic="strict"), classified(X, tier="fast")
    assert strict != fused
    assert classified(X, tier=tier, arithmetic="strict") == strict
    assert classified(X, tier=tier, arithmetic="fused") == fused


@pytest.mark.parametrize("sandbox", [True, "process"])
def test_sandboxes_take_it(sandbox: Any) -> None:
    for arithmetic in ("strict", "fused"):
        assert classified(X, sandbox=sandbox, arithmetic=arithmetic) == classified(X, arithmetic=arithmetic)


def test_programs_travel_with_it() -> None:
    program = jitree.Program(DIGITS, device="local-sync", arithmetic="strict")
    with program.open() as session:
        (module,) = session.modules.values()
        assert np.asarray(module.classify(X)).tobytes() == classified(X, arithmetic="strict")


@pytest.mark.parametrize("odd", ["Strict", "", None, 1, b"fused", ["strict"]])
@pytest.mark.parametrize("sandbox", [False, True, "process"])
def test_what_is_no_arithmetic(odd: Any, sandbox: Any) -> None:
    with pytest.raises(jitree.errors.InvalidArgumentError, match="arithmetic: expected 'fused' or 'strict'"):
        jitree.Session("local-sync", sandbox=sandbox, arithmetic=odd)


def test_loaders_of_an_instance_have_their_own() -> None:
    instance = jitree.Instance(loaders=())
    with pytest.raises(jitree.errors.InvalidArgumentError, match="the loaders that the instance was given"):
        jitree.Session("local-sync", instance=instance, arithmetic="strict")
