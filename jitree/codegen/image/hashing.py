"""The digest of keys and files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hashlib import blake2b
else:
    try:
        from _blake2 import blake2b  # hashlib loads OpenSSL first: 2 ms
    except ImportError:
        from hashlib import blake2b

DIGEST_SIZE: Final = 32


def hashed(parts: Iterable[bytes | memoryview]) -> bytes:
    """Bytes that tell sequences of parts apart."""
    state = blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
