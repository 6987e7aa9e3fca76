"""What the fake driver hands out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Work = Callable[[], None]


class Handle(int):
    """A driver object; its number is its address."""


@dataclass
class Memory:
    """One allocation."""

    array: np.ndarray
    address: int
    size: int
    ordinal: int | None
    """The device; None for pinned host memory."""


@dataclass
class FakeStream:
    pending: list[Work] = field(default_factory=list)
    asked: int = 0
    """Times since the last work was given."""
    destroyed: bool = False
    ordinal: int | None = None
    """The device that it was made for."""


@dataclass
class FakeEvent:
    reached: threading.Event = field(default_factory=threading.Event)
    recorded: bool = False


@dataclass(frozen=True)
class Uuid:
    bytes: bytes
