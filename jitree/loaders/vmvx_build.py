"""The generator of compiled VMVX kernels: what the builder process calls."""

from __future__ import annotations

from array import array

from jitree.codegen.image.generated import STRAIGHT, Generated, Unit
from jitree.dispatch.native.generate import PROGRAM, resumable
from jitree.dispatch.native.lower import lower
from jitree.dispatch.native.prelude import shared
from jitree.dispatch.native.source import decode, mnemonics
from jitree.loaders.vmvx_kernels import KernelNotes
from jitree.loaders.vmvx_layout import CHANGE_LISTS
from jitree.loaders.vmvx_stores import stored_bindings
from jitree.loaders.vmvx_text import Kernel, texts
from jitree.loaders.vmvx_workgroups import workgroups


def generate(data: bytes, numbers: bytes) -> Generated:
    """The ``workgroups`` of a kernel, if it can be lowered. ``data`` is a module as
    :func:`jitree.dispatch.native.source.encode` writes it, ``numbers`` (i32) are the ordinal of the kernel in
    it, and whether kernels of the executable keep buffers. The notes are :class:`KernelNotes`."""
    source = decode(data)
    ordinal, keeps = array("i", numbers)
    wanted = (ordinal,)
    changes = sorted(name for name in mnemonics(source) if name.startswith(CHANGE_LISTS))
    lowered = lower(source, (), wanted, asks=False, roots=wanted, kernels=() if keeps else wanted)
    refusal = f"{', '.join(changes)} in the executable" if changes else lowered.refusals.get(ordinal, "")
    parts = 0 if refusal else lowered.parts.get(ordinal, 0)
    stores = stored_bindings(source, ordinal)
    notes = KernelNotes(parts, stores, refusal, tuple(lowered.loops.get(ordinal, ()))).encoded()
    if refusal:
        return Generated((), (), notes)
    kernel = Kernel(f"f{ordinal}", lowered.needs[ordinal], max(parts, 1), ordinal in lowered.borrowing)
    pipeline = PROGRAM if lowered.scalar else STRAIGHT
    entries = (workgroups.__name__,)
    unit = Unit(texts(lowered.text, kernel), entries, pipeline)
    return Generated((unit, shared()), entries, notes)


def generate_hot(data: bytes, ordinals: bytes) -> Generated:
    """As :func:`jitree.dispatch.native.generate.program`, of some kernels and what they call."""
    wanted = array("i", ordinals)
    lowered = lower(decode(data), wanted, hot=wanted, roots=wanted)
    return resumable(lowered, PROGRAM if lowered.scalar else STRAIGHT)
