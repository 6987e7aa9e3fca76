"""The modules that campaigns damage are sound, and damage hits what a loader checks."""

from __future__ import annotations

import collections
import random

import pytest

from jitree.errors import StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.module import read_module
from tests.fuzz.fields import Layout
from tests.fuzz.mutations import mutate
from tests.fuzz.seeds import seeds


@pytest.mark.parametrize("name", seeds())
def test_the_seeds_are_sound(name: str) -> None:
    decode_module(read_module(Archive.open(seeds()[name].data)))


@pytest.mark.parametrize("name", seeds())
def test_damaged_modules_load_or_are_refused(name: str) -> None:
    seed = seeds()[name]
    layout = Layout(seed.data)
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(400):
        data = mutate(seed.data, layout, random.Random(f"{name}:{number}"))
        try:
            decode_module(read_module(Archive.open(data)))
            outcomes["loaded"] += 1
        except StatusError as error:
            outcomes[error.code.name] += 1
    assert outcomes["loaded"] and outcomes["INVALID_ARGUMENT"], "the mutations miss their target"
