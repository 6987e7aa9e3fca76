"""Settings of the tests of executables."""

from __future__ import annotations

import pytest

from jitree.base.platform import available_resources


@pytest.fixture(autouse=True)
def much_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether copies of constants are given up is for tests to say, not for what else the machine does."""
    monkeypatch.setattr(available_resources, "available_memory", lambda: 1 << 40)
