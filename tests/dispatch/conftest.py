"""Programs are run on every tier, and every test ends with a check that no reference is left."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.dispatch.harness import TIERS, Vm


@pytest.fixture(autouse=True, scope="module")
def _no_builders(images_are_built_here: None) -> None: ...


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def vm(tier: str) -> Iterator[Vm]:
    """An empty context of one tier."""
    machine = Vm(tier)
    yield machine
    machine.context.close()
    machine.context.table.drain_deferred()
    if machine.context.table.live_count:
        gc.collect()  # a list in the traceback of an exception
        machine.context.table.drain_deferred()
    assert machine.context.table.live_count == 0
