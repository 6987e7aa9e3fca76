"""Comparing results of calls to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitree import Array

ROUNDS = 4
"""Calls of each case: the first takes the slow path, and the second may prepare the next ones."""
X = np.arange(4, dtype=np.float32)


def same(result: Any, expected: Any) -> None:
    """Type, shape and bits."""
    if isinstance(expected, tuple):
        assert type(result) is tuple and len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray):
        assert type(result) is Array
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        host = np.asarray(result)
        assert (host.shape, host.dtype) == (expected.shape, expected.dtype)
        assert host.tobytes() == expected.tobytes()
    else:
        assert type(result) is type(expected)
        assert result == expected or (result != result and expected != expected)
