"""Lowers a module to LLVM IR: its functions, and the interpreter's entries into them.

The builder process calls the generator of native images here.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.image.generated import PROGRAM, Generated, Pipeline, Unit
from jitree.codegen.ir_text import ModuleText
from jitree.dispatch.native.build import Refusal, build
from jitree.dispatch.native.calls import (
    Callees,
    Needs,
    enter_symbol,
    enter_text,
    resume_symbol,
    resume_text,
    tail_symbol,
    tail_text,
)
from jitree.dispatch.native.lower_function import (
    check_supported,
    find_cut,
    lower_cut_function,
    lower_function,
)
from jitree.dispatch.native.nests import Nest, find
from jitree.dispatch.native.nests.writer import leaves_nothing_else
from jitree.dispatch.native.prelude import BASE, prelude
from jitree.dispatch.native.reading import TERMINATORS, ReadBlock, borrowed, read_blocks
from jitree.dispatch.native.source import FunctionSource, ModuleSource, decode
from jitree.dispatch.native.ssa import SsaFunction
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_FUNCTION_LIMIT: Final = 400_000
"""The most instructions times references: each way out of a function stores all of its references."""
_BASE_COST: Final = 16
"""What an instruction counts for in a function without references."""
_BRANCH_LIMIT: Final = 1_000
"""Ends of blocks in a function: from there on LLVM's time grows faster than their number."""
_LOOP_LIMIT: Final = 32
"""Loops one after the other, some 2 s: LLVM follows what counts iterations through all of them, and its time
grows with the third power of their number."""
_LONG: Final = 4_000
"""A long function by the same measure: some 50 ms of compiling."""
_MANY_IMPORTS: Final = 8
_IMPORT_SHARE: Final = 12
"""An import takes as long as so many instructions at least, on any tier."""
_ENDS: Final = frozenset(word for word, base in enumerate(BASE_OPCODE) if OPCODE_NAMES[base] in TERMINATORS)
"""Words of instructions that end a block."""
_MODULE_LIMIT: Final = 30_000
"""Instructions, some 20 s of compiling."""


class Lowered(NamedTuple):
    """LLVM IR of a module."""

    text: str
    entries: tuple[str, ...]
    """Symbols to be called from outside."""
    needs: Mapping[int, Needs]
    """Room on the stack, by function ordinal: of each function that is native."""
    refusals: Mapping[int, str]
    """Why other functions are not native, by ordinal."""
    places: Mapping[int, tuple[int, ...]]
    """Word indices at which each function can be resumed."""
    tails: Mapping[int, tuple[int, ...]]
    """Those inside nests: execution goes on to the next of ``places`` and is resumed there."""
    loops: Mapping[int, tuple[str, ...]]
    """What became of each loop that was looked at: that it is a nest, or why not."""
    scalar: frozenset[int]
    """Functions with loops that are no nests."""
    parts: Mapping[int, int]
    """Functions whose calls can be cut into parts, and into how many at most (:func:`lower_cut_function`)."""
    borrowing: frozenset[int]
    """Functions whose callers keep the references that they pass (:mod:`borrowing`). They have no entries."""


