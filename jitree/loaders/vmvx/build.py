"""The generator of compiled VMVX kernels: what the builder process calls."""

from __future__ import annotations

from array import array

from jitree.codegen.image.generated import STRAIGHT, Generated, Unit
from jitree.dispatch.native.lower import PROGRAM, lower, resumable
from jitree.dispatch.native.prelude import BASE
from jitree.dispatch.native.source import decode, mnemonics
from jitree.loaders.vmvx.kernels import KernelNotes
from jitree.loaders.vmvx.records import CHANGE_LISTS
from jitree.loaders.vmvx.stores import stored_bindings
from jitree.loaders.vmvx.text import WORKGROUP, workgroup_entry
from jitree.regs.layout import FRAME


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
    loops = tuple(lowered.loops.get(ordinal, ()))
    if refusal:
        return Generated((), (), KernelNotes(parts, stores, 0, 0, 0, refusal, loops).encoded())
    needs = lowered.needs[ordinal]
    room = FRAME.size * needs.frames, needs.values, needs.refs
    entry = workgroup_entry(f"f{ordinal}", parts > 1, ordinal in lowered.borrowing)
    pipeline = PROGRAM if lowered.scalar else STRAIGHT
    unit = Unit([f"{lowered.text}\n{entry}"], (WORKGROUP,), pipeline)
    notes = KernelNotes(parts, stores, *room, refusal, loops)
    return Generated((unit,), unit.entries, notes.encoded(), BASE)


def generate_hot(data: bytes, ordinals: bytes) -> Generated:
    """As :func:`jitree.dispatch.native.lower.program`, of some kernels and what they call."""
    wanted = array("i", ordinals)
    lowered = lower(decode(data), wanted, hot=wanted, roots=wanted)
    return resumable(lowered, PROGRAM if lowered.scalar else STRAIGHT)
