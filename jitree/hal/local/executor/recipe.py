"""The image of the command executor."""

from __future__ import annotations

import os
from typing import Final

from jitree.codegen import image, processor_texts

RECIPE: Final = image.Recipe(
    "executor", "the executor of command buffers", "jitree.hal.local.executor.texts:generate", 4.0
)


def supported() -> bool:
    """Whether there is a native command executor for this processor."""
    return processor_texts.supported(os.uname().machine)
