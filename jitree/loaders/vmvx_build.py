"""The generator of compiled VMVX kernels: what the builder process calls."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Final

from jitree.codegen.image.generated import Generated, Pipeline, Unit
from jitree.dispatch.native.generate import PROGRAM, resumable
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.prelude import NEVER_ASK
from jitree.dispatch.native.source import decode
from jitree.loaders.vmvx_layout import symbol
from jitree.loaders.vmvx_text import Kernel, list_changes, texts

KERNELS: Final = Pipeline(1, loop_vectorization=False, slp_vectorization=False, loop_unrolling=False)
"""Of kernels whose loops are all nests: these come in vectors already, the rest is straight-line code."""
_WORTH_SPLITTING: Final = 6
"""Kernels that are worth two units, which are compiled at the same time."""


def generate(data: bytes, ordinals: bytes) -> Generated:
    """A ``workgroups`` for each kernel that can be lowered. ``data`` is the module as
    :func:`jitree.dispatch.native.source.encode` writes it, ``ordinals`` (i32) are the kernels in it.
    The notes say why others were not."""
    source = decode(data)
    wanted = array("i", ordinals)
    lowered = lower(source, (), wanted, NEVER_ASK, roots=wanted)
    refusals = dict(lowered.refusals)
    chosen = [ordinal for ordinal in wanted if ordinal in lowered.needs]
    changes = sorted(set(list_changes(source.words, source.instruction_words)))
    if changes:
        refusals |= dict.fromkeys(chosen, f"{', '.join(changes)} in the executable")
        chosen = []
    kernels = [Kernel(ordinal, f"f{ordinal}", lowered.needs[ordinal]) for ordinal in chosen]
    nests = [kernel for kernel in kernels if kernel.ordinal not in lowered.scalar]
    units = [
        _unit(lowered.text, part, pipeline)
        for part, pipeline in (
            *((part, KERNELS) for part in _parts(nests)),
            ([kernel for kernel in kernels if kernel.ordinal in lowered.scalar], PROGRAM),
        )
        if part
    ]
    notes = json.dumps({"refusals": refusals, "loops": lowered.loops})
    return Generated(units, tuple(map(symbol, chosen)), notes.encode())


def generate_hot(data: bytes, ordinals: bytes) -> Generated:
    """As :func:`jitree.dispatch.native.generate.program`, of some kernels and what they call."""
    wanted = array("i", ordinals)
    lowered = lower(decode(data), wanted, hot=wanted, roots=wanted)
    return resumable(lowered, PROGRAM if lowered.scalar else KERNELS)


def _parts(kernels: list[Kernel]) -> Sequence[list[Kernel]]:
    return (kernels[::2], kernels[1::2]) if len(kernels) >= _WORTH_SPLITTING else (kernels,)


def _unit(text: str, kernels: Sequence[Kernel], pipeline: Pipeline) -> Unit:
    entries = tuple(symbol(kernel.ordinal) for kernel in kernels)
    return Unit(texts(text, kernels), entries, pipeline)
