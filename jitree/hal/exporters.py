"""Devices whose arrays other libraries may have."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

from jitree.hal.device import Device

exporters: Final[WeakValueDictionary[tuple[int, int], Device]] = WeakValueDictionary()
"""By the number that DLPack gives a place, the last one there."""
