"""Hides from machine code how this interpreter lays out objects: calls go as where it does not know that.

    python -m pytest -p tests.unknown_interpreter tests/api

Tests of what only machine code that looks into objects does skip themselves.
"""

from __future__ import annotations

from typing import Any

import pytest

from jitree.api.asynchronous import AsynchronousFunction
from jitree.api.calls.native import cpython_layout
from tests.api import direct

_asynchronous: Any = AsynchronousFunction
_asynchronous.is_direct = property(
    lambda function: function.is_settled
)  # left to Python: settled is the most
_hidden: Any = cpython_layout
_hidden._HEADER_SIZE = 0
_tests: Any = direct
_tests._IS_KNOWN = False
_tests.needs_machine_code = pytest.mark.skip(reason="machine code knows no objects")
