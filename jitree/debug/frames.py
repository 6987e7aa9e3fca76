"""Reads and writes registers of a stopped program by name; evaluates expressions of them.

Names are ``%i3``, ``%i4:5``, ``%r0``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import index
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base import elements
from jitree.base.arguments import said
from jitree.base.records import NamedTuple
from jitree.debug.code import REF, Codes, FunctionCode
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, pass_interruption, printable
from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.regs.machine import FRAME_WORDS, Machine
from jitree.types import element_type

if TYPE_CHECKING:
    from types import CodeType

    from jitree.dispatch.backtrace import LeftFrame
    from jitree.hal.device import Device
    from jitree.regs.handles import HandleTable
    from jitree.regs.records import ModuleRecord

_NAME: Final = re.compile(r"%([ifrR])(\d{1,9})(?::(\d{1,9}))?(?:\.([if])(?:32|64))?\b")
GLOBAL: Final = re.compile(r"global\[(\d{1,9})\](?:\.(i32|i64|f32|f64))?|globalref\[(\d{1,9})\]")
_SHOWN: Final = 16
"""Elements of a tensor, bytes of a buffer and items of a list that are shown, unless all are asked for."""
_ALL: Final = 1 << 30
_NAMED: Final = 200
"""Characters of an expression that a message has."""
_LAYOUTS: Final = {"i32": "i", "i64": "q", "f32": "f", "f64": "d"}
_LIMITS: Final = {"i32": 32, "i64": 64}


class Gone(str):
    """Stands for an object of a call that has ended. It has the name of its type."""


class Frame(NamedTuple):
    """A function that has not returned yet, and its registers."""

    code: FunctionCode
    word: int
    values: memoryview
    """Value slots as i32."""
    refs: Sequence[int]
    held: Callable[[int], object]
    """What a ref holds, by what ``refs`` has."""
    offset: int
    machine: Machine | None = None
    """None after the call has ended."""
    place: int = 0
    """Of the frame's record in the machine."""

    @property
    def location(self) -> str:
        return self.code.line_of(self.offset)

    @property
    def record(self) -> ModuleRecord:
        """The function's module, with its globals. INVALID_ARGUMENT after the call has ended."""
        if self.machine is None:
            raise InvalidArgumentError("the call has ended: its globals are not known")
        return self.machine.functions[self.machine.frames[self.place]].module

    @property
    def title(self) -> str:
        """``module.function+0000001C at file.mlir:3:10``"""
        line = self.location
        return f"{self.code.full_name}+{self.offset:08X}" + (f" at {line}" if line else "")

    def value(self, slot: int, kind: str) -> Any:
        """A value register as one of a type."""
        width = 2 if kind.endswith("64") else 1
        if not 0 <= slot <= self._value_count - width:
            raise NotFoundError(
                f"{self.code.full_name} has no register %i{slot}; it has {self._value_count} of 32 bits"
            )
        content = self.values[slot : slot + width].tobytes()
        return struct.unpack(_LAYOUTS[kind], content)[0]

    def ref(self, number: int) -> object:
        """What a ref register holds; None for null."""
        self._require_ref(number)
        return self.held(self.refs[number])

    def set_value(self, slot: int, kind: str, value: Any) -> None:
        self.value(slot, kind)
        if self.machine is None:
            raise InvalidArgumentError("the call has ended: its registers cannot be set")
        bits = _LIMITS.get(kind)
        try:
            if bits is not None:
                value = index(value)
                value -= (value >> bits - 1 == 1) << bits  # one without a sign
            content = struct.pack(_LAYOUTS[kind], value)
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            pass_interruption(error)
            raise InvalidArgumentError(f"{value!r} is no value of type {kind}: {error}") from None
        words = memoryview(content).cast("i")
        self.values[slot : slot + len(words)] = words

    def set_ref(self, number: int, other: int | None) -> None:
        """Has a ref register hold what another one does; None: null."""
        self._require_ref(number)
        if self.machine is None:
            raise InvalidArgumentError("the call has ended: its registers cannot be set")
        if other is not None:
            self._require_ref(other)
        refs: Any = self.refs
        self.machine.table.put(refs, number, 0 if other is None else self.refs[other])

    def kind_of(self, slot: int) -> str:
        """The type of what a value register holds, as far as the code tells."""
        return self.code.kinds(self.offset).get((False, slot), "i32")

    def _require_ref(self, number: int) -> None:
        count = self.code.program.functions[self.code.ordinal].ref_count
        if not 0 <= number < count:
            raise NotFoundError(f"{self.code.full_name} has no register %r{number}; it has {count} refs")

    @property
    def _value_count(self) -> int:
        return self.code.program.functions[self.code.ordinal].value_count


