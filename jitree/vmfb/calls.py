"""Reading of call instructions: all four become ``call.internal`` or ``call.import``.

Functions as in :mod:`jitree.vmfb.special`.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from jitree.errors import FailedPreconditionError
from jitree.vmfb.blocks import Edge, branch_words
from jitree.vmfb.instructions import IMPORT_BIT
from jitree.vmfb.words import OPCODE

if TYPE_CHECKING:
    from jitree.vmfb.operands import OperandReader

_INTERNAL, _IMPORT = OPCODE["call.internal"], OPCODE["call.import"]


def _call(walk: OperandReader, opcode: int, at: int) -> int:
    callee = walk.word(at)
    arguments, at = walk.entries(at + 4)
    results, at = walk.entries(at)
    if callee & IMPORT_BIT:
        _add_import_call(walk, callee, None, arguments, results)
    else:
        _add_internal_call(walk, callee, arguments, results)
    return at


def _call_variadic(walk: OperandReader, opcode: int, at: int) -> int:
    callee = _variadic_callee(walk, at)
    segments, after = walk.entries(at + 4)
    arguments, after = walk.entries(after)
    results, after = walk.entries(after)
    _add_import_call(walk, callee, segments, arguments, results, at + 4)
    return after


def _call_yieldable(walk: OperandReader, opcode: int, at: int) -> int:
    callee = walk.word(at)
    arguments, at = walk.entries(at + 4)
    resume = walk.target(at)
    results, at = walk.entries(at + 4)
    if callee & IMPORT_BIT:
        _add_import_call(walk, callee, None, arguments, results)
    else:
        _add_internal_call(walk, callee, arguments, results)
    walk.exit = branch_words([]), [Edge(1, resume, [])]
    return at


def _call_variadic_yieldable(walk: OperandReader, opcode: int, at: int) -> int:
    callee = _variadic_callee(walk, at)
    segments, after = walk.entries(at + 4)
    arguments, after = walk.entries(after)
    resume = walk.target(after)
    results, after = walk.entries(after + 4)
    _add_import_call(walk, callee, segments, arguments, results, at + 4)
    walk.exit = branch_words([]), [Edge(1, resume, [])]
    return after


def _variadic_callee(walk: OperandReader, at: int) -> int:
    callee = walk.word(at)
    if not callee & IMPORT_BIT:
        raise FailedPreconditionError(f"variadic call of internal function {callee}")
    return callee


def _add_import_call(
    walk: OperandReader,
    callee: int,
    segments: tuple[int, ...] | None,
    arguments: tuple[int, ...],
    results: tuple[int, ...],
    segments_at: int = 0,
) -> None:
    linkage = walk.linkage
    ordinal = linkage.import_ordinal(callee)
    cconv = linkage.import_convention(ordinal)
    tags = linkage.argument_tags(ordinal, segments, len(arguments))
    sources = walk.registers("argument", arguments, tags, walk.moves_honoured)
    destinations = walk.registers("result", results, cconv.result_tags, False)
    words = walk.words
    size = 6 + 2 * len(sources) + 2 * len(destinations)
    site = len(linkage.site_segments)
    walk.block.call_sites.append(len(words))
    words += (_IMPORT, size, site, ordinal, len(sources), len(destinations))
    words.extend(chain.from_iterable(sources))
    words.extend(chain.from_iterable(destinations))
    at = segments_at + (segments_at & 1)
    linkage.site_segments.append(-1 if segments is None else walk.function.offset + at)


def _add_internal_call(
    walk: OperandReader, callee: int, arguments: tuple[int, ...], results: tuple[int, ...]
) -> None:
    signature = walk.linkage.signature(callee)
    sources = walk.registers("argument", arguments, signature.argument_tags, True)
    destinations = walk.registers("result", results, signature.cconv.result_tags, False)
    words = walk.words
    size = 5 + 3 * len(sources) + 2 * len(destinations)
    words += (_INTERNAL, size, callee, len(sources), len(destinations))
    for (tag, source), (_, slot) in zip(sources, signature.argument_slots, strict=True):
        words += (tag, source, slot)
    words.extend(chain.from_iterable(destinations))


def _import_resolved(walk: OperandReader, opcode: int, at: int) -> int:
    ordinal = walk.linkage.import_ordinal(walk.word(at))
    walk.words += (opcode, ordinal, walk.value(walk.halfword(at + 4)))
    return at + 6


CALL_INSTRUCTIONS: Final = {
    "call": _call,
    "call.variadic": _call_variadic,
    "call.yieldable": _call_yieldable,
    "call.variadic.yieldable": _call_variadic_yieldable,
    "import.resolved": _import_resolved,
}
"""Reader of each mnemonic."""
