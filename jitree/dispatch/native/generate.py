"""The generator of native images: what the builder process calls."""

from __future__ import annotations

import json

from jitree.codegen.image.generated import Generated, Pipeline, Unit
from jitree.dispatch.native.lower import Lowered, lower
from jitree.dispatch.native.prelude import BASE
from jitree.dispatch.native.source import decode

PROGRAM: Pipeline = Pipeline(2, loop_vectorization=True, slp_vectorization=True, loop_unrolling=True)


def program(data: bytes) -> Generated:
    """All functions of a module, from :func:`jitree.dispatch.native.source.encode`'s bytes. The notes say
    where functions can be resumed and why some are not native."""
    source = decode(data)
    lowered = lower(source, range(len(source.functions)))
    return resumable(lowered, PROGRAM)


def resumable(lowered: Lowered, pipeline: Pipeline) -> Generated:
    """What :class:`~jitree.dispatch.native.tiering.NativeModule` takes."""
    names = ("places", "tails", "refusals", "loops")
    notes = json.dumps({name: getattr(lowered, name) for name in names})
    unit = Unit([lowered.text], lowered.entries, pipeline)
    return Generated([unit], lowered.entries, notes.encode(), BASE)
