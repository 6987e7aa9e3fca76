"""Keeps a call stack of frames of registers. Machine code runs on it through the state block.

All tiers run on the same memory. While Python runs, ``pc`` is an index into ``code`` and the attributes
``i32 … refs`` show the registers of the current frame; while machine code runs, STATE holds addresses.
:meth:`Machine.publish` and :meth:`Machine.adopt` go from one to the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base.cancel_scopes import require_going_on
from jitree.codegen.image.shipped import CHECKED
from jitree.codegen.record import words_of
from jitree.errors import CancelledError, ResourceExhaustedError
from jitree.regs.handles import HandleTable
from jitree.regs.layout import FRAME, PROMPT, STATE, STATE_WORDS, FrameRecord
from jitree.regs.memory import MAXIMUM_FRAMES, MemoryBlock
from jitree.regs.records import FunctionRecord, FunctionRecords

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from jitree.regs.memory import ObjectPool
    from jitree.regs.records import ModuleRecord

    class Awaited(Protocol):
        """A call that cannot complete yet."""

        @property
        def wait(self) -> Callable[[float | None], bool]: ...
        @property
        def resume(self) -> Callable[[], object]: ...
        @property
        def awaitable(self) -> Callable[[], Awaitable[object]] | None: ...

    Completion = Callable[["Machine", object], None]
    Window = tuple[memoryview, memoryview, memoryview[float], memoryview[float], memoryview]

VALUE_ARENA: Final = 4 << 20
"""Bytes: 128 value slots a frame at full depth. Upstream's stack of 1 MiB ends at about 7000 small frames."""
REF_ARENA: Final = 2 << 20
_FRAMES_AT: Final = 256
_MARGIN: Final = 64 if CHECKED else 0
"""Bytes after the frames and after the values that nothing accesses, which checked code is told."""
_VALUES_AT: Final = _FRAMES_AT + MAXIMUM_FRAMES * FRAME.size + _MARGIN
_VALUES_END: Final = _VALUES_AT + VALUE_ARENA
_REFS_AT: Final = _VALUES_END + _MARGIN
_SIZE: Final = _REFS_AT + REF_ARENA
assert STATE.size <= _FRAMES_AT

_CACHED_WINDOWS: Final = 512
"""Frames whose views are kept for the next call at the same place: what non-recursive programs reach."""

FRAME_WORDS: Final = FRAME.size // 8
_FRAME: Final = words_of(FrameRecord)


STATE_ENTRY: Final = slice(STATE_WORDS.pc, 1 + STATE_WORDS.module)
"""The words of STATE that say where machine code goes on."""

FUEL: Final = 1 << 8
"""Branches and calls, at most, between a look of Python and that of machine code at the clock, which follows
the time from then on."""
FIRST_FUEL: Final = 1
"""What a new machine begins with: blocks may be long."""
TIME: Final = 30_000_000
"""Nanoseconds after which machine code must let Python look after signals."""
FIRST_TIME: Final = 4_000_000
"""What a new machine begins with. Then a program counts as one that computes in bytecode."""
PROMPT_TIME: Final = 1_000_000
"""Nanoseconds in calls that must not hold up others."""
STACK: Final = 32 << 10
"""Bytes of the processor's stack for compiled functions; further calls go on in the interpreter's frames.
There are threads with 64 KiB, and calls inside of calls."""

STOP: Final = -1
"""Next pc of a handler after which the engine stops: the call is complete, or waits (``Machine.pending``)."""


