"""Random programs of ``hal`` imports: what Python and fast paths have to agree on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from hypothesis import strategies as st

from jitree.codegen.record import size_of
from jitree.hal.command_layout import KernelEntry
from jitree.hal.pipeline_layout import PipelineLayout
from jitree.loaders.library import EntryPoint, EntryTable, TabledExecutable
from jitree.modules.import_rows import rows
from tests.assembler import Assembler
from tests.hal import native_kernels
from tests.hal.native_kernels import COUNT, FAIL, MULTIPLY

ROWS = {row.name: row.cconv for row in rows("hal") if not row.last}
OLD_ROWS = ROWS | {row.name: row.cconv for last in "65" for row in rows("hal") if row.last[:3] == f"0.{last}"}
PUSHED_ROWS = OLD_ROWS | {
    row.name: row.cconv for last in "42" for row in rows("hal") if row.last[:3] == f"0.{last}"
}
"""Signatures of 0.7, of 0.5 and of 0.2 where those are others. Arguments of dispatches are pushed in 0.2."""
_ARGUMENTS = {"0riii_r": (0, 1, 2, 4), "0rrIrII_v": (0, 3, 4, 5, 6, 7), "0rrIIii_v": (0, 1, 2, 3, 5, 6)}
"""What 0.2 has of the arguments of 0.7, by signature."""

DEVICE, FIRST, SECOND, EXECUTABLE, TEXT, NAME = (f"%r{index}" for index in range(6))
BUFFERS = [f"%r{index}" for index in range(10, 14)]
VIEWS = ["%r14", "%r15"]
FENCES = ["%r16", "%r17", "%r18"]
COMMANDS = ["%r19", "%r20"]
ALLOCATOR = "%r21"
NULL = "%r30"
FALLBACK = "%r22"
LAYOUT = "%r23"
SET_LAYOUT = "%r24"
PLACES = [(0, 0), (0, 3), (1, 5)]
"""Set and binding of what functions take, in their order."""
RESULTS = [*BUFFERS, *VIEWS, *FENCES]
CCONV = "0rrrrrr_I" + "r" * len(RESULTS)
F32 = 0x21000020
USAGE = 0xC03
DEVICE_LOCAL = 0x30


@cache
def executable() -> TabledExecutable:
    """The test kernels, with names and counts."""
    kernels = native_kernels.executable()
    entries = []
    for ordinal, name in enumerate(native_kernels.NAMES):
        code, environment = struct.unpack_from(
            "<2q", kernels._entries.tobytes(), ordinal * size_of(KernelEntry)
        )
        constants, bindings = {"multiply": (0, 3), "fail": (2, 1), "count": (0, 1)}.get(name, (None, None))
        local_memory = kernels.local_memory(ordinal)
        entries.append(EntryPoint(name, code, environment, local_memory, constants, bindings, 0))
    executable = TabledExecutable("kernels", EntryTable.of(entries))
    executable.layouts = tuple(
        PipelineLayout(max(0, entry.constant_count or 0), tuple(PLACES[: entry.binding_count or 0]))
        for entry in entries
    )
    executable.kept = kernels  # type: ignore[attr-defined]
    return executable


class Program:
    """Lines of one function; every import that gives a number adds it to a sum that the function returns."""

    def __init__(self, rows: dict[str, str]) -> None:
        self.rows = rows
        self.lines: list[str] = ["%i0:1 = const.i64 7"]
        self.used: set[str] = set()
        self.set: set[str] = {NULL}

    def call(self, name: str, *arguments: int | str | Sequence[Sequence[int | str]], to: str = "") -> None:
        """``arguments`` are numbers, registers, and rows of a span. The signature decides the widths; flags
        that it does not have are left out."""
        cconv = self.rows[name]
        items = _items(cconv)
        arguments = tuple(arguments[index] for index in _ARGUMENTS.get(cconv, range(len(arguments))))
        if name == "fence.join" or name == "fence.await":
            arguments = arguments if len(items) == len(arguments) else (*arguments[:-2], arguments[-1])
        elif len(items) < len(arguments):
            arguments = (
                (*arguments[: len(items) - 1], arguments[-1])
                if items[-1][0] == "C"
                else arguments[: len(items)]
            )
        registers: list[str] = []
        segments: list[str] = []
        number = 2
        for item, argument in zip(items, arguments, strict=True):
            rows = argument if isinstance(argument, (list, tuple)) else [[argument]]
            segments.append(str(len(rows)) if item[0] == "C" else "0xFFFF")
            for row in rows:
                for kind, value in zip(item.strip("CD"), row, strict=True):
                    if kind == "r":
                        registers.append(str(value))
                        continue
                    register = f"%i{number}:{number + 1}" if kind == "I" else f"%i{number}"
                    self.lines.append(f"{register} = const.{'i64' if kind == 'I' else 'i32'} {value}")
                    registers.append(register)
                    number += 2
        kind = cconv.partition("_")[2]
        result = {"r": to, "i": "%i90", "I": "%i90:91"}.get(kind, "")
        spans = f" [{', '.join(segments)}]" if "C" in cconv else ""
        self.used.add(name)
        self.lines.append(
            f"{f'[{result}] = ' if result else ''}call{'.variadic' if spans else ''} @hal.{name}{spans} "
            f"[{', '.join(registers)}]"
        )
        if kind == "r":
            self.set.add(to)
        if kind in "iI":
            if kind == "i":
                self.lines.append("%i90:91 = ext.i32.i64.s %i90")
            self.lines += [
                "%i92:93 = const.i64 31",
                "%i0:1 = mul.i64 %i0:1, %i92:93",
                "%i0:1 = add.i64 %i0:1, %i90:91",
            ]

    def dispatch(
        self, commands: str, kernel: int, counts: Sequence[int], constants: list[Any], bindings: list[Any]
    ) -> None:
        """Of the executable, by whatever the signatures have."""
        if self.rows is not PUSHED_ROWS:
            self.call(
                "command_buffer.dispatch", commands, EXECUTABLE, kernel, *counts, 0, constants, bindings
            )
            return
        places = zip(PLACES, bindings, strict=False)
        self.push(commands, 0, constants, [(place, row[1:]) for place, row in places])
        self.call("command_buffer.dispatch", commands, EXECUTABLE, kernel, *counts)

    def push(
        self, commands: str, offset: int, constants: list[Any], bindings: list[tuple[tuple[int, int], Any]]
    ) -> None:
        """Constants from a word on, and (slot, buffer, offset, length) by set and binding; those of a set
        in reverse order."""
        if LAYOUT not in self.set:
            self.call("descriptor_set_layout.create", DEVICE, 0, [[0, 7, 0]], to=SET_LAYOUT)
            self.call("pipeline_layout.create", DEVICE, 0, [[SET_LAYOUT]], to=LAYOUT)
        if constants:
            self.call("command_buffer.push_constants", commands, LAYOUT, offset, constants)
        for chosen in dict.fromkeys(place[0] for place, _ in bindings):
            rows = [[place[1], *row] for place, row in reversed(bindings) if place[0] == chosen]
            self.call("command_buffer.push_descriptor_set", commands, LAYOUT, chosen, rows)

    def module(self, name: str) -> bytes:
        assembler = Assembler(name)
        for used in sorted(self.used):
            assembler.import_function(f"hal.{used}", self.rows[used])
        text = "\n".join([*self.lines, f"return [%i0:1, {', '.join(RESULTS)}]"])
        return assembler.function("f", CCONV, text).build()


def _items(cconv: str) -> list[str]:
    items: list[str] = []
    text = cconv[1:].partition("_")[0]
    while text:
        if text[0] == "C":
            end = text.index("D") + 1
            items.append(text[:end])
            text = text[end:]
        else:
            items.append(text[0])
            text = text[1:]
    return items


ODD_OFFSETS = (3, 65, -1, 300, 100000)
ODD_SHAPES = (
    (0,), (3, 0), (-1,), (-2, -2), (2**62,), (2**62 + 4, 1), (2**32, 2**32), (2**31, 2**31, 4), (99,),
)  # fmt: skip
ODD_LENGTHS = (0, 5, 1000, 100000, -2)


class _Drawing:
    """Draws the operations of one program. A careless one makes mistakes now and then, which end it."""

    def __init__(self, draw: st.DrawFn, program: Program) -> None:
        self.draw = draw
        self.program = program
        self.careless = draw(st.sampled_from([False, False, True]))
        self.sizes: dict[str, int] = {}
        """Bytes of the buffers and of the views' buffers."""

    # -- choices ---------------------------------------------------------------------------------------

    def one(self, *values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def odd(self, usual: Any, *odd: Any) -> Any:
        return self.one(*odd) if self.careless and self.one(*range(12)) == 11 else usual

    def known(self, registers: list[str], least: int = 0) -> Any:
        """A register that holds something (of that many bytes at least), None if there is none."""
        usual = [r for r in registers if r in self.program.set and self.sizes.get(r, least) >= least]
        return self.odd(self.one(*usual) if usual else None, NULL, *registers)

    def fence(self) -> str:
        return self.one(NULL, NULL, *(fence for fence in FENCES if fence in self.program.set))  # type: ignore[no-any-return]

    def range(self, buffer: str, step: int = 4) -> tuple[int, int]:
        """Offset and length, with offsets that are multiples of ``step``."""
        size = self.sizes.get(buffer, 0)
        offset = self.one(0, 0, *range(0, size + 1, max(step, size // 8 // step * step)))
        length = self.one(
            -1, size - offset, *range(0, size - offset + 1, max(4, (size - offset) // 8 // 4 * 4))
        )
        return self.odd(offset, *ODD_OFFSETS), self.odd(length, *ODD_LENGTHS)

    def step(self) -> None:
        operations = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        self.one(*operations)()

    # -- buffers and views -----------------------------------------------------------------------------

    def do_alloca(self) -> None:
        to = self.one(*BUFFERS)
        size = self.odd(self.one(0, 4, 64, 100, 128, 4096, 70000), -1)
        memory_type, usage = (
            self.one(DEVICE_LOCAL, DEVICE_LOCAL, 0x31, 0, 0x46),
            self.odd(self.one(USAGE, 0), 0xC00),
        )
        self.program.call(
            "device.queue.alloca", DEVICE, -1, NULL, self.fence(), 0, memory_type, usage, size, 0, to=to
        )
        self.program.call("device.queue.fill", DEVICE, -1, NULL, NULL, to, 0, -1, 0x3F, 1, 0)
        self.sizes[to] = size

    do_alloca_again = do_alloca

    def do_dealloca(self) -> None:
        self.program.call("device.queue.dealloca", DEVICE, -1, NULL, self.fence(), self.known(BUFFERS), 0)

    def do_view(self) -> None:
        buffer, to = self.known(BUFFERS), self.one(*VIEWS)
        offset, length = self.range(buffer)
        known = self.sizes.get(buffer, 0) - offset if length == -1 else length
        shape = self.odd(self.shape(max(0, known) // 4), *ODD_SHAPES)
        self.program.call("buffer_view.create", buffer, offset, length, F32, 1, [[d] for d in shape], to=to)
        self.sizes[to] = self.sizes.get(buffer, 0) - offset if length == -1 else length

    def shape(self, count: int) -> tuple[int, ...]:
        """Of at most so many elements."""
        shape: list[int] = []
        for size in self.draw(st.lists(st.sampled_from((1, 2, 3, 4, 16)), max_size=8)) or [0] * (not count):
            shape.append(min(size, count))
            count //= max(1, shape[-1])
        return tuple(shape)

    def do_view_buffer(self) -> None:
        view, to = self.known([*VIEWS, FIRST, SECOND]), self.one(*BUFFERS)
        self.program.call("buffer_view.buffer", view, to=to)
        self.sizes[to] = self.sizes.get(view, 64)

    do_view_buffer_again = do_view_buffer

    def do_view_look(self) -> None:
        view = self.known([*VIEWS, FIRST])
        what = self.one("rank", "element_type", "encoding_type", "dim", "assert")
        if what == "dim":
            self.program.call("buffer_view.dim", FIRST, self.odd(self.one(0, 1), 2, -1, 7))
        elif what == "assert":
            shape = self.odd([2, 8], [16], [8, 2], [2, 8, 1])
            element, encoding = self.odd(F32, 0x10000020), self.odd(1, 2)
            self.program.call("buffer_view.assert", FIRST, TEXT, element, encoding, [[d] for d in shape])
        else:
            self.program.call(f"buffer_view.{what}", view)

    def do_allocator(self) -> None:
        self.program.call("device.allocator", DEVICE, to=ALLOCATOR)

    def do_assert(self) -> None:
        buffer, usage = self.known(BUFFERS), self.odd(self.one(0, 3), USAGE, 0x1000)
        self.program.call(
            "buffer.assert", buffer, TEXT, ALLOCATOR, self.odd(0, 1000), self.odd(2, 0x46), usage
        )

    def do_subspan(self) -> None:
        buffer, to = self.known(BUFFERS), self.one(*BUFFERS)
        offset, length = self.range(buffer)
        self.program.call("buffer.subspan", buffer, offset, length, to=to)
        self.sizes[to] = self.sizes.get(buffer, 0) - offset if length == -1 else length

    def do_length(self) -> None:
        self.program.call("buffer.length", self.known(BUFFERS))

    def do_scalars(self) -> None:
        buffer, size = self.known(BUFFERS, 4), self.one(1, 2, 4, 4, 3)
        if buffer is None:
            return
        size, offset = self.odd(size, 0, 5), self.odd(0, 1, 4, -1, 300)
        if self.one(False, True):
            self.program.call("buffer.load", buffer, offset, size)
        else:
            self.program.call("buffer.store", self.one(-2, 0x01020304), buffer, offset, size)

    # -- fences ----------------------------------------------------------------------------------------

    def do_fence(self) -> None:
        self.program.call("fence.create", DEVICE, 0, to=self.one(*FENCES))

    do_fence_again = do_fence

    def do_fence_use(self) -> None:
        what = self.one("query", "signal", "signal", "await", "join")
        several = [[self.fence()] for _ in range(self.one(0, 1, 2, 3))]
        if what == "await":
            self.program.call("fence.await", 0, 0, several)
        elif what == "join":
            self.program.call("fence.join", 0, several, to=self.one(*FENCES))
        elif self.known(FENCES) is not None:
            self.program.call("fence.create", DEVICE, 0, to=FENCES[0])
            self.program.call(f"fence.{what}", FENCES[0])

    def do_order(self) -> None:
        self.program.call("device.queue.barrier", DEVICE, -1, NULL, self.fence(), self.odd(0, 1))
        self.program.call("device.queue.flush", DEVICE, -1)

    # -- transfers -------------------------------------------------------------------------------------

    def do_fill(self) -> None:
        buffer, pattern = self.known(BUFFERS), self.one(0x41, 0x4142, 0x41424344, -1)
        offset, length = self.range(buffer)
        size = self.odd(self.one(1, 2, 4), 3)
        self.program.call(
            "device.queue.fill", DEVICE, -1, NULL, self.fence(), buffer, offset, length, pattern, size, 0
        )

    def do_copy(self) -> None:
        source, target = self.known(BUFFERS, 64), self.known(BUFFERS, 64)
        if source is not None and target is not None and (source != target or self.careless):
            length = self.odd(self.one(0, 4, 64), *ODD_LENGTHS)
            self.program.call(
                "device.queue.copy", DEVICE, -1, NULL, self.fence(), source, self.odd(0, *ODD_OFFSETS),
                target, self.odd(0, *ODD_OFFSETS), length, 0,
            )  # fmt: skip

    def do_update(self) -> None:
        target = self.known(BUFFERS, 8)
        if target is not None:
            self.program.call(
                "device.queue.update", DEVICE, -1, NULL, self.fence(), TEXT, self.one(0, 1, 64), target,
                self.odd(0, *ODD_OFFSETS), self.odd(self.one(0, 4, 8), 81), 0,
            )  # fmt: skip

    # -- command buffers -------------------------------------------------------------------------------

    def do_record(self) -> None:
        to = self.one(*COMMANDS)
        modes, capacity = self.one(0, 0, 1), self.odd(self.one(3, 3, 2), -1, 0)
        self.program.call("command_buffer.create", DEVICE, modes, self.odd(3, 1, 2, 0), -1, capacity, to=to)
        for _ in range(self.one(0, 1, 2, 4, 8, 70)):
            self._command(to, capacity)
            self.program.call(
                "command_buffer.execution_barrier", to, 4, 8, 0
            )  # else threads may swap commands
        if self.odd(True, False):
            self.program.call("command_buffer.finalize", to)
        self._execute(to)
        if modes == 0 or self.careless:
            self._execute(to)

    do_record_again = do_record

    def _command(self, to: str, capacity: int) -> None:
        what = self.one("barrier", "fill", "update", "copy", "dispatch", "dispatch", "lookup")
        buffer, other = self.known(BUFFERS, 64), self.known(BUFFERS, 64)
        slot, other_slot = (self.odd(self.one(0, 1), 2, 3) for _ in range(2))
        if what == "barrier":
            self.program.call("command_buffer.execution_barrier", to, 4, 8, 0)
        elif what == "lookup":
            self.program.call("executable.lookup.function", EXECUTABLE, NAME)
        elif buffer is None or other is None:
            return
        elif what == "fill":
            offset, length = self.range(buffer)
            size = self.odd(self.one(1, 2, 4), 3)
            self.program.call(
                "command_buffer.fill_buffer", to, self.or_slot(buffer), offset, length, slot,
                self.one(0x41, 0x41424344), size, 0,
            )  # fmt: skip
        elif what == "update":
            self.program.call(
                "command_buffer.update_buffer", to, TEXT, self.one(0, 8), self.one(buffer, NULL),
                self.odd(0, *ODD_OFFSETS), self.odd(self.one(0, 8, 64), *ODD_LENGTHS), slot, 0,
            )  # fmt: skip
        elif what == "copy" and buffer != other:
            source, target = self.or_slot(buffer), self.or_slot(other)
            self.program.call(
                "command_buffer.copy_buffer", to, slot, other_slot, source, self.odd(0, *ODD_OFFSETS), target,
                self.one(0, 0, 64, 128), self.odd(self.one(0, 4, 64), *ODD_LENGTHS), 0,
            )  # fmt: skip
        elif what == "dispatch":
            self._dispatch(to, capacity)

    def or_slot(self, buffer: str) -> Any:
        """The buffer, or what submissions have in a slot: 0.2 fills and copies none."""
        return self.odd(buffer, NULL) if self.program.rows is PUSHED_ROWS else self.one(buffer, NULL)

    def _dispatch(self, to: str, capacity: int) -> None:
        """Ranges have 64 bytes, grids 16 workgroups at most, where the program is not careless."""
        kernel = self.odd(self.one(MULTIPLY, MULTIPLY, MULTIPLY, COUNT), FAIL, 99, -1)
        bindings = []
        for _ in range(3 if kernel == MULTIPLY else 1):
            buffer = self.one(NULL, self.known(BUFFERS, 64), self.known(BUFFERS, 64))
            bindings.append(
                [0, self.odd(self.one(0, 1), 2, 3), buffer or NULL, self.odd(0, 4, -64), self.one(-1, 64)]
            )
        bindings = self.odd(bindings, bindings[1:])
        constants = [[0], [self.one(0, 5)]] if kernel == FAIL else []
        counts = self.one(1, 2, 4, 0), self.one(1, 2), self.odd(self.one(1, 2), 70000)
        if self.program.rows is PUSHED_ROWS:
            bindings = self._push(to, bindings)
        self.program.dispatch(to, kernel, counts, constants, bindings)

    def _push(self, to: str, bindings: list[Any]) -> list[Any]:
        """What the next dispatch does not take, and what is refused; perhaps some of what it takes. Gives the
        rest."""
        program = self.program
        place = self.odd(self.one((0, 1), (1, 0), (0, 31)), (2, 0), (31, 31), (0, 32), (32, 0), (-1, 0))
        if self.one(True, False):
            offset = self.odd(self.one(0, 3, 62), 63, -1)
            program.push(to, offset, [[5], [9]], [(place, row[1:]) for row in bindings[:1]])
        if self.one(True, True, False):
            return bindings
        program.push(to, 0, [], [(place, row[1:]) for place, row in zip(PLACES, bindings, strict=False)])
        return bindings[self.one(0, 1, 2, 3) :]

    def _execute(self, commands: str) -> None:
        """Also waits for it: what runs on another thread must have ended when the program does."""
        done = self.one(*FENCES)
        self.program.call("fence.create", DEVICE, 0, to=done)
        if self.program.rows is ROWS and self.odd(False, True):
            self.program.call("device.queue.execute", DEVICE, -1, NULL, done, commands, 0)
        else:
            entries = []
            for _ in range(self.odd(3, 0, 1, 2)):
                buffer = self.known([*BUFFERS[:3], *BUFFERS], 64)
                entries.append([buffer or FALLBACK, self.odd(0, 100000, -1), self.odd(-1, 64)])
            self.program.call("device.queue.execute.indirect", DEVICE, -1, NULL, done, commands, 0, entries)
        self.program.call("fence.await", -1, 0, [[done], [NULL]])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs of up to 20 operations."""
    program = Program(draw(st.sampled_from([ROWS, ROWS, OLD_ROWS, PUSHED_ROWS])))
    drawing = _Drawing(draw, program)
    program.call("device.allocator", DEVICE, to=ALLOCATOR)
    for view, buffer in ((FIRST, BUFFERS[0]), (SECOND, BUFFERS[1])):
        program.call("buffer_view.buffer", view, to=buffer)
        program.set.add(view)
        drawing.sizes[view] = drawing.sizes[buffer] = 64
    for buffer in (BUFFERS[2], FALLBACK):
        program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, 0, DEVICE_LOCAL, USAGE, 256, 0, to=buffer)
        program.call("device.queue.fill", DEVICE, -1, NULL, NULL, buffer, 0, -1, 0, 1, 0)
        drawing.sizes[buffer] = 256
    for _ in range(draw(st.integers(1, 20))):
        drawing.step()
    return program
