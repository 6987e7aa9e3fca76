"""What threads of :mod:`tests.fuzz.turns` do on GPUs: calls of a session, and work of two devices' queues.

The GPUs are those of :mod:`tests.fuzz.turn_driver`. In some cases a call of the driver fails: any call may
end with a status from then on, and everything is given back all the same.
"""

from __future__ import annotations

import gc
from math import inf
from typing import Any, Final

import numpy as np

import jitree
from jitree.cuda.device import CudaDevice
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError, again
from jitree.hal.buffer import Buffer
from jitree.hal.enums import MemoryType
from jitree.hal.fence import Fence
from tests.cuda.ordering import fill
from tests.cuda.programs import LENDING, LENDING_ASYNC, POSITIONS, STATEFUL, STATELESS, STORAGE
from tests.fuzz.drivers import is_given_back
from tests.fuzz.turn_driver import Pace, TurnDriver
from tests.fuzz.turn_threads import Shared, Thread

_X: Final = np.arange(8, dtype=np.float32)
_ROWS: Final = np.arange(64, dtype=np.float32).reshape(8, 8)
_PINNED: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_BYTES: Final = 64
_MOMENT: Final = 2e-4
"""Seconds that pass while a thread lets others run: few times until it has waited for a device in vain."""


class Gpus(Shared):
    """A session on a GPU, another GPU, and an array of the session that each thread may donate."""

    def open(self) -> None:
        self.driver = TurnDriver(self.turns, self.case.pace or Pace(0.0))
        self.before = self.driver.taken()
        self.devices = [CudaDevice(self.driver, ordinal) for ordinal in range(2)]
        self.session = jitree.Session(device=self.devices[0], tier=self.case.tier)
        lending = LENDING_ASYNC if self.case.schedule.seed % 2 else LENDING
        self.session.load(STATELESS, STATEFUL, STORAGE, POSITIONS, lending)
        self.array: Any = self.session.to_device(_X)
        self.driver.begin()
        self.turns.moment = _MOMENT

    def close(self) -> None:
        del self.array
        gc.collect()
        self.close_session()
        self._handles = self.session.context.table.live_count
        del self.session
        while self.devices:
            self.devices.pop(0).close()
        self.driver.close()
        for _ in range(2):  # what ends in the first one lets go of more
            gc.collect()

    def left(self) -> list[str]:
        found = [f"{self._handles} handles are left"] if self._handles else []
        if not is_given_back(self.driver, self.before):
            after = f", after {self.driver.failed} failed" if self.driver.failed else ""
            found.append(f"{self.driver.taken()} is left with the driver, {self.before} before{after}")
        return found

    def may_end(self, error: BaseException, thread: int) -> bool:
        if super().may_end(error, thread):
            return True
        if self.driver.failed and isinstance(error, StatusError) and not self.is_again:
            self.is_exact = False
            return True
        return False

    @property
    def has_failed(self) -> bool:
        is_lost = any(device.stream.api.lost is not None for device in self.devices)
        return super().has_failed or bool(self.driver.failed and not is_lost)


