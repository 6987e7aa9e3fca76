"""The fast tier: a dispatch loop in machine code, generated from the instruction table."""

from typing import Final

from jitree.codegen.image import Recipe

LOOP: Final = Recipe("loop", "the fast tier's loop", "jitree.dispatch.fast.loop_texts:generate", 11.0)
"""Here, since builders want its notes, and none of what :mod:`jitree.dispatch.fast.engine` imports."""