class Machine:
    """One call stack of a context, reused from call to call.

    ``i32``, ``f32`` are indexed by value slot, ``i64``, ``f64`` by slot / 2, ``refs`` by ref ordinal, all of
    the current frame. ``code`` are the words of the current function's program, ``module`` is its state.
    """

    __slots__ = (
        "__weakref__", "_host", "_memory", "_windows", "attach_slow_call", "code", "code_address",
        "completion", "f32", "f64", "failure", "frame", "frames", "frames_address", "function", "functions",
        "i32", "i64", "module", "observed", "pc", "pending", "refs", "resume_pc", "seen", "slow_call",
        "slow_steps", "sought", "state", "state_address", "table",
    )  # fmt: skip

    def __init__(self, table: HandleTable, functions: FunctionRecords) -> None:
        """``functions`` maps the addresses of function records to them; it is the context's and may grow."""
        self.table = table
        self.functions = functions
        self._memory = MemoryBlock(_SIZE)
        base = self._memory.address
        self.state_address = base
        self.state: memoryview = self._memory.i64[: STATE.size // 8]
        self.frames_address = base + _FRAMES_AT
        end = _FRAMES_AT + (table.bounds.frames + 1) * FRAME.size
        self.frames: memoryview = self._memory.i64[_FRAMES_AT // 8 : end // 8]
        self.state[STATE_WORDS.values_limit] = base + _VALUES_END
        self.state[STATE_WORDS.refs_limit] = base + _SIZE
        self.state[STATE_WORDS.frames_limit] = base + end
        self.state[STATE_WORDS.grant] = FIRST_FUEL
        self.fill_fuel()
        self.limit_time(FIRST_TIME)
        self.state[STATE_WORDS.stack] = STACK
        self.frames[_FRAME.refs_end] = base + _REFS_AT
        table.machines.add(self)
        if table.handle_pool is not None:
            self.connect(table.handle_pool)
        self._windows: dict[tuple[int, int], Window] = {}
        self._host: FunctionRecord | None = None
        """What the host's frame was made for."""
        self.frame = 0
        """Word index of the current frame's record in ``frames``."""
        self.pc = 0
        """The instruction to run, or the one that failed or waits; valid while the engine is not running."""
        self.resume_pc = 0
        """Where to go on when ``pending`` has happened."""
        self.pending: Awaited | None = None
        """What the call waits for when the engine left without finishing it."""
        self.failure: list[BaseException | None] = [None]
        """What an instruction that a compiled function had executed has raised: one element."""
        """Why STATE.slow could not execute an instruction; raised when machine code has left."""
        self.slow_call: object = None
        self.observed: Any = None
        """What readers know of the call."""
        self.slow_steps: Any = None
        """The generator that ``slow_call`` enters."""
        self.attach_slow_call: Callable[[Machine], object] = bool
        """What keeps the function at STATE.slow alive."""
        self.seen: Sequence[tuple[FunctionRecord, int]] | None = None
        """Where the call was when Python last looked (:meth:`locations`); None if no caller wants to know."""
        self.sought = 0
        """Branches looked at, since the time was last over, for a way into native code."""
        self.completion: Completion | None = None
        """Takes the results of ``pending`` and writes them to their registers."""
        self.function: FunctionRecord
        self.module: ModuleRecord
        self.code: memoryview
        self.code_address = 0
        self.i32: memoryview
        self.i64: memoryview
        self.f32: memoryview[float]
        self.f64: memoryview[float]
        self.refs: memoryview

    # -- frames --------------------------------------------------------------------------------------
    # Ctrl-C may come at any call. What is owed by then must be gone from the registers, what is not must be
    # there: a reference too many is memory until the context closes, one too few is another's object.

    def begin(self, function: FunctionRecord) -> None:
        """Makes the host's frame, the outermost one. Its refs are null, its values whatever they were."""
        self.state[STATE_WORDS.looked] = 0
        if self._host is not function:
            base, at = self._memory.address, _REFS_AT >> 3
            self._host = None
            # Frames of earlier calls, after a smaller frame of the host, left dropped handles here. They go
            # before the frame has them: an interrupt would have them dropped again.
            self._memory.i64[at : at + function.ref_count] = function.null_refs
            self._write_frame(0, function, base + _VALUES_AT, base + _REFS_AT, 0)
            self._select(0, function)
            self._host = function
        elif self.function is not function:
            self._select(0, function)
        self.frame = 0

    def host_words(self, function: FunctionRecord) -> tuple[memoryview, memoryview]:
        """What :meth:`begin` and :meth:`publish` write for a function of the host: its frame record, and the
        words of STATE from ``pc`` to ``module``. Machine code that writes them by itself makes the host's
        frame; code that looks at it later must :meth:`adopt`."""
        self.begin(function)
        self.publish(0)
        self._host = None
        frame, state = self.frames[:FRAME_WORDS].tobytes(), self.state[STATE_ENTRY].tobytes()
        return memoryview(frame).cast("q"), memoryview(state).cast("q")

    @property
    def host_registers(self) -> Window:
        """Those of the host's frame, where machine code has made it."""
        key = (self.frames[_FRAME.values], self.frames[_FRAME.refs])
        return self._windows.get(key) or self._make_window(key)

    @property
    def host_values(self) -> memoryview:
        """The value slots of the host's frame, the outermost one, whichever frame is current."""
        return self._memory.i32[_VALUES_AT >> 2 : _VALUES_END >> 2]

    def push(self, function: FunctionRecord, return_pc: int, results: int) -> None:
        """Enters a function: a frame of zero registers after the current one, which becomes current.

        ``return_pc`` is where the caller goes on, ``results`` the word index of its (tag, destination) list.
        RESOURCE_EXHAUSTED when the stack is full; nothing has changed then.
        """
        frame, frames = self.frame, self.frames
        values, refs = frames[frame + _FRAME.values_end], frames[frame + _FRAME.refs_end]
        base = self._memory.address
        if (
            values + 4 * function.value_count > base + _VALUES_END
            or refs + 8 * function.ref_count > base + _SIZE
            or frame + FRAME_WORDS >= len(frames)
        ):
            raise ResourceExhaustedError(
                f"stack overflow: {frame // FRAME_WORDS} nested calls (the limit on recursion is "
                f"{self.table.bounds.frames}, less where functions have many registers)"
            )
        frames[frame + _FRAME.pc] = self.code_address + 4 * return_pc
        self._write_frame(frame + FRAME_WORDS, function, values, refs, self.code_address + 4 * results)
        self._select(frame + FRAME_WORDS, function)
        self.i32[: function.value_count] = function.zero_values
        self.refs[: function.ref_count] = function.null_refs
        self.frame = frame + FRAME_WORDS

    def _write_frame(
        self, frame: int, function: FunctionRecord, values: int, refs: int, results: int
    ) -> None:
        frames = self.frames
        frames[frame + _FRAME.function] = function.address
        frames[frame + _FRAME.values] = values
        frames[frame + _FRAME.refs] = refs
        frames[frame + _FRAME.values_end] = values + 4 * function.value_count
        frames[frame + _FRAME.refs_end] = refs + 8 * function.ref_count
        frames[frame + _FRAME.results] = results

    def caller_results(self) -> tuple[memoryview, int, Window]:
        """Returns the caller's code, which lists destinations, and its registers."""
        frames, frame = self.frames, self.frame - FRAME_WORDS
        caller = self.functions[frames[frame + _FRAME.function]]
        key = (frames[frame + _FRAME.values], frames[frame + _FRAME.refs])
        at = (frames[self.frame + _FRAME.results] - caller.code_address) >> 2
        return caller.code, at, self._windows.get(key) or self._make_window(key)

    def pop(self) -> int:
        """Leaves the current frame, dropping the references in its registers; the caller's becomes current.
        Returns where the caller goes on."""
        handles = self.refs[: self.function.ref_count].tolist()
        if any(handles):
            self.table.owed += handles
            self.refs[: self.function.ref_count] = self.function.null_refs
            self.table.release_owed()
        frame = self.frame - FRAME_WORDS
        self._select(frame, self.functions[self.frames[frame + _FRAME.function]])
        self.frame = frame
        return (self.frames[frame + _FRAME.pc] - self.code_address) >> 2

    def _select(self, frame: int, function: FunctionRecord) -> None:
        """Shows a frame's registers and code; the caller makes it current."""
        key = (self.frames[frame + _FRAME.values], self.frames[frame + _FRAME.refs])
        window = self._windows.get(key) or self._make_window(key)
        self.i32, self.i64, self.f32, self.f64, self.refs = window
        self.function = function
        self.code = function.code
        self.code_address = function.code_address
        self.module = function.module

    def _make_window(self, key: tuple[int, int]) -> Window:
        memory = self._memory
        low, high = (key[0] - memory.address) >> 2, _VALUES_END >> 2
        window = (
            memory.i32[low:high],
            memory.i64[low >> 1 : high >> 1],
            memory.f32[low:high],
            memory.f64[low >> 1 : high >> 1],
            memory.i64[(key[1] - memory.address) >> 3 : _SIZE >> 3],
        )
        if len(self._windows) < _CACHED_WINDOWS:
            self._windows[key] = window
        return window

    def revive(self) -> bool:
        """Whether ended slow calls were renewed. Python ends a generator that it enters where its stack is
        full. They work again."""
        if self.slow_steps is None or self.slow_steps.gi_frame is not None:
            return False
        self.attach_slow_call(self)
        return True

    def reset(self) -> None:
        """Forgets an ended call's waits and used time. Machine code was to go on with them."""
        self.pending = self.completion = self.failure[0] = None
        self.state[STATE_WORDS.resume] = 0
        if self.state[STATE_WORDS.fuel] <= 0:
            self.fill_fuel()

    def release_frames(self) -> None:
        """Drops every reference in the registers of every frame: the call is over. The next one finds fuel,
        also where Ctrl-C came before this one had got more: machine code looks for the moment when it is used
        up."""
        self.reset()
        if self.state[STATE_WORDS.released]:  # Ctrl-C came before they were freed
            self.table.drain(self.state)
        count = (self.frames[self.frame + _FRAME.refs_end] - self._memory.address - _REFS_AT) >> 3
        if count:
            refs = self._memory.i64[_REFS_AT >> 3 : (_REFS_AT >> 3) + count]
            handles, nulls = refs.tolist(), memoryview(bytes(8 * count)).cast("q")
            self.table.owed += handles
            refs[:] = nulls
        self.frame = 0
        if self.table.owed:
            self.table.release_owed()

    def locations(self, pc: int) -> Iterator[tuple[FunctionRecord, int]]:
        """Lists (function, word index) of ``pc`` and its callers, innermost first; the host's frame is left
        out."""
        word = pc
        for frame in range(self.frame, 0, -FRAME_WORDS):
            yield self.functions[self.frames[frame + _FRAME.function]], word
            if frame == FRAME_WORDS:
                return
            caller = self.functions[self.frames[frame - FRAME_WORDS + _FRAME.function]]
            word = ((self.frames[frame - FRAME_WORDS + _FRAME.pc] - caller.code_address) >> 2) - 1

    def registers_of(self, frame: int) -> Window:
        """Views of the registers of a frame, which need not be the current one."""
        key = (self.frames[frame + _FRAME.values], self.frames[frame + _FRAME.refs])
        return self._windows.get(key) or self._make_window(key)

    def note(self, pc: int) -> None:
        """Notes where the call is, for another thread that wants to know."""
        if self.seen is not None:
            self.seen = tuple(self.locations(pc))

    def refuel(self) -> None:
        """Lets machine code run again; not for long in a call that must not hold up others. CANCELLED if the
        table is halted."""
        self.require_running()
        self.fill_fuel()

    def require_running(self) -> None:
        """CANCELLED if the table is halted; what :func:`require_going_on` raises."""
        require_going_on()
        if self.table.is_halted():
            raise CancelledError("the work was interrupted, or another thread's part of it failed")

    def fill_fuel(self) -> None:
        """As :meth:`refuel`, halted or not."""
        self.state[STATE_WORDS.fuel] = min(FUEL, self.state[STATE_WORDS.grant])
        self.state[STATE_WORDS.looked] = 0
        self.state[STATE_WORDS.time] = PROMPT_TIME if self.state[STATE_WORDS.prompt] == PROMPT else TIME

    def limit_time(self, most: int) -> None:
        """Has Python look in earlier than usual."""
        self.state[STATE_WORDS.time] = min(self.state[STATE_WORDS.time], most)

    def spend_time(self, begun: int) -> bool:
        """Counts what Python has taken since a time in nanoseconds; whether none is left."""
        left = int(self.state[STATE_WORDS.time]) - (time.monotonic_ns() - begun)
        self.state[STATE_WORDS.time] = left
        return left <= 0

    # -- machine code ----------------------------------------------------------------------------------

    def connect(self, handle_pool: ObjectPool) -> None:
        """Shows machine code with what it makes objects."""
        self.state[STATE_WORDS.handle_pool] = handle_pool.record
        self.state[STATE_WORDS.sweep] = handle_pool.sweep
        self.state[STATE_WORDS.new_list] = handle_pool.new_list

    def publish(self, pc: int) -> None:
        """Writes the state block for machine code to go on at ``pc``."""
        state, frames, frame = self.state, self.frames, self.frame
        state[STATE_WORDS.pc] = self.code_address + 4 * pc
        state[STATE_WORDS.values] = frames[frame + _FRAME.values]
        state[STATE_WORDS.refs] = frames[frame + _FRAME.refs]
        state[STATE_WORDS.frame] = self.frames_address + 8 * frame
        state[STATE_WORDS.module] = self.module.address

    def adopt(self) -> int:
        """Takes over where machine code left: selects its frame, frees what it released, returns the pc."""
        state = self.state
        frame = (state[STATE_WORDS.frame] - self.frames_address) >> 3
        if frame != self.frame or self.frames[frame + _FRAME.function] != self.function.address:
            self._select(frame, self.functions[self.frames[frame + _FRAME.function]])
            self.frame = frame
        if state[STATE_WORDS.released]:
            self.table.drain(state)
        return (state[STATE_WORDS.pc] - self.code_address) >> 2