class GpuThread(Thread):
    """Calls functions of the GPU's programs, and gives its queues work."""

    kind = Gpus
    shared: Gpus

    # -- calls ---------------------------------------------------------------------------------------------

    def scale(self) -> None:
        result = self.limited(self.call("module.scale"), _X, _X)
        if result is not None:
            self.same(result[0], 2 * _X)
            self.same(result[1], 3 * _X)

    def loop(self) -> None:
        """The host reads a condition in every step."""
        steps = self.chance.randrange(3)
        result = self.limited(self.call("module.repeat"), _X, np.int32(steps))
        if result is not None:
            self.same(result, _X / 2**steps)

    def shift(self) -> None:
        result = self.limited(self.call("module.shift"), _X)
        if result is not None:
            self.same(result, _X + np.arange(1, 9))

    def accumulate(self) -> None:
        self.shared.added += 1
        self.count([self.call("stateful.accumulate")(_X)])

    def storage(self) -> None:
        place = self.shared.session.to_device(np.zeros(8, np.float32))
        self.same(self.call("storage.double_into")(_X, out=place), 2 * _X)
        self.same(place, 2 * _X)

    def positions(self) -> None:
        row, value = self.chance.randrange(8), np.float32(self.chance.randrange(100))
        expected = _ROWS.copy()
        expected[row] = value
        rows = self.call("positions.put")(_ROWS, np.full((1, 8), value), np.int32(row))
        self.same(self.call("positions.get")(rows, np.int32(row)), expected[row : row + 1])
        self.same(rows, expected)

    def add(self) -> None:
        result = self.limited(self.call("lending.add"), _X, _X)
        if result is not None:
            self.same(result, 2 * _X)

    def submit(self) -> None:
        add = self.call("lending.add")
        first = self.submitted[-1] if self.submitted and self.chance.random() < 0.7 else (_X, _X)
        self.submitted.append((add.submit(first[0], _X), first[1] + _X))

    def assign(self) -> None:
        """Parts of an array that the device works with."""
        session = self.shared.session
        array = session.to_device(_X)
        sums = self.call("lending.add").submit(array, _X)
        array[2:4] = -1
        self.same(self.call("lending.add")(array, _X), _X + np.array([0, 1, -1, -1, 4, 5, 6, 7]))
        self.same(sums, 2 * _X)

    def donate_shared(self) -> None:
        """One of all threads has it; others are refused."""
        array = self.shared.array
        try:
            result = self.call("lending.subtract_from")(jitree.donate(array), _X)
        except FailedPreconditionError:
            return
        self.same(result, 0 * _X)
        self.shared.donated += 1

    def use_shared(self) -> None:
        array = self.shared.array
        try:
            result = self.call("lending.add")(array, _X)
        except FailedPreconditionError:
            return
        self.same(result, 2 * _X)

    def refused(self) -> None:
        try:
            self.call("lending.add")(_X, "text")
        except InvalidArgumentError:
            return
        self.tell("a wrong argument is taken")

    def begun(self, counts: bool) -> Any:
        self.shared.added += counts
        return (
            self.call("stateful.accumulate").async_(_X) if counts else self.call("lending.add").async_(_X, _X)
        )

    def look(self, result: Any) -> None:
        self.same(result, 2 * _X)

    def count(self, results: list[Any]) -> None:
        for result in results:
            total = np.asarray(result)
            if self.shared.is_exact:
                self.same(total, _X * total[1])
            self.shared.totals.append(float(total[1]))

    def forget(self) -> None:
        """Arrays and submitted work that only the garbage collector ends."""
        add = self.call("lending.add")
        circle: list[Any] = [add.submit(add.submit(_X, _X), _X)]
        circle.append(circle)
        del circle
        if self.chance.random() < 0.5:
            gc.collect()

    def session_of_its_own(self) -> None:
        device = self.shared.devices[self.chance.randrange(2)]
        with jitree.Session(device=device, tier=self.shared.case.tier) as session:
            add = session.load(LENDING_ASYNC).add
            self.same(add(add.submit(_X, _X), _X), 3 * _X)

    # -- queues --------------------------------------------------------------------------------------------

    def relay(self) -> None:
        """Devices that wait for each other, over memory that all see."""
        buffer, last, value = self._buffer(0, _PINNED), None, 0
        for value in range(1, self.chance.randint(2, 5)):
            last = self._filled(self.chance.randrange(2), buffer, last, value)
        self._ended(last)
        self.same(np.asarray(buffer.host_array()), [value] * _BYTES)

    def copies(self) -> None:
        """One device writes, another one reads."""
        source, target = self._buffer(0, _LOCAL), self._buffer(1, _LOCAL)
        written = self._filled(0, source, None, 7)
        second, done = self.shared.devices[1], Fence.create(self.shared.devices[1])
        second.queue_copy(-1, written, done, source, 0, target, 0, _BYTES)
        self._filled(0, source, done, 8)
        self.same(second.read_buffer(target, done), [7] * _BYTES)

    def deferred(self) -> None:
        """Work that waits for the host."""
        device, buffer = self.shared.devices[0], self._buffer(0, _LOCAL)
        start = Fence.create(device)
        first = self._filled(0, buffer, start, 3)
        last = self._filled(self.chance.randrange(2), self._buffer(0, _PINNED), first, 4)
        start.signal()
        self._ended(last)
        self.same(device.read_buffer(buffer, first), [3] * _BYTES)

    def called_back(self) -> None:
        """The completion thread says when the device is done. Half of those that are told wait for nothing
        else: a wait would tell them, too."""
        buffer, told = self._buffer(0, _LOCAL), list[object]()
        done = self._filled(0, buffer, None, 5)
        for semaphore, value in done.timepoints:
            semaphore.on_reached(value, lambda failure: told.append(failure))
        if self.chance.random() < 0.5:
            self._ended(done)
        self.shared.turns.wait(lambda: told, inf, "a callback")  # any time may pass before its thread's turn
        failure = told[0]
        if isinstance(failure, StatusError):
            raise again(failure)
        if told != [None]:
            self.tell(f"called back with {told}")

    def upload(self) -> None:
        """Memory of the host that is used again at once."""
        device, buffer = self.shared.devices[0], self._buffer(0, _LOCAL)
        data = np.full(_BYTES, self.chance.randrange(256), np.uint8)
        expected = data.copy()
        device.write_buffer(buffer, data)
        data[:] = 0
        self.same(device.read_buffer(buffer), expected)

    def _buffer(self, ordinal: int, memory_type: int) -> Buffer:
        return self.shared.devices[ordinal].device_allocator.allocate(memory_type, 0, _BYTES)

    def _filled(self, ordinal: int, buffer: Buffer, wait: Fence | None, value: int) -> Fence:
        device = self.shared.devices[ordinal]
        done = Fence.create(device)
        fill(device, buffer, wait, done, value)
        return done

    def _ended(self, fence: Fence | None) -> None:
        if fence is not None:
            fence.wait()


USUAL: Final = [
    *("scale", "loop", "shift", "accumulate", "storage", "positions", "add", "submit", "read", "assign",
      "donate_shared", "use_shared", "refused", "awaited", "forget", "accumulate", "submit", "relay",
      "copies", "deferred", "called_back", "upload", "relay") * 3,
    "trim", "cancel", "cancel", "close", "session_of_its_own",
]  # fmt: skip
CALLED_BACK: Final = ["called_back", "called_back", "called_back", "awaited", "deferred"]
"""Of threads that wait for callbacks, for which the system gives no thread."""
