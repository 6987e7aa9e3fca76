"""Devices whose arrays other libraries may have."""

from __future__ import annotations

from typing import Final

from jitree.base.weak_sets import SharedWeakValues
from jitree.hal.device import Device

exporters: Final[SharedWeakValues[tuple[int, int], Device]] = SharedWeakValues()
"""By the number that DLPack gives a place, the last one there."""
