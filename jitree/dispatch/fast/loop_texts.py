"""The texts of the loop's image: the handlers, and the semantics functions that they inline.

Only the builder and tests import this module.
"""

from __future__ import annotations

import os
from typing import Final

from llvmlite.binding import llvm_version_info

from jitree.dispatch import semantics_code
from jitree.dispatch.fast.skeleton import LOOP_FILE, generate, generate_forms
from jitree.errors import InternalError

PRESERVE_NONE_SINCE: Final = (20, 0, 0)
"""LLVM that has this calling convention for tail calls on both machines. Handlers then have all registers to
themselves and save none: calls are 10 % faster. ``tailcc`` exists everywhere."""


def loop_texts(convention: str | None = None) -> list[str]:
    """The IR texts of the loop's image: the skeleton and the semantics functions.

    ``convention`` is the calling convention of the handlers, by default the best one for this machine.

    INTERNAL if ``loop.ll`` is not of this instruction table and memory layout: its code would read and write
    in the wrong places.
    """
    skeleton = LOOP_FILE.read_text(encoding="ascii")
    if skeleton != generate():
        raise InternalError(
            f"{LOOP_FILE} is out of date; python -m jitree.dispatch.fast.skeleton writes it anew"
        )
    handlers = skeleton + generate_forms()
    return [handlers.replace(" tailcc ", f" {convention or _convention()} "), *semantics_code.texts()]


def _convention() -> str:
    if llvm_version_info >= PRESERVE_NONE_SINCE and os.uname().machine in ("x86_64", "aarch64"):
        return "preserve_nonecc"
    return "tailcc"
