"""The image of the loop: its entry ``run(state) -> LEFT_*``, and the rows of arithmetic instructions as notes
(:mod:`jitree.dispatch.semantics_rows`)."""

from __future__ import annotations

from typing import Final

from jitree.codegen.image import Recipe

LOOP: Final = Recipe("loop", "the fast tier's loop", "jitree.dispatch.fast.loop_texts:generate", 11.0)
