"""The generator of native images: what the builder process calls."""

from __future__ import annotations

import json

from jitree.dispatch.image.generated import Generated, Pipeline, Unit
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.source import decode

PROGRAM: Pipeline = Pipeline(2, loop_vectorization=True, slp_vectorization=True, loop_unrolling=True)


def program(data: bytes) -> Generated:
    """All functions of a module, from :func:`jitree.dispatch.native.source.encode`'s bytes. The notes say
    where functions can be resumed and why some are not native."""
    source = decode(data)
    lowered = lower(source, range(len(source.functions)))
    notes = json.dumps({"places": lowered.places, "refusals": lowered.refusals, "loops": lowered.loops})
    return Generated([Unit([lowered.text], lowered.entries, PROGRAM)], lowered.entries, notes.encode())
