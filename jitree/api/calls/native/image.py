"""The image of machine code that calls are made by."""

from __future__ import annotations

from typing import Final

from jitree.codegen.image import Recipe

RECIPE: Final = Recipe("calls", "the code of calls", "jitree.api.calls.native.texts:generate", 12.0)
