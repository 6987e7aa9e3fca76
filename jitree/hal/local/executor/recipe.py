"""The image of the command executor."""

from __future__ import annotations

import os
from typing import Final

from jitree.codegen import image, processor_texts

_FOLDER: Final = os.path.dirname(__file__)
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))

RECIPE: Final = image.Recipe(
    name="executor",
    title="the executor of command buffers",
    generator="jitree.hal.local.executor.texts:texts",
    sources=(
        *image.files(_FOLDER, "", ".py"),
        *image.files(os.path.join(_PACKAGE, "codegen"), "", ".py"),
        os.path.join(_PACKAGE, "regs", "layout.py"),
        os.path.join(_PACKAGE, "hal", "command_layout.py"),
    ),
    entries=("execute", "serve", "dismiss", "estimate", "clock"),
    seconds=1,
)


def supported() -> bool:
    """Whether there is a native command executor for this processor."""
    return processor_texts.supported(os.uname().machine)
