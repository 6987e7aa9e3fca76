"""Settings of all tests."""

import gc

import pytest
from hypothesis import settings

# Examples are judged by their results: on a busy machine any of them may be slow once.
settings.register_profile("jitree", deadline=None)
settings.load_profile("jitree")


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """Garbage collections, of which many tests make some, look at what the tests of one file have made."""
    gc.collect()
    gc.freeze()
