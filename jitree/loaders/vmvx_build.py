"""The generator of compiled VMVX kernels: what the builder process calls."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from functools import partial

from jitree.base.records import NamedTuple
from jitree.codegen.forks import spread
from jitree.codegen.image.generated import STRAIGHT, Generated, Unit
from jitree.dispatch.native.generate import PROGRAM, resumable
from jitree.dispatch.native.lower import Lowered, lower
from jitree.dispatch.native.source import ModuleSource, decode
from jitree.loaders.vmvx_layout import TOGETHER, symbol
from jitree.loaders.vmvx_text import Kernel, keeps_buffers, list_changes, texts


class _KernelPart(NamedTuple):
    refusals: Mapping[int, str]
    loops: Mapping[int, tuple[str, ...]]
    parts: Mapping[int, int]
    units: Sequence[Unit]


def generate(data: bytes, ordinals: bytes) -> Generated:
    """A ``workgroups`` for each kernel that can be lowered. ``data`` is the module as
    :func:`jitree.dispatch.native.source.encode` writes it, ``ordinals`` (i32) are the kernels in it.
    The notes say why others were not, and into how many parts workgroups can be cut."""
    source = decode(data)
    wanted = array("i", ordinals)
    changes = sorted(set(list_changes(source.words, source.instruction_words)))
    reason = f"{', '.join(changes)} in the executable" if changes else ""
    count = -(-len(wanted) // TOGETHER)
    parts = spread(partial(_part, source, reason), [wanted[number::count] for number in range(count)])
    units = [unit for part in parts for unit in part.units]
    notes = json.dumps(
        {
            "refusals": {ordinal: text for part in parts for ordinal, text in part.refusals.items()},
            "loops": {ordinal: lines for part in parts for ordinal, lines in part.loops.items()},
            "parts": {ordinal: most for part in parts for ordinal, most in part.parts.items()},
        }
    )
    return Generated(units, tuple(name for unit in units for name in unit.entries), notes.encode())


def _part(source: ModuleSource, refused: str, wanted: Sequence[int]) -> _KernelPart:
    cut = () if keeps_buffers(source.words, source.instruction_words) else wanted
    lowered = lower(source, (), wanted, asks=False, roots=wanted, kernels=cut)
    chosen = [ordinal for ordinal in wanted if ordinal in lowered.needs]
    if refused:
        return _KernelPart({**lowered.refusals, **dict.fromkeys(chosen, refused)}, lowered.loops, {}, ())
    units = []
    for pipeline, is_scalar in ((STRAIGHT, False), (PROGRAM, True)):
        those = [ordinal for ordinal in chosen if (ordinal in lowered.scalar) is is_scalar]
        kernels = [_kernel(lowered, ordinal) for ordinal in those]
        if kernels:
            units.append(Unit(texts(lowered.text, kernels), tuple(map(symbol, those)), pipeline))
    return _KernelPart(lowered.refusals, lowered.loops, lowered.parts, units)


def _kernel(lowered: Lowered, ordinal: int) -> Kernel:
    parts, borrows = lowered.parts.get(ordinal, 1), ordinal in lowered.borrowing
    return Kernel(ordinal, f"f{ordinal}", lowered.needs[ordinal], parts, borrows)


def generate_hot(data: bytes, ordinals: bytes) -> Generated:
    """As :func:`jitree.dispatch.native.generate.program`, of some kernels and what they call."""
    wanted = array("i", ordinals)
    lowered = lower(decode(data), wanted, hot=wanted, roots=wanted)
    return resumable(lowered, PROGRAM if lowered.scalar else STRAIGHT)
