"""What servers answer over HTTP for a status."""

from __future__ import annotations

from typing import Final

from jitree.errors import StatusCode, StatusError

_STATUSES: Final = {
    StatusCode.INVALID_ARGUMENT: 400, StatusCode.OUT_OF_RANGE: 400, StatusCode.NOT_FOUND: 404,
    StatusCode.RESOURCE_EXHAUSTED: 429, StatusCode.UNAVAILABLE: 503, StatusCode.DEADLINE_EXCEEDED: 504,
}  # fmt: skip


def http_status(error: StatusError) -> int:
    """500 for what the caller can do nothing about."""
    return _STATUSES.get(error.code, 500)
