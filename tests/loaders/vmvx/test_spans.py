"""Running spans of compiled VMVX kernels, with made-up kernels: in Python and as machine code."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable

import pytest

from jitree.codegen import image
from jitree.codegen.record import layout_of, place_of, size_of, words_of
from jitree.hal.command_layout import KernelDispatch, Workgroup
from jitree.hal.enums import MemoryAccess
from jitree.loaders.vmvx import spans as vmvx_spans
from jitree.loaders.vmvx import spans as vmvx_workgroups
from jitree.loaders.vmvx.kernels import (
    MAXIMUM_BINDINGS,
    SCRATCH_MARK,
    SPANS,
    WORKGROUP_DONE,
    WORKGROUP_LEFT,
    WORKGROUP_LITTERED,
    WORKGROUP_REFUSED,
    Contexts,
    KernelEnvironment,
    WorkerContextRecord,
)
from jitree.loaders.vmvx.spans import run_span, workgroups
from jitree.regs.layout import ENTRY, SCRATCH, STATE, Entry, MachineState, Packed, Scratch

Steps = list[tuple[int, int]]
"""Why a run of workgroups stops (WORKGROUP_*), and what ``reached`` is then."""
Run = Callable[[int, int, int], int]
_LET_GO = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
FAILING = 13
"""The workgroup that the VM cannot finish."""


def in_python(environment: int, dispatch: int, group: int) -> int:
    return run_span(KernelEnvironment(environment), KernelDispatch(dispatch), Workgroup(group))


def as_machine_code(environment: int, dispatch: int, group: int) -> int:
    code = image.wait(SPANS).addresses["run_span"]
    result: int = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)(code)(environment, dispatch, group)
    return result


class Memory:
    """An environment with two worker contexts, a dispatch of 5 x 3 x 2 workgroups, and what is called."""

    def __init__(self, steps: Steps) -> None:
        self._kept: list[object] = []
        self.events: list[object] = []
        self.steps = dict((reached - (why == WORKGROUP_LITTERED), why) for why, reached in steps)
        """Why a run stops at a workgroup, by its number."""
        self.environment = KernelEnvironment(self._record(size_of(KernelEnvironment)))
        self.dispatch = KernelDispatch(self._record(size_of(KernelDispatch)))
        self.group = Workgroup(self._record(size_of(Workgroup)))
        self.dispatch.count_x, self.dispatch.count_y, self.dispatch.count_z = 5, 3, 2
        self.dispatch.parts = 1
        self.dispatch.binding_count, self.dispatch.constant_count, self.dispatch.constants = 2, 3, 4096
        self.dispatch.addresses = self._array(array("q", (64, 128)))
        self.dispatch.lengths = self._array(array("q", (6, 7)))
        self.dispatch.accesses = self._array(array("q", (MemoryAccess.ALL, MemoryAccess.READ)))
        self.group.local_memory, self.group.local_size, self.group.processor = 8192, 100, 3
        self.contexts = [self._context() for _ in range(2)]
        table = array("q", (2, 0, 0, 0, *(self._place(context) for context in self.contexts)))
        assert layout_of(Contexts)["first"] == 32
        self.environment.contexts = Contexts(self._array(table))
        self.environment.contexts.look = self._callback(self._look, ctypes.c_int32, 3)
        for name, function in (("run", self._run), ("slow_path", self._slow_path)):
            setattr(self.environment, name, self._callback(function, ctypes.c_int32, 3))
        self.environment.finish = self._callback(self._finish, ctypes.c_int32, 4)
        self.environment.workgroup = self._callback(self._row, ctypes.c_int64, 7)
        if any(why == WORKGROUP_REFUSED for why, _ in steps):
            self.environment.refs = 1

    def run(self, run: Run, first: int, last: int) -> list[object]:
        self.group.first, self.group.last = first, last
        result = run(*map(self._place, (self.environment, self.dispatch, self.group)))
        return [result, *self.events, *(self._busy(context) for context in self.contexts)]

    def _context(self) -> WorkerContextRecord:
        context = WorkerContextRecord(self._record(size_of(WorkerContextRecord) + 8 * MAXIMUM_BINDINGS))
        context.state = MachineState(self._record(STATE.size))
        context.state.fuel = 1 << 20
        context.state.scratch = Scratch(self._record(SCRATCH.size))
        context.local, context.constants, context.bindings = (self._entry() for _ in range(3))
        bindings = (ctypes.c_int64 * 2).from_address(
            self._place(context) + layout_of(WorkerContextRecord)["binding"]
        )
        bindings[:] = [self._place(self._entry()) for _ in range(2)]
        return context

    def _entry(self) -> Entry:
        return Entry(self._record(ENTRY.size))

    def _row(self, dispatch: int, place: int, fuel: int, x: int, y: int, z: int, end: int) -> int:
        """As the entry of a kernel (`build.py`)."""
        context = WorkerContextRecord(place)
        left = self._workgroup(context, fuel, x, y, z)
        while left > 1 and x + 1 < end and not context.state.released:
            x += 1
            left = self._workgroup(context, left - 1, x, y, z)
        context.reached = x + (left > 0)
        return left

    def _workgroup(self, context: WorkerContextRecord, fuel: int, x: int, y: int, z: int) -> int:
        place = self._place(context)
        bindings = (ctypes.c_int64 * 2).from_address(place + layout_of(WorkerContextRecord)["binding"])
        aimed = [context.local, context.constants, *map(Entry, bindings)]
        aims = [(entry.address, entry.length, entry.access) for entry in aimed]
        count_x, count_y, parts = self.dispatch.count_x, self.dispatch.count_y, self.dispatch.parts
        number = (x + count_x * (y + count_y * z)) * parts + context.state.scratch.part
        event = "workgroup", self._number(context), number, fuel, context.bindings.length, aims
        self.events.append(event)
        why = self.steps.get(number)
        if why == WORKGROUP_LITTERED:
            state, ours, other = context.state, self._entry(), self._entry()
            ours.usage, ours.link, state.scratch.taken, state.released = SCRATCH_MARK, other, 1, ours
            context.scratch = 777
            self._kept.append(state)
        return 0 if why == WORKGROUP_LEFT else fuel + 2

    @property
    def numbers(self) -> list[int]:
        """Of the workgroups that were run."""
        return [event[2] for event in self.events if isinstance(event, tuple) and event[0] == "workgroup"]

    def _number(self, context: WorkerContextRecord) -> int:
        return self.contexts.index(context)

    def _finish(self, environment: int, dispatch: int, group: int, place: int) -> int:
        x, y, z = self.group.x, self.group.y, self.group.z
        context = WorkerContextRecord(place)
        self.events.append(("finish", x, y, z, self._number(context), context.state.scratch.next))
        return 9 if context.reached == FAILING else 0

    def _run(self, environment: int, dispatch: int, group: int) -> int:
        self.events.append(("run", self.group.first, self.group.last, *map(self._busy, self.contexts)))
        return -3

    def _look(self, environment: int, dispatch: int, group: int) -> int:
        self.events.append(("look", *map(self._busy, self.contexts)))
        return 6

    def _slow_path(self, environment: int, dispatch: int, group: int) -> int:
        self.events.append(("slow_path", self.group.first))
        return 4

    @staticmethod
    def _busy(context: WorkerContextRecord) -> int:
        return ctypes.c_int64.from_address(Memory._place(context)).value

    @staticmethod
    def _place(record: object) -> int:
        place: int = record._place_of_this_record  # type: ignore[attr-defined]
        return place

    def _record(self, size: int) -> int:
        return self._array(array("q", bytes(size)))

    def _array(self, memory: array[int]) -> int:
        self._kept.append(memory)
        return memory.buffer_info()[0]

    def _callback(self, function: Callable[..., int], result: type, count: int) -> int:
        made = ctypes.CFUNCTYPE(result, *[ctypes.c_int64] * count)(function)
        self._kept.append(made)
        return ctypes.cast(made, ctypes.c_void_p).value or 0


DONE, LEFT, LITTERED, REFUSED = WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED
SPANS_RUN: list[tuple[int, int, Steps]] = [
    (0, 30, [(DONE, 30)]),
    (7, 7, []),
    (2, 30, [(LITTERED, 3), (LITTERED, 9), (DONE, 30)]),
    (2, 9, [(LITTERED, 9)]),
    (0, 30, [(LEFT, 12), (LITTERED, 20), (LEFT, 29)]),
    (0, 30, [(LEFT, FAILING)]),
    (0, 30, [(LEFT, 1), (LEFT, 2), (LEFT, 7), (LEFT, 8)]),
    (0, 9, [(LEFT, 1), (LEFT, 2), (LEFT, 7), (LEFT, 8)]),
    (5, 30, [(REFUSED, 5)]),
]


@pytest.mark.parametrize(("first", "last", "steps"), SPANS_RUN)
@pytest.mark.parametrize("busy", [(), (1,), (0, 1)])
def test_machine_code_does_what_python_does(
    first: int, last: int, steps: Steps, busy: tuple[int, ...]
) -> None:
    outcomes = []
    for run in (in_python, as_machine_code):
        memory = Memory(steps)
        for number in busy:
            ctypes.c_int64.from_address(memory._place(memory.contexts[number])).value = 1
        outcomes.append(memory.run(run, first, last))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][-2:] == [int(0 in busy), int(1 in busy)], "contexts are given back"
    if len(busy) == 2 and first < last:
        assert outcomes[0][:2] == [4, ("slow_path", first)]


def test_the_fifth_workgroup_that_leaves_is_the_vms() -> None:
    memory = Memory([(LEFT, number) for number in (1, 2, 7, 8)])
    assert memory.run(in_python, 0, 30)[0] == -3
    assert memory.events[-1] == ("run", 9, 30, 0, 0)


@pytest.mark.parametrize(("step", "expected"), [
    ((DONE, 30), (DONE, 30)), ((LEFT, 12), (LEFT, 12)), ((LITTERED, 13), (LITTERED, 13)),
])  # fmt: skip
def test_workgroups_are_counted(step: tuple[int, int], expected: tuple[int, int]) -> None:
    """The loop around a kernel, in Python: ids with x fastest, and why it ends."""
    memory = Memory([step])
    context = memory.contexts[0]
    why = workgroups(memory.environment, memory.dispatch, context, 7, 30)
    assert (why, context.reached) == expected
    assert memory.numbers == list(range(7, context.reached + (why == LEFT)))
    assert context.state.fuel == (1 << 20) + (23 if why == DONE else 0), "kept where all is done"


@pytest.mark.parametrize("stack", ["frames", "values", "refs"])
@pytest.mark.parametrize("room", [7, 8])
def test_a_kernel_without_room_does_not_begin(stack: str, room: int) -> None:
    memory = Memory([])
    context = memory.contexts[0]
    setattr(memory.environment, stack, 8)
    setattr(context.state, f"{stack}_limit", room)
    why = workgroups(memory.environment, memory.dispatch, context, 8, 30)
    assert (why, context.reached) == ((DONE, 30) if room == 8 else (REFUSED, 8))
    assert memory.numbers == list(range(8, context.reached))


@pytest.mark.parametrize(("more", "given"), [(5, [5, 6]), (1, [1, 2]), (0, []), (-1, [])])
def test_fuel_that_is_used_up_is_asked_for(
    more: int, given: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory([])
    context = memory.contexts[0]
    context.state.fuel = 1
    monkeypatch.setattr(vmvx_workgroups, "refuel_function", lambda state: more)
    why = workgroups(memory.environment, memory.dispatch, context, 3, 5)
    assert (why, context.reached) == ((DONE, 5) if given else (LEFT, 3))
    assert [event[3] for event in memory.events if isinstance(event, tuple)] == given


def test_parts_of_workgroups_are_counted() -> None:
    memory = Memory([])
    memory.dispatch.parts = 4
    assert workgroups(memory.environment, memory.dispatch, memory.contexts[0], 19, 120) == DONE
    assert memory.numbers == list(range(19, 120))


@pytest.mark.parametrize("run", [in_python, as_machine_code])
def test_parts_that_leave_are_never_the_vms(run: Run) -> None:
    """Others of their workgroups have run."""
    memory = Memory([(LEFT, number) for number in range(8)])
    memory.dispatch.parts = 3
    assert memory.run(run, 0, 30)[0] == 0
    finished = [event[1:4] for event in memory.events if isinstance(event, tuple) and event[0] == "finish"]
    assert finished == [(number // 3, 0, 0) for number in range(8)]


@pytest.mark.parametrize("run", [in_python, as_machine_code])
def test_spans_look_at_memory_when_it_is_due(run: Run) -> None:
    """The context is given back before. The first interval begins with the first span."""
    memory = Memory([(DONE, 30)] * 4)
    contexts = memory.environment.contexts
    looks = []
    for due, interval in ((0, 0), (0, 1 << 60), (1, 1 << 60), (1 << 62, 1 << 60)):
        memory.events.clear()
        table = (ctypes.c_int64 * 4).from_address(memory._place(contexts))
        table[int(words_of(Contexts).due)], table[words_of(Contexts).interval] = due, interval
        result = memory.run(run, 0, 30)[0]
        looks.append((result, ("look", 0, 0) in memory.events, table[int(words_of(Contexts).due)] > 1 << 60))
    assert looks == [(0, False, False), (0, False, True), (6, True, True), (0, False, True)]


def test_a_span_that_fails_does_not_look() -> None:
    memory = Memory([(LEFT, FAILING)])
    table = (ctypes.c_int64 * 4).from_address(memory._place(memory.environment.contexts))
    table[int(words_of(Contexts).due)], table[words_of(Contexts).interval] = 1, 1
    assert memory.run(as_machine_code, 0, 30)[0] == 9 and ("look", 0, 0) not in memory.events


def test_contexts_let_go_of_copies_where_no_thread_has_them() -> None:
    code = image.wait(SPANS).addresses["let_go"]
    for let_go in (lambda context: vmvx_spans.let_go(WorkerContextRecord(context)), _LET_GO(code)):
        memory = Memory([])
        context = memory.contexts[0]
        place = memory._place(context)
        context.state.scratch.packed = Packed(4096)
        busy = ctypes.c_int64.from_address(place)
        busy.value = 1
        assert (let_go(place), busy.value, place_of(context.state.scratch.packed)) == (0, 1, 4096)
        busy.value = 0
        assert (let_go(place), busy.value, place_of(context.state.scratch.packed)) == (1, 0, 0)


def test_the_image_does_not_depend_on_what_was_compiled_before() -> None:
    from jitree.loaders.vmvx.spans import generate

    first, second = generate(), generate()
    assert [unit.texts for unit in first.units] == [unit.texts for unit in second.units]
