"""The image of loading: its entry ``decode(decoder)``, and tables of the instructions as notes."""

from __future__ import annotations

from typing import Final

from jitree.codegen.image import Recipe

RECIPE: Final = Recipe("load", "the decoder of modules", "jitree.vmfb.native.texts:generate", 1.0)
