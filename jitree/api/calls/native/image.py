"""The image of machine code that calls are made by."""

from __future__ import annotations

import os
from typing import Final

from jitree.codegen import image
from jitree.modules.hal.native.image import RECIPE as ANSWERS

_FOLDER: Final = os.path.dirname(__file__)

RECIPE: Final = image.Recipe(
    name="calls",
    title="the code of calls",
    generator="jitree.api.calls.native.texts:texts",
    sources=(
        *(
            os.path.join(_FOLDER, f"{name}.py")
            for name in (
                "layout",
                "records",
                "python",
                "owners",
                "arrays",
                "arguments",
                "results",
                "fences",
                "function",
                "texts",
            )
        ),
        *ANSWERS.sources,
    ),
    entries=(
        "function_method",
        "submit_method",
        "place_method",
        "array_method",
        "buffer_method",
        "find_elements",
        "new_owner",
        "destroy_owner",
        "take_back",
    ),
    seconds=1.0,
)
