"""The generator of compiled VMVX kernels: what the builder process calls."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Final

from jitree.dispatch.image.generated import Generated, Pipeline, Unit
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.prelude import NEVER_ASK
from jitree.dispatch.native.source import decode
from jitree.loaders.vmvx_layout import span_symbol
from jitree.loaders.vmvx_text import Kernel, list_changes, span_text

KERNELS: Final = Pipeline(1, loop_vectorization=False, slp_vectorization=False, loop_unrolling=False)
"""Loop nests come in vectors already; the rest is straight-line code."""
_WORTH_SPLITTING: Final = 6
"""Kernels that are worth two units, which are compiled at the same time."""


def generate(data: bytes, ordinals: bytes) -> Generated:
    """A span function for each kernel that can be lowered. ``data`` is the module as
    :func:`jitree.dispatch.native.source.encode` writes it, ``ordinals`` (i32) are the kernels in it.
    The notes say why others were not."""
    source = decode(data)
    lowered = lower(source, (), NEVER_ASK)
    refusals = dict(lowered.refusals)
    chosen = [ordinal for ordinal in array("i", ordinals) if ordinal in lowered.needs]
    changes = sorted(set(list_changes(source.words, source.instruction_words)))
    if changes:
        refusals |= dict.fromkeys(chosen, f"{', '.join(changes)} in the executable")
        chosen = []
    kernels = [Kernel(ordinal, f"f{ordinal}", lowered.needs[ordinal]) for ordinal in chosen]
    halves = (kernels[::2], kernels[1::2]) if len(kernels) >= _WORTH_SPLITTING else (kernels,)
    units = [_unit(lowered.text, half) for half in halves if half]
    return Generated(units, tuple(map(span_symbol, chosen)), json.dumps({"refusals": refusals}).encode())


def _unit(text: str, kernels: Sequence[Kernel]) -> Unit:
    entries = tuple(span_symbol(kernel.ordinal) for kernel in kernels)
    return Unit([text + span_text(kernels)], entries, KERNELS)
