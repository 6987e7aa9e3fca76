from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.modules.helpers import Hal


@pytest.fixture(params=["local-sync", "local-task"])
def hal(request: pytest.FixtureRequest) -> Iterator[Hal]:
    hal = Hal(request.param)
    yield hal
    hal.session.close()
