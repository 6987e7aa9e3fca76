"""What threads of :mod:`tests.fuzz.turns` do on devices of the processor, with programs of ``tests/data``."""

from __future__ import annotations

import gc
from typing import Any, Final

import numpy as np

import jitree
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.hal.allocator import Allocator
from jitree.hal.enums import MemoryAccess, MemoryType
from jitree.hal.fence import Fence
from jitree.hal.objects import File
from tests.api.programs import ASYNCHRONOUS, OUTPUTS, STATE
from tests.fuzz.turn_threads import Shared, Thread

PROGRAMS: Final = (ASYNCHRONOUS, OUTPUTS, STATE)
_N: Final = np.arange(64, dtype=np.float32)
_X: Final = np.arange(4, dtype=np.float32)
_START: Final = np.array([1, -2, 3, 4], np.int32)
_LOCAL: Final = int(MemoryType.DEVICE_LOCAL | MemoryType.HOST_VISIBLE)
_LENGTHS: Final = (64, 1 << 20)
"""Bytes that an operation has written before a thread could come for it, and more."""


class Processor(Shared):
    """A session on the processor, and an array of it that each thread may donate."""

    def open(self) -> None:
        self.session = jitree.Session(self.case.device, tier=self.case.tier)
        used = [program for program in PROGRAMS if self.names & _USES[program.stem]]
        self.session.load(*used or PROGRAMS[:1])
        self.array: Any = self.session.to_device(_START)

    def close(self) -> None:
        self.array = None
        gc.collect()
        self.close_session()

    def left(self) -> list[str]:
        count = self.session.context.table.live_count
        return [f"{count} handles are left"] if count else []


class AskingFile(File):
    """Bytes that are made in memory which is asked for when they are read."""

    def __init__(self, allocator: Allocator, value: int) -> None:
        super().__init__(int(MemoryAccess.READ), "of one value")
        self._allocator, self._value = allocator, value

    @property
    def length(self) -> int:
        return max(_LENGTHS)

    def read_into(self, offset: int, target: memoryview) -> None:
        made = self._allocator.allocate(_LOCAL, 0, target.nbytes).host_array()
        made.fill(self._value)
        target[:] = made.data

    def write_from(self, source: memoryview, offset: int) -> None: ...