def lower(
    source: ModuleSource,
    resumable: Container[int],
    hot: Container[int] = (),
    asks: bool = True,
    roots: Sequence[int] = (),
    kernels: Container[int] = (),
    read: Mapping[int, dict[int, ReadBlock]] = MappingProxyType({}),
) -> Lowered:
    """Lowers all functions, or those that are reached from ``roots``; those whose ordinals are ``resumable``
    can also be entered at loop headers and where a call goes on that has waited. ``hot`` ones are called
    often by others than the module. Python executes what compiled code does not know if it ``asks``.
    ``kernels`` that nothing else calls borrow their references, and parts of them can be run. ``read`` has
    the blocks of functions that have been read."""
    refusals = _too_large(source)
    functions = _build(source, roots or range(len(source.functions)), refusals, read)
    refusals |= {k: text for k, text in _not_worth_it(functions).items() if k not in hot}
    for ordinal in refusals:
        functions.pop(ordinal, None)
    callees = _callees(source, functions, asks)
    module = ModuleText()
    texts = []
    entries = []
    places: dict[int, tuple[int, ...]] = {}
    tails: dict[int, tuple[int, ...]] = {}
    loops: dict[int, tuple[str, ...]] = {}
    scalar: set[int] = set()
    parts: dict[int, int] = {}
    borrowing: set[int] = set()
    whole = {callee for function in functions.values() for callee in _called(function)}
    for ordinal, function in functions.items():
        row = source.functions[ordinal]
        nests, loops[ordinal] = _find_nests(row, function)
        is_kernel = ordinal in kernels and ordinal not in whole
        lent = borrowed(function) if is_kernel else None
        if lent is not None:
            borrowing.add(ordinal)
        if len(nests) < len(loops[ordinal]):
            scalar.add(ordinal)
        elif is_kernel and (cut := find_cut(function, nests)) is not None:
            parts[ordinal] = cut.most
            texts.append(lower_cut_function(function, cut, module, callees, f"f{ordinal}", lent or ()))
            continue
        texts.append(lower_function(function, nests, module, callees, f"f{ordinal}", lent or ()))
        if lent is not None:
            continue
        texts.append(enter_text(row, callees.needs[ordinal]))
        entries.append(enter_symbol(ordinal))
        if ordinal not in resumable:
            continue
        found, inside = _places(source, row, function, nests)
        if inside:
            tail = build(source, ordinal, inside, found)
            texts.append(lower_function(tail, (), module, callees, f"t{ordinal}"))
            texts.append(tail_text(row, found))
            entries.append(tail_symbol(ordinal))
            tails[ordinal] = inside
        if found:
            resumed = build(source, ordinal, found)
            nests, _ = _find_nests(row, resumed)
            texts.append(lower_function(resumed, nests, module, callees, f"r{ordinal}"))
            texts.append(resume_text(row))
            entries.append(resume_symbol(ordinal))
            places[ordinal] = found
    text = "\n".join([prelude(module.declare), module.text(), *texts])
    return Lowered(
        text,
        tuple(entries),
        callees.needs,
        refusals,
        places,
        tails,
        loops,
        frozenset(scalar),
        parts,
        frozenset(borrowing),
    )


def _build(
    source: ModuleSource,
    roots: Iterable[int],
    refusals: dict[int, str],
    read: Mapping[int, dict[int, ReadBlock]],
) -> dict[int, SsaFunction]:
    """Functions and all that they call, by ordinal, without those that are refused. Adds to the refusals."""
    functions: dict[int, SsaFunction] = {}
    waiting = list(roots)
    while waiting:
        ordinal = waiting.pop()
        if ordinal in refusals or ordinal in functions:
            continue
        try:
            function = build(source, ordinal, read=read.get(ordinal))
            check_supported(function)
            if len(function.loops) > _LOOP_LIMIT:
                raise Refusal(f"{len(function.loops)} loops after each other")
            functions[ordinal] = function
            waiting += _called(function)
        except Refusal as refusal:
            refusals[ordinal] = str(refusal)
    return dict(sorted(functions.items()))


def _too_large(source: ModuleSource) -> dict[int, str]:
    """Functions that would take too long to compile, with the reason: large ones, and the largest ones of a
    module that has too many instructions in all."""
    starts = source.instruction_words
    sizes = {
        row.ordinal: bisect_left(starts, row.end) - bisect_left(starts, row.start) for row in source.functions
    }
    refusals: dict[int, str] = {}
    total = 0
    for ordinal, size in sorted(sizes.items(), key=lambda item: item[1]):
        ref_count = source.functions[ordinal].ref_count
        if size * (ref_count + _BASE_COST) > _FUNCTION_LIMIT:
            refusals[ordinal] = f"too large: {size} instructions over {ref_count} references"
        elif (branches := _branches(source, source.functions[ordinal], size)) > _BRANCH_LIMIT:
            refusals[ordinal] = f"too large: {branches} branches"
        elif total + size > _MODULE_LIMIT:
            refusals[ordinal] = f"{size} instructions too many in a large module"
        else:
            total += size
    return refusals


def _branches(source: ModuleSource, row: FunctionSource, size: int) -> int:
    first = bisect_left(source.instruction_words, row.start)
    starts = source.instruction_words[first : first + size]
    return sum(map(_ENDS.__contains__, map(source.words.__getitem__, starts)))


