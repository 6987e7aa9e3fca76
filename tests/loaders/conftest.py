"""Settings of the tests of executables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitree.base.platform import available_resources


@pytest.fixture(autouse=True, scope="module")
def much_memory_is_left() -> Iterator[None]:
    """Whether copies of constants are given up is for tests to say, not for what else the machine does."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(available_resources, "available_memory", lambda: 1 << 40)
        yield
