"""A short campaign that is the same on every run; the long one is ``python -m tests.fuzz --minutes 60``."""

from __future__ import annotations

import collections
import random
from itertools import islice

import pytest

from jitree.errors import StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.module import read_module
from tests.fuzz.campaign import Campaign, cases
from tests.fuzz.mutations import Layout, mutate
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


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_damaged_modules_are_called_in_a_process_of_their_own(tier: str) -> None:
    campaign = Campaign()
    try:
        for case in islice(cases((tier,)), 200):
            campaign.run(case)
    finally:
        campaign.close()
    assert not campaign.bugs, "\n\n".join(f"{bug.case}\n{bug.what}" for bug in campaign.bugs)
    assert campaign.counts["loaded and called"] > 10
