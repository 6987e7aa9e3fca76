"""The CUDA driver of tests as a GPU that has turns, as threads do (:mod:`tests.fuzz.scheduler`).

What is submitted is done piece by piece, when the GPU has the turn, of any stream that need not wait. Each
call of the driver is a point where threads lose their turn: the driver lets others run meanwhile. Pinned
memory is read and written when a copy is done, not when it is submitted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np

from jitree.api.calls.native import RECIPE as CALLS
from jitree.codegen import image
from jitree.codegen.image import Recipe
from jitree.cuda import allocator, ptx, timings
from jitree.cuda.stream_share import RECIPE as STREAMS
from jitree.dispatch.fast import LOOP
from jitree.hal.local import executor
from jitree.modules.hal.native import RECIPE as HAL
from tests.cuda import fake_native
from tests.cuda.fake_call import Fault, driver_call
from tests.cuda.fake_objects import FakeStream, Work
from tests.cuda.fake_results import CUresult
from tests.fuzz import primitives, scheduler
from tests.fuzz.drivers import FailingDriver

_OK: Final = CUresult.CUDA_SUCCESS
_ASKS_AGAIN: Final = 1 / 2
"""How often machine code that asks for a stream finds a piece more done; it leaves waiting to Python else."""
_MEMORY: Final = ("cuMemAlloc", "cuMemHostAlloc")
"""Calls that the schedule may have refused."""
_REGION: Final = 1 << 14
"""Bytes of regions, so that memory runs out in a case."""


class Pace(NamedTuple):
    """How the GPU of a case works, and which call of the driver fails."""

    seconds: float
    """That some pieces of its work take."""
    nth: int = 0
    """The call that fails, from the first turn on; 0: none."""
    result: CUresult = CUresult.CUDA_SUCCESS


class TurnDriver(FailingDriver):
    """Works in turn. Outside of its case it works at once."""

    def __init__(self, turns: scheduler.Scheduler, pace: Pace) -> None:
        super().__init__(devices=2)
        self.turns, self.pace = turns, pace
        self._code = _MachineCode(self)
        fake_native.serve(self._code)
        self.machine_code = self._code.machine_code
        self._is_closed = self._is_asleep = False
        self._lost_ordinal: int | None = None
        """Of the device that is lost by a call that fails: what its work reads and writes has no owner."""
        self._left: list[FakeStream] = []
        """Destroyed streams, whose work is done all the same."""
        self.worker = primitives.TurnThread(target=self._work, name="the GPU", daemon=True)
        self.worker.start()

    def begin(self) -> None:
        """Calls are counted from now on."""
        self.asked, self.nth, self.result = 0, self.pace.nth, self.pace.result

    def close(self) -> None:
        """Ends the thread that works."""
        self._is_closed = True
        self.worker.join()

    # -- work ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            self.turns.wait(lambda: self._is_closed or self._ready(), inf, "work")
            if self._is_closed:
                return
            if self.pace.seconds and self.turns.chance.random() < 0.3:
                self._is_asleep = True
                self.turns.sleep(self.pace.seconds)
                self._is_asleep = False
            self.advance()

    def _ready(self) -> list[FakeStream]:
        """Streams whose first piece of work need not wait."""
        streams = (*self.streams.values(), *self._left)
        return [stream for stream in streams if stream.pending and not _is_blocked(stream.pending[0])]

    def advance(self) -> bool:
        """Does a piece. Whether there was one."""
        ready = self._ready()
        if not ready:
            return False
        stream = ready[self.turns.chance.randrange(len(ready))] if len(ready) > 1 else ready[0]
        work = stream.pending.pop(0)
        if self.lost is None:
            try:
                work()
            except Fault as fault:
                if stream.ordinal is None or stream.ordinal != self._lost_ordinal:
                    self.lost = fault.result
        if self.lost is not None:
            self._finish_events()
        self._left = [stream for stream in self._left if stream.pending]
        return True

    @property
    def _is_live(self) -> bool:
        return scheduler.active is self.turns and not self.turns.is_over

    def enqueue(self, stream: int, work: Work) -> None:
        self.streams[int(stream)].pending.append(work)
        if not self._is_live:
            while self.advance():
                pass

    def _wait(self, is_done: Callable[[], object], what: str) -> Any:
        if self._is_live:
            self.turns.wait(lambda: self.lost is not None or is_done(), inf, what)
        return (self.lost or _OK,)

    # -- the driver ----------------------------------------------------------------------------------------

    def record(self, name: str, arguments: tuple[Any, ...]) -> None:
        if self._is_live and not self._code.is_calling:
            self.turns.point(name)
        super().record(name, arguments)
        if (
            name == self.failed
            and self.asked == self.nth
            and self.result == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        ):
            self._lost_ordinal = self.current()
        if name in _MEMORY and self._is_live and self.turns.refuses():
            self.fail_next(name, CUresult.CUDA_ERROR_OUT_OF_MEMORY)

    @driver_call
    def cuStreamSynchronize(self, stream: int) -> Any:
        done: list[None] = []
        if self.streams[int(stream)].pending:
            self.enqueue(stream, lambda: done.append(None))
            return self._wait(lambda: done, "cuStreamSynchronize")
        return (self.lost or _OK,)

    @driver_call
    def cuEventSynchronize(self, event: int) -> Any:
        return self._wait(self.events[int(event)].reached.is_set, "cuEventSynchronize")

    @driver_call
    def cuStreamQuery(self, stream: int) -> Any:
        target = self.streams[int(stream)]
        if target.pending and self._code.is_calling:
            if self._is_asleep or self.turns.chance.random() >= _ASKS_AGAIN:
                return (CUresult.CUDA_ERROR_INVALID_VALUE,)  # it asks no more
            self.advance()
        return (CUresult.CUDA_ERROR_NOT_READY if target.pending else self.lost or _OK,)

    @driver_call
    def cuStreamDestroy(self, stream: int) -> Any:
        target = self.streams.pop(int(stream))
        if target.pending:
            self._left.append(target)
        return (_OK,)

    @driver_call
    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        data = None if self._is_pinned(source) else np.frombuffer(ctypes.string_at(source, size), np.uint8)

        def copy() -> None:
            self.bytes_at(target, size)[:] = self.bytes_at(source, size) if data is None else data

        self.enqueue(stream, copy)
        return (_OK,)

    @driver_call
    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            ctypes.memmove(target, self.bytes_at(source, size).ctypes.data, size)

        self.enqueue(stream, copy)
        return (_OK,) if self._is_pinned(target) else self.cuStreamSynchronize(stream)

    def _is_pinned(self, address: int) -> bool:
        return any(
            memory.ordinal is None and memory.address <= address < memory.address + memory.size
            for memory in self.allocations.values()
        )


def _is_blocked(work: Work) -> bool:
    blocked: Callable[[], bool] | None = getattr(work, "blocked", None)
    return blocked is not None and blocked()


class _MachineCode:
    """The driver for machine code, whose calls are no points: what machine code does is one step."""

    def __init__(self, driver: TurnDriver) -> None:
        self._driver = driver
        self.machine_code: dict[str, int] = {}
        self.is_calling = False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._driver, name)

        def call(*arguments: Any) -> Any:
            self.is_calling = True
            try:
                return function(*arguments)
            finally:
                self.is_calling = False

        return call


@cache
def prepare() -> bool:
    """Has all there that GPUs of a process need once: machine code, and kernels that the driver compiles."""
    for recipe in (HAL, LOOP, CALLS, STREAMS):
        image.wait(recipe)
    executor.require_native_executor()
    compiled: dict[bytes, list[bytes]] = {}

    def load(recipe: Recipe, key: bytes) -> list[bytes] | None:
        return compiled.get(key)

    def store(recipe: Recipe, key: bytes, cubins: Any) -> None:
        compiled[key] = list(cubins)

    ptx.load_cubins, ptx.store_cubins = load, store
    timings.tracer = lambda: None  # type: ignore[assignment]  # it knows real GPUs only
    allocator._DEVICE_REGION = allocator._PINNED_REGION = _REGION  # type: ignore[misc]
    return True
