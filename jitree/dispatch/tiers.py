"""The tiers by name, and their engines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from jitree.errors import InvalidArgumentError

if TYPE_CHECKING:
    from jitree.dispatch.engine import Engine

TIERS: Final = ("plain", "fast", "native", "auto")
"""``auto`` is plain until the fast tier's loop is there, and native where functions run for long."""
WAITING_TIERS: Final = ("fast", "native")
"""Asked for by name, they run nothing before their machine code is there."""
TIER_VARIABLE: Final = "JITREE_TIER"


def default_tier() -> str:
    """The tier that the environment variable JITREE_TIER names, else ``auto``."""
    return os.environ.get(TIER_VARIABLE) or "auto"


def create_engine(tier: str | None = None) -> Engine:
    """The engine of a tier; None for the default. INVALID_ARGUMENT for an unknown name.

    A tier that has to be compiled first is waited for when it is asked for by name.
    """
    name = default_tier() if tier is None else tier
    if name == "plain":
        from jitree.dispatch.plain.engine import PlainEngine

        return PlainEngine()
    if name == "fast":
        from jitree.dispatch.fast.engine import FastEngine

        return FastEngine()
    if name in ("native", "auto"):
        from jitree.dispatch.native.engine import AutoEngine, NativeEngine

        return NativeEngine() if name == "native" else AutoEngine()
    raise InvalidArgumentError(f"tier '{name}' is unknown; the tiers are {', '.join(TIERS)}")
