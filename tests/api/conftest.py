from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitree import Session
from tests.api.programs import ARITHMETIC, CALLS, ECHO, KINDS, OUTPUTS

TIERS_AND_DEVICES = [("plain", "local-sync"), ("plain", "local-task"), ("fast", "local-sync")]


@pytest.fixture(params=TIERS_AND_DEVICES, ids="-".join)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    tier, device = request.param
    with Session(device, tier=tier) as session:
        yield session


@pytest.fixture
def plain_session() -> Iterator[Session]:
    """For what has nothing to do with tiers and devices."""
    with Session("local-sync", tier="plain") as session:
        yield session


@pytest.fixture(scope="module", params=[*TIERS_AND_DEVICES, ("fast", "local-task")], ids="-".join)
def programs(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Several programs in one session of each kind, for all tests of a file."""
    tier, device = request.param
    with Session(device, tier=tier) as session:
        session.load(ARITHMETIC, CALLS, ECHO, KINDS, OUTPUTS)
        yield session
