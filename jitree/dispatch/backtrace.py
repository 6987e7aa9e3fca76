"""Where in a program a call failed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from jitree.base.folding import is_caller
from jitree.base.records import NamedTuple
from jitree.dispatch.plain.calls import call_import
from jitree.errors import CancelledError, DeadlineExceededError, StatusError, ignored, locations
from jitree.regs.machine import FRAME_WORDS, Machine
from jitree.regs.records import FunctionRecord
from jitree.vmfb.words import OPCODE

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jitree.dispatch.function import VmFunction
    from jitree.vmfb.program import DecodedModule
    from jitree.vmfb.schema import ModuleTables

_IMPORT: Final[CodeType] = call_import.__code__
_CALL_IMPORT: Final = OPCODE["call.import"]
_FAIL: Final = OPCODE["fail"]
_ASSERTION: Final = ".buffer_view.assert"
_NAMED_FRAMES: Final = 3
_SHOWN_FRAMES: Final = 64
"""Lines of a backtrace at either end; a runaway recursion has thousands of equal frames."""


def describe(function: FunctionRecord, word: int) -> str:
    """``module.function+0000001C at file.mlir:3:10`` of the instruction that a word belongs to."""
    record = function.module
    text = record.places.get(word)
    if text is None:
        ordinal, offset = record.program.location(word)
        debug = record.module.debug
        places = debug.locate(ordinal, offset) if debug is not None else []
        text = f"{record.module.name}.{function.name}+{offset:08X}"
        text = record.places[word] = f"{text} at {locations(places)}" if places else text
    return text


def asking(frame: FrameType | None) -> tuple[Any, int, str]:
    """Finds the import that a thread makes, and the line that called.

    Gives its machine, None for what no program asks, its word, and the line of the user: ``model.py:12 in
    main``."""
    machine, word = None, 0
    while frame is not None:
        code = frame.f_code
        if is_caller(code.co_filename):
            return machine, word, f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        if code is _IMPORT and machine is None:
            machine, word = frame.f_locals["machine"], frame.f_locals["pc"]
        frame = frame.f_back
    return machine, word, ""


def places_of(function: VmFunction) -> list[str]:
    """Where a function comes from, as far as its module says it."""
    module = getattr(function.module, "module", None)  # of bytecode
    debug = getattr(module, "debug", None)
    return [] if debug is None else debug.places(function.ordinal)


def describe_call(name: str, machine: Machine) -> str:
    """Says what a call runs and where it is. Another thread may ask."""
    seen = machine.seen
    if not seen:
        return f"function '{name}'"
    shown = [describe(*frame) for frame in seen[:_NAMED_FRAMES]]
    if len(seen) > _NAMED_FRAMES:
        shown.append(f"{len(seen) - _NAMED_FRAMES} more")
    return f"function '{name}', last seen at {', called from '.join(shown)}"


class LeftFrame(NamedTuple):
    """Keeps what is left of a frame of a failed call. It has its place, its values, and what types its
    references had. The objects are gone with the call."""

    module: ModuleTables
    program: DecodedModule
    ordinal: int
    word: int
    values: bytes
    references: tuple[str, ...]


class LeftFrames(tuple[LeftFrame, ...]):
    """The frames of a failed call, for :func:`jitree.post_mortem`. They do not travel to other processes."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return LeftFrames, ()


def _left(machine: Machine, frames: list[tuple[FunctionRecord, int]]) -> LeftFrames:
    """The innermost frames of a machine, as they are."""
    found, names, kind, at = [], machine.table.ref_types.name, machine.table.kind, machine.frame
    for function, word in frames[:_SHOWN_FRAMES]:
        i32, _, _, _, refs = machine.registers_of(at)
        at -= FRAME_WORDS
        held = tuple([names(kind(ref)) if ref else "" for ref in refs[: function.ref_count].tolist()])
        record, values = function.module, i32[: function.value_count].tobytes()
        found.append(LeftFrame(record.module, record.program, function.ordinal, word, values, held))
    return LeftFrames(found)


def annotate(error: BaseException, machine: Machine) -> None:
    """Adds the VM frames of a failed call to its error, innermost first: to ``backtrace`` of a StatusError,
    as a note to any other exception. A failure inside a host function also gets its name. At exit of the
    interpreter there is nothing left that could tell."""
    if sys.is_finalizing():
        return
    frames = list(machine.locations(machine.pc))
    omitted = len(frames) - 2 * _SHOWN_FRAMES
    if omitted > 0:
        lines = [describe(*frame) for frame in frames[:_SHOWN_FRAMES]]
        lines.append(f"… {omitted} more frames …")
        lines += [describe(*frame) for frame in frames[-_SHOWN_FRAMES:]]
    else:
        lines = [describe(*frame) for frame in frames]
    native = _native_callee(*frames[0]) if frames else None
    if isinstance(error, StatusError):
        error.backtrace += lines
        if frames and error.frames is None:
            error.frames = _left(machine, frames)
        if frames and not isinstance(error, (CancelledError, DeadlineExceededError)):
            for text in _ties(*frames[0]):
                error.with_context(text)
        if native:
            error.with_context(f"while invoking host function {native}")
    elif lines:
        called = [f"while invoking host function {native}"] if native else []
        add_note(error, "\n  ".join(["VM backtrace, innermost first:", *called, *lines]))


def add_note(error: BaseException, text: str) -> None:
    """Adds a note to an error. Its class may have something else in the place of the notes."""
    with ignored(TypeError, AttributeError):
        BaseException.add_note(error, text)


def _native_callee(function: FunctionRecord, word: int) -> str | None:
    """The host function that an instruction calls."""
    code, module = function.code, function.module
    if word >= len(code):  # Ctrl-C came between entering a function of another module and its first word
        return None
    if code[word] != _CALL_IMPORT or code[word + 3] not in module.first_calls:
        return None
    return module.module.imports[code[word + 3]].full_name


def _ties(function: FunctionRecord, word: int) -> list[str]:
    """What an assertion that failed requires of the dimensions of arguments. Finding that out takes
    milliseconds: no other failure waits for it."""
    callee = _native_callee(function, word)
    is_assertion = word < len(function.code) and function.code[word] == _FAIL
    if not is_assertion and not (callee and callee.endswith(_ASSERTION)):
        return []
    from jitree.vmfb.argument_placement import tied

    record = function.module
    return tied(record.module, record.program, *record.program.location(word))
