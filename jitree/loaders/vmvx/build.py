"""Generates compiled VMVX kernels, in the builder process.

The native tier lowers a kernel; LLVM IR around it runs the workgroups of a row. Nothing here takes numba.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from jitree.codegen.image.generated import PROGRAM, STRAIGHT, Generated, Unit
from jitree.codegen.record import Layout, layout_of
from jitree.dispatch.native.lower import lower, resumable
from jitree.dispatch.native.prelude import BASE
from jitree.dispatch.native.reading import read_blocks
from jitree.dispatch.native.source import decode, mnemonics
from jitree.hal.command_layout import KernelDispatch
from jitree.loaders.vmvx.analysis import stored_in
from jitree.loaders.vmvx.kernels import CHANGE_LISTS, KernelNotes, WorkerContextRecord
from jitree.regs.layout import FRAME, SCRATCH, STATE

WORKGROUP: Final = "workgroup"
"""``i64 (dispatch, context, fuel, x, y, z, end)``: runs workgroups of a row up to ``end``, at least one. It
stops when the fuel is over, and after one that has released handles or has left machine code. Returns what is
left of the fuel, 0 if one has left; the context says which ``x`` is reached. The loop over rows
(:mod:`jitree.loaders.vmvx.spans`) calls it."""
_CONTEXT: Final = layout_of(WorkerContextRecord)
_DISPATCH: Final = layout_of(KernelDispatch)
_REACHED, _RELEASED = _CONTEXT["reached"], STATE["released"]
_PLACES: Final = ("state", "frame", "values", "refs")
_HANDLES: Final = ("local", "constants", "bindings")
_IDS: Final = ("x", "y", "z")
_SIZES: Final = ("size_x", "size_y", "size_z", "count_x", "count_y", "count_z")


def workgroup_entry(symbol: str, has_parts: bool, borrows: bool, loops: int) -> str:
    """Writes the function that runs workgroups of a row by calling ``symbol`` for each.

    That is the lowered function in the same LLVM module. ``has_parts``: whether it takes which part of a
    workgroup it is to run; ``borrows``: whether it leaves the references that it is given to its caller.
    Those of one loop are short. With more ``loops`` one workgroup is the row: calls cost nothing beside it,
    and of code in a loop LLVM takes a fifth longer to make machine code.
    """
    numbers = [f"i32 %{name}.i32" for name in (*_IDS, *_SIZES)]
    if has_parts:
        numbers += ["i64 %part", "i64 %parts"]
    places, handles = ([f"ptr %{name}" for name in names] for names in (_PLACES, _HANDLES))
    arguments = ", ".join((*places, "i64 %given", *handles, *numbers))
    return f"""
define i64 @"{WORKGROUP}"(ptr %dispatch, ptr %context, i64 %fuel, i64 %first, i64 %y, i64 %z, i64 %end) #0 {{
start:
{_lines(_fields("context", (*_PLACES, *_HANDLES), "ptr", _CONTEXT))}
{_lines(f"%{name}.i32 = trunc i64 %{name} to i32" for name in _IDS[1:])}
{_lines(_sizes())}
{_lines(_parts()) if has_parts else ""}
  %released.at = getelementptr i8, ptr %state, i64 {_RELEASED}
  %reached.at = getelementptr i8, ptr %context, i64 {_REACHED}
  br label %next
next:
  %x = phi i64 [ %first, %start ], [ %following, %done ]
  %given = phi i64 [ %fuel, %start ], [ %less, %done ]
  %x.i32 = trunc i64 %x to i32
{"" if borrows else _lines(f"call void @retain({handle})" for handle in handles)}
  %outcome = call fastcc {{ i64 }} @{symbol}({arguments}) alwaysinline
  %left = extractvalue {{ i64 }} %outcome, 0
  %has.left = icmp eq i64 %left, 0
  br i1 %has.left, label %end.of.row, label %done
done:
  %following = add i64 %x, 1
  %less = add i64 %left, -1
  %released = load i64, ptr %released.at, align 8
  %has.released = icmp ne i64 %released, 0
  %is.last = icmp eq i64 %following, %end
  %is.empty = icmp eq i64 %less, 0
  %is.either = or i1 %is.last, %is.empty
  %is.over = or i1 %is.either, {"true" if loops > 1 else "%has.released"}
  br i1 %is.over, label %end.of.row, label %next
end.of.row:
  %reached = phi i64 [ %x, %next ], [ %following, %done ]
  store i64 %reached, ptr %reached.at, align 8
  ret i64 %left
}}
"""


def _fields(record: str, names: Iterable[str], kind: str, layout: Layout) -> Iterator[str]:
    for name in names:
        yield f"%{name}.at = getelementptr i8, ptr %{record}, i64 {layout[name]}"
        yield f"%{name} = load {kind}, ptr %{name}.at, align 1"


def _sizes() -> Iterator[str]:
    for name in _SIZES:
        kind = f"i{_DISPATCH.kinds[name][1:]}"
        yield from _fields("dispatch", (name,), kind, _DISPATCH)
        yield f"%{name}.i32 = {'zext' if kind == 'i16' else 'bitcast'} {kind} %{name} to i32"


def _parts() -> Iterator[str]:
    yield from _fields("dispatch", ("parts",), "i64", _DISPATCH)
    yield from _fields("state", ("scratch",), "ptr", STATE)
    yield from _fields("scratch", ("part",), "i64", SCRATCH)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def generate(data: bytes, numbers: bytes) -> Generated:
    """The ``workgroups`` of a kernel, if it can be lowered.

    ``data`` is a module as :func:`jitree.dispatch.native.source.encode` writes it, ``numbers`` (i32) are the
    ordinal of the kernel in it, and whether kernels of the executable keep buffers. The notes are
    :class:`KernelNotes`.
    """
    source = decode(data)
    ordinal, keeps = array("i", numbers)
    wanted = (ordinal,)
    changes = sorted(name for name in mnemonics(source) if name.startswith(CHANGE_LISTS))
    blocks = read_blocks(source, source.functions[ordinal], ())
    kernels = () if keeps else wanted
    lowered = lower(source, (), wanted, asks=False, roots=wanted, kernels=kernels, read={ordinal: blocks})
    refusal = f"{', '.join(changes)} in the executable" if changes else lowered.refusals.get(ordinal, "")
    parts = 0 if refusal else lowered.parts.get(ordinal, 0)
    stores = stored_in(source, ordinal, blocks)
    loops = tuple(lowered.loops.get(ordinal, ()))
    if refusal:
        return Generated((), (), KernelNotes(parts, stores, 0, 0, 0, refusal, loops).encoded())
    needs = lowered.needs[ordinal]
    room = FRAME.size * needs.frames, needs.values, needs.refs
    entry = workgroup_entry(f"f{ordinal}", parts > 1, ordinal in lowered.borrowing, len(loops))
    pipeline = PROGRAM if lowered.scalar else STRAIGHT
    unit = Unit([f"{lowered.text}\n{entry}"], (WORKGROUP,), pipeline)
    notes = KernelNotes(parts, stores, *room, refusal, loops)
    return Generated((unit,), unit.entries, notes.encoded(), BASE)


def generate_hot(data: bytes, ordinals: bytes) -> Generated:
    """As :func:`jitree.dispatch.native.lower.program`, of some kernels and what they call."""
    wanted = array("i", ordinals)
    lowered = lower(decode(data), wanted, hot=wanted, roots=wanted)
    return resumable(lowered, PROGRAM if lowered.scalar else STRAIGHT)
