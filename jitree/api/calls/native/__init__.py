"""Calls of functions in machine code, from the caller's arguments to the arrays that he gets; its image."""

from __future__ import annotations

from typing import Final

from jitree.codegen.image import Recipe

RECIPE: Final = Recipe("calls", "the code of calls", "jitree.api.calls.native.texts:generate", 12.0)
