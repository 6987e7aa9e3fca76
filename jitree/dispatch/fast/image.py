"""The image of the loop: its entry ``run(state) -> LEFT_*``, and the rows of arithmetic instructions as notes
(:mod:`jitree.dispatch.semantics_rows`)."""

from __future__ import annotations

import os
from typing import Final

from jitree.codegen import image

_FAST: Final = os.path.dirname(__file__)
_DISPATCH: Final = os.path.dirname(_FAST)
_PACKAGE: Final = os.path.dirname(_DISPATCH)
LOOP: Final = image.Recipe(
    name="loop",
    title="the fast tier's loop",
    generator="jitree.dispatch.fast.loop_texts:generate",
    sources=(
        *image.files(_FAST, "", ".py"),
        *image.files(_DISPATCH, "semantics", ".py"),
        *image.files(_DISPATCH, "vector_math", ".py"),
        *image.files(os.path.join(_PACKAGE, "codegen"), "", ".py"),
        *(os.path.join(_DISPATCH, "native", f"{name}.py") for name in ("module_text", "counting", "leaving")),
        os.path.join(_DISPATCH, "primitives.py"),
        *(os.path.join(_PACKAGE, "vmfb", name) for name in ("isa.tsv", "isa.py", "words.py", "forms.py")),
        *(os.path.join(_PACKAGE, "regs", name) for name in ("layout.py", "counting.py")),
    ),
    entries=("run",),
    seconds=2.5,
)