def _not_worth_it(functions: Mapping[int, SsaFunction]) -> dict[int, str]:
    """Long functions that would gain nothing, with the reason: those that run through once when the host
    calls them, and those whose time goes into imports."""
    called = {callee for function in functions.values() for callee in _called(function)}
    refusals = {}
    for ordinal, function in functions.items():
        instructions = [item.mnemonic for block in function.blocks for item in block.instructions]
        size, imports = len(instructions), instructions.count("call.import")
        is_long = size * (function.ref_count + _BASE_COST) > _LONG
        if imports > _MANY_IMPORTS and imports * _IMPORT_SHARE > size:
            refusals[ordinal] = f"mostly calls of imports: {imports} in {size} instructions"
        elif is_long and not function.loops and ordinal not in called:
            refusals[ordinal] = f"no loop in {size} instructions, and no function of the module calls it"
    return refusals


def _find_nests(row: FunctionSource, function: SsaFunction) -> tuple[list[Nest], tuple[str, ...]]:
    """Finds the nests of a function, with a line for each loop."""
    nests, lines = [], []
    for found in find(function):
        place = f"loop at word {found.loop.header.pc - row.start}"
        if isinstance(found, Nest) and leaves_nothing_else(function, found.loop):
            nests.append(found)
            lines.append(f"{place}: nest")
        else:
            reason = "its values are needed after it" if isinstance(found, Nest) else found.reason
            lines.append(f"{place}: {reason}")
    return nests, tuple(lines)


def _places(
    source: ModuleSource, row: FunctionSource, function: SsaFunction, nests: Iterable[Nest]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lists loop headers and places after ``yield`` and waiting imports; then the loop headers inside
    nests."""
    inner = {block for nest in nests for block in nest.loop.blocks - {nest.loop.header}}
    headers = [loop.header for loop in function.all_loops()]
    found = {header.pc for header in headers if header not in inner}
    for block in read_blocks(source, row, ()).values():
        last = block.instructions[-1]
        if last.mnemonic == "yield":
            found.update(last.targets)
        waits = len(block.instructions) > 1 and block.instructions[-2].mnemonic == "call.import"
        if waits and last.mnemonic == "br.bare":
            found.update(last.targets)
    inside = {header.pc for header in headers} - found
    return tuple(sorted(found)), tuple(sorted(inside))


def _callees(source: ModuleSource, functions: Mapping[int, SsaFunction], asks: bool) -> Callees:
    """What callers have to know of each function."""
    graph = {ordinal: _called(function) & functions.keys() for ordinal, function in functions.items()}
    recursive = frozenset(ordinal for ordinal in graph if _reaches(graph, ordinal))
    needs: dict[int, Needs] = {}
    for ordinal in graph:
        _measure(source, graph, recursive, ordinal, needs)
    bounded = frozenset(
        ordinal for ordinal, function in functions.items() if not function.loops and not _has_calls(function)
    )
    return Callees(source, needs, recursive, bounded, asks)


def _called(function: SsaFunction) -> set[int]:
    return {
        instruction.literals[0]
        for block in function.blocks
        for instruction in block.instructions
        if instruction.mnemonic == "call.internal"
    }


def _has_calls(function: SsaFunction) -> bool:
    return any(
        instruction.mnemonic.startswith("call.")
        for block in function.blocks
        for instruction in block.instructions
    )


def _reaches(graph: Mapping[int, set[int]], start: int) -> bool:
    """Whether a function can come back to itself."""
    seen: set[int] = set()
    waiting = list(graph[start])
    while waiting:
        ordinal = waiting.pop()
        if ordinal == start:
            return True
        if ordinal not in seen:
            seen.add(ordinal)
            waiting += graph[ordinal]
    return False


def _measure(
    source: ModuleSource,
    graph: Mapping[int, set[int]],
    recursive: frozenset[int],
    start: int,
    needs: dict[int, Needs],
) -> None:
    """Finds a function's needs, its callees' first. Calls between functions that can recurse, and of large
    ones, check the stack when they happen."""
    waiting = [start]
    while waiting:
        ordinal = waiting[-1]
        called = [callee for callee in graph[ordinal] if not (ordinal in recursive and callee in recursive)]
        missing = [callee for callee in called if callee not in needs]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        row = source.functions[ordinal]
        below = [needs[callee] for callee in called if not needs[callee].is_large]
        needs[ordinal] = Needs(
            1 + max((item.frames for item in below), default=0),
            4 * row.value_count + max((item.values for item in below), default=0),
            8 * row.ref_count + max((item.refs for item in below), default=0),
        )


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