def frames_of(machine: Machine, pc: int, codes: Codes) -> list[Frame]:
    """The frames of a machine that has stopped, innermost first."""
    found = []
    for depth, (function, word) in enumerate(machine.locations(pc)):
        index = machine.frame - depth * FRAME_WORDS
        i32, _, _, _, refs = machine.registers_of(index)
        record = function.module
        code = codes.find(record.module, record.program, function.ordinal)
        offset = code.offset(word)
        found.append(Frame(code, word, i32, refs, machine.table.object, offset, machine, index))
    return found


def ended_frame(left: LeftFrame, codes: Codes) -> Frame:
    """A frame of a call that has ended."""
    code = codes.find(left.module, left.program, left.ordinal)
    values = memoryview(bytearray(left.values)).cast("i")
    names = [None if name == "" else Gone(name) for name in left.references]
    refs = range(len(names))
    return Frame(code, left.word, values, refs, names.__getitem__, code.offset(left.word))


# -- names and expressions ---------------------------------------------------------------------------


def parse_register(text: str) -> tuple[bool, int, str]:
    """Whether a name means a ref, the number, and the type that it states. INVALID_ARGUMENT for others."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"'{shortened(text)}' names no register; names are %i3 (32 bits), %i4:5 (64 bits), %f3 and %f4:5 "
            "(floats), %r0"
        )
    letter, number, second, suffix = match.groups()
    if second is not None and int(second) != int(number) + 1:
        raise InvalidArgumentError(f"'{text}': a register of 64 bits is two that follow each other, as %i4:5")
    if letter in "rR":
        return True, int(number), REF
    kind = suffix or (letter if letter == "f" else "")
    return False, int(number), (f"{kind}{'64' if second else '32'}" if kind else "64" if second else "")


def typed(frame: Frame, number: int, kind: str) -> str:
    """The type of a register: what its name states, else what the code tells."""
    if kind in _LAYOUTS:
        return kind
    known = frame.kind_of(number)
    if kind == "64":
        return known if known.endswith("64") else "i64"
    return known


def compiled(text: str) -> CodeType:
    """Compiles an expression, in which names of registers and globals become calls. INVALID_ARGUMENT for what
    is none."""
    replaced = text
    for pattern in (_NAME, GLOBAL):
        replaced = pattern.sub(lambda match: f"_read({match[0]!r})", replaced)
    try:
        return compile(replaced, "<jitree expression>", "eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        pass_interruption(error)
        why = str(error) or "it is nested too deeply"
        raise InvalidArgumentError(f"`{shortened(text)}` is no expression: {why}") from None


def shortened(text: str) -> str:
    """Shows what was typed, as far as a message has room."""
    shown = printable(text[:_NAMED])
    return shown if len(text) <= _NAMED else f"{shown}…"


def evaluate(text: str, frame: Frame | None, names: Mapping[str, Any], show: Showing) -> Any:
    """Evaluates a Python expression of registers.

    ``%i3`` and the like are names, and ``np`` is numpy. INVALID_ARGUMENT, naming it, if that fails."""

    def read(name: str) -> Any:
        if frame is None:
            raise InvalidArgumentError(f"there is no {name} here")
        if name.startswith("global"):
            return show.plain(read_global(frame.record, frame.held, name))
        is_ref, number, kind = parse_register(name)
        return show.plain(frame.ref(number)) if is_ref else frame.value(number, typed(frame, number, kind))

    code = compiled(text)
    try:
        return eval(code, {"_read": read, "np": np, **names})
    except Exception as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"`{shortened(text)}`: {said(error)}") from None


def read_global(record: ModuleRecord, held: Callable[[int], object], name: str) -> Any:
    """The value of ``global[8]``, ``global[8].f32`` or ``globalref[0]`` of a module."""
    match = GLOBAL.fullmatch(name.strip())
    if match is None:
        raise InvalidArgumentError(
            f"'{shortened(name)}' names no global; names are global[8] (by byte, as .rwdata[8] in listings), "
            "global[8].f32 and globalref[0] (as .refs[0])"
        )
    if match[3] is not None:
        number = int(match[3])
        if number >= len(record.ref_globals):
            raise NotFoundError(f"{name}: the module has {len(record.ref_globals)} ref globals")
        return held(record.ref_globals[number])
    layout = struct.Struct(_LAYOUTS[match[2] or "i32"])
    offset, size = int(match[1]), record.module.globals_size
    if offset + layout.size > size:
        raise NotFoundError(f"{name}: the module has {size} bytes of globals")
    return layout.unpack_from(record.global_bytes, offset)[0]


def assign(frame: Frame, name: str, text: str, evaluated: Callable[[str], Any], show: Showing) -> str:
    """Gives a register the value of an expression; a ref takes another one, or null. Gives its new text."""
    is_ref, number, kind = parse_register(name)
    if is_ref:
        is_other, other, _ = (True, None, "") if text == "null" else parse_register(text)
        if not is_other:
            raise InvalidArgumentError(f"%r{number} is a ref; it takes another one, or null")
        frame.set_ref(number, other)
    else:
        kind = typed(frame, number, kind)
        frame.set_value(number, kind, evaluated(text))
    return show.register(frame, is_ref, number, kind)


# -- texts -------------------------------------------------------------------------------------------


class Showing:
    """Makes texts and numpy arrays of what registers hold."""

    def __init__(self, device: Device | None, table: HandleTable | None) -> None:
        self._device, self._table = device, table

    def register(self, frame: Frame, is_ref: bool, number: int, kind: str, is_whole: bool = False) -> str:
        """``%i3 = 5 : i32``"""
        if is_ref:
            return f"%r{number} = {self.text(frame.ref(number), is_whole)}"
        kind = typed(frame, number, kind)
        name = f"%i{number}:{number + 1}" if kind.endswith("64") else f"%i{number}"
        return f"{name} = {frame.value(number, kind)!r} : {kind}"

    def registers(self, frame: Frame) -> list[str]:
        """All registers that have been written."""
        found = sorted(frame.code.kinds(frame.offset).items())
        return [self.register(frame, is_ref, number, kind) for (is_ref, number), kind in found]

    def text(self, value: object, is_whole: bool = False) -> str:
        most = _ALL if is_whole else _SHOWN
        match value:
            case None:
                return "null"
            case Gone():
                return f"{value} (of a call that has ended)"
            case BufferView():
                return f"!hal.buffer_view {self._view(value, most)}"
            case Buffer():
                shown = f": {bytes(self._read(value)).hex(' ')}" if is_whole else ""
                return f"!hal.buffer {value.byte_length} bytes{shown}"
            case VmBuffer():
                shown = bytes(value.view[:most]).hex(" ")
                return f"!vm.buffer {value.length} bytes: {shown}" + (" …" if value.length > most else "")
            case VmList():
                items = [self._item(item) for item in islice(iter(value), most)]
                more = ", …" if len(value) > most else ""
                return f"!vm.list of {len(value)}: [{', '.join(items)}{more}]"
        if self._table is not None and hasattr(type(value), "VM_TYPE"):
            return f"!{self._table.ref_types.name(self._table.ref_types.id_of(value))}"
        try:
            return printable(repr(value))
        except Exception as error:  # of any class; of an integer with too many digits
            pass_interruption(error)
            raise InvalidArgumentError(f"it cannot be shown: {said(error)}") from None

    def _item(self, item: object) -> str:
        if isinstance(item, VmList):
            return f"!vm.list of {len(item)}"
        return self.text(item)

    def _view(self, view: BufferView, most: int) -> str:
        row = element_type(view.element_type)
        head = "x".join([*map(str, view.shape), row.name])
        try:
            return f"{head}={elements.elements_text(row, view.shape, self._data(view), most)}"
        except (StatusError, ValueError) as error:
            pass_interruption(error)
            return f"{head} (cannot be read: {error})"

    def _data(self, view: BufferView) -> elements.Bytes:
        return self._read(view.buffer)[: element_type(view.element_type).byte_length(view.shape)]

    def _read(self, buffer: Buffer) -> elements.Bytes:
        return buffer.host_array() if self._device is None else self._device.read_buffer(buffer)

    def plain(self, value: object) -> Any:
        """What an expression gets of a reference: arrays, lists and bytes."""
        match value:
            case BufferView():
                row = element_type(value.element_type)
                found = elements.values(row, self._data(value), elements.count_elements(value.shape))
                return found.reshape(value.shape)
            case Buffer():
                return bytes(self._read(value))
            case VmBuffer():
                return bytes(value)
            case VmList():
                return [self.plain(item) for item in value]
        return value