class ProcessorThread(Thread):
    """Calls functions of the processor's programs."""

    kind = Processor
    shared: Processor

    def increment(self) -> None:
        self.shared.tried += 1
        result = self.limited(self.call("state.increment"))
        if result is not None:
            self.counters.append(int(np.asarray(result)))

    def accumulate(self) -> None:
        """Variables that are tensors: a call waits between reading and storing them."""
        self.shared.added += 1
        total = np.asarray(self.call("state.accumulate")(_X))
        if self.shared.is_exact:
            self.same(total, _X * total[1])
        self.shared.totals.append(float(total[1]))

    def double(self) -> None:
        session = self.shared.session
        array = session.to_device(_START)
        given = jitree.donate(array) if self.chance.random() < 0.5 else array
        result = self.limited(self.call("outputs.double_first"), given, _START)
        if result is not None:
            self.same(result, 2 * _START)

    def donate_shared(self) -> None:
        """One of all threads has it; others are refused."""
        array = self.shared.array
        try:
            result = self.call("outputs.double_first")(jitree.donate(array), _START)
        except FailedPreconditionError:
            return
        self.same(result, 2 * _START)
        self.shared.donated += 1

    def use_shared(self) -> None:
        array = self.shared.array
        try:
            result = self.call("outputs.double_first")(array, _START)
        except FailedPreconditionError:
            return
        self.same(result, 2 * _START)

    def storage(self) -> None:
        place = self.shared.session.to_device(np.zeros(4, np.int32))
        sums, squares = self.call("outputs.one_of_two")(_START, out=place)
        self.same(sums, _START + _START)
        self.same(squares, _START * _START)
        self.same(place, _START * _START)

    def in_place(self) -> None:
        array = self.shared.session.to_device(_START)
        self.call("outputs.in_place")(array)
        self.same(array, _START + _START)

    def loop(self) -> None:
        result = self.limited(self.call("state.double_until"), np.float32(1), 1000.0)
        if result is not None:
            self.same(result[0], 1024)
            self.same(result[1], 10)

    def submit(self) -> None:
        add = self.call("asynchronous.add")
        first = self.submitted[-1] if self.submitted and self.chance.random() < 0.7 else (_N, _N)
        self.submitted.append((add.submit(first[0], _N), first[1] + _N))

    def add(self) -> None:
        result = self.limited(self.call("asynchronous.add"), _N, _N)
        if result is not None:
            self.same(result, 2 * _N)

    def wrong(self) -> None:
        try:
            self.call("state.positive")(np.int32(-3))
        except StatusError as error:
            if "positive" not in str(error):
                raise
        else:
            self.tell("a program's error is lost")

    def refused(self) -> None:
        try:
            self.call("asynchronous.add")(_N, "text")
        except InvalidArgumentError:
            return
        self.tell("a wrong argument is taken")

    def forget(self) -> None:
        """Arrays and submitted work that only the garbage collector ends."""
        add = self.call("asynchronous.add")
        circle: list[Any] = [add.submit(add.submit(_N, _N), _N)]
        circle.append(circle)
        del circle
        if self.chance.random() < 0.5:
            gc.collect()

    def session_of_its_own(self) -> None:
        with jitree.Session(self.shared.case.device, tier=self.shared.case.tier) as session:
            add = session.load(ASYNCHRONOUS).add
            self.same(add(add.submit(_N, _N), _N), 3 * _N)

    def reload(self) -> None:
        self.shared.session.reload(STATE)

    def asking(self) -> None:
        """Operations that ask for memory as they run, each after the one before; small ones run at once."""
        device, length = self.shared.session.device, self.chance.choice(_LENGTHS)
        buffer, last = device.device_allocator.allocate(_LOCAL, 0, length), None
        for value in range(1, self.chance.randint(2, 5)):
            done = Fence.create(device)
            file = AskingFile(device.device_allocator, value)
            device.queue_read(-1, last, done, file, 0, buffer, 0, length)
            last = done
        assert last is not None
        last.wait()
        self.same(buffer.host_array(), np.full(length, value, np.uint8))

    def begun(self, counts: bool) -> Any:
        self.shared.tried += counts
        return (
            self.call("state.increment").async_() if counts else self.call("asynchronous.add").async_(_N, _N)
        )

    def look(self, result: Any) -> None:
        self.same(result, 2 * _N)

    def count(self, results: list[Any]) -> None:
        numbers = [int(np.asarray(result)) for result in results]
        self.counters += sorted(numbers) if self.shared.may_overtake else numbers


USUAL: Final = [
    *("increment", "accumulate", "double", "donate_shared", "use_shared", "storage", "in_place", "loop",
      "submit", "read", "add", "wrong", "refused", "awaited", "forget", "accumulate", "submit") * 3,
    "trim", "cancel", "cancel", "close", "reload", "session_of_its_own",
]  # fmt: skip
ASKING: Final = ["asking", "asking", "submit", "awaited"]
"""Of threads whose operations are refused memory as they run."""
CROWDED: Final = ["accumulate"]
"""Of threads that meet at one turn: one that ends, one that waits for it, and one that comes then. They lose
many turns, and wait for a device."""
_USES: Final = {
    "state": {"increment", "accumulate", "loop", "wrong", "awaited", "reload"},
    "outputs": {"double", "donate_shared", "use_shared", "storage", "in_place"},
    "asynchronous": {"submit", "read", "add", "refused", "awaited", "forget"},
}
"""Steps that a program is for."""
