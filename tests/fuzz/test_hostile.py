"""The modules with one wrong field of `perf/hostile.py`."""

from __future__ import annotations

import pytest

from perf.hostile import ACCEPTED, OWN, REFUSED, ROOT, answers, mutants, seeds
from tests.fuzz.fields import KINDS


@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_each_kind_of_damage_is_refused_or_harmless(bytecode: int) -> None:
    modules = mutants(bytecode, 200)
    found = answers(OWN, str(ROOT), modules, seeds(bytecode))
    assert set(found) == {ACCEPTED, REFUSED}
    refused = {mutant.kind for mutant, answer in zip(modules, found, strict=True) if answer == REFUSED}
    assert refused == set(KINDS)
