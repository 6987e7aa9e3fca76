"""The image of loading: its entries ``decode(decoder)`` and ``verify(verifier)``, and as notes what they know
of instructions and tables."""

from __future__ import annotations

from typing import Final

from jitree.codegen.image import Recipe

RECIPE: Final = Recipe("load", "the verifier of modules", "jitree.vmfb.native.texts:generate", 8.0)
