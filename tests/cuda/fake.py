"""A stand-in for the module ``cuda.bindings.driver`` that works on host memory and records every call.

Device addresses are real host addresses, so kernels can be Python functions over them. Streams run at once;
after :meth:`FakeDriver.hold` they keep what is submitted until :meth:`FakeDriver.release`, as a busy device
does. Every access is checked against the live allocations: a wrong address is an illegal address, which loses
the device as on a real one. Calls that need a context fail without one current on the thread.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.cuda import fake_results
from tests.cuda.fake_call import Fault, driver_call
from tests.cuda.fake_graphs import FakeGraphs, FakeModules
from tests.cuda.fake_objects import FakeEvent, FakeStream, Handle, Memory, Uuid, Work
from tests.cuda.fake_results import CUdevice_attribute, CUjit_option, CUpointer_attribute, CUresult

_POISONED = 1 << 20
"""Bytes of an allocation that hold something recognisable at first."""
_OK = CUresult.CUDA_SUCCESS
_LAZY_QUERIES = 3
Shape = tuple[int, int, int]
_EARLY_LAUNCH = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION"""


@dataclass(frozen=True)
class FakeKernel:
    """What a kernel does, whatever its PTX says."""

    parameters: int
    """How many it has."""
    run: Callable[[FakeDriver, list[int], tuple[int, int, int], tuple[int, int, int]], None]
    """Called with the driver, the parameters' words, grid and block."""


class FakeDriver(FakeModules, FakeGraphs):
    """The module; give it to ``CudaDriver`` or ``CudaDevice``."""

    CUresult = CUresult
    CUdevice_attribute = CUdevice_attribute
    CUpointer_attribute = CUpointer_attribute
    CUjit_option = CUjit_option

    def __init__(self, devices: int = 1, memory: int = 1 << 28, version: int = 12990) -> None:
        """``memory``: bytes of each device; ``version``: of CUDA, one that no driver has, so that nothing
        compiled here is taken for the real thing."""
        super().__init__()
        self.devices = devices
        self.memory = memory
        self.version = version
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failures: dict[str, list[CUresult]] = {}
        self.lost: CUresult | None = None
        self.allocations: dict[int, Memory] = {}
        self.streams: dict[int, FakeStream] = {1: FakeStream(), 2: FakeStream()}
        """The legacy default stream and that of the thread are always there."""
        self.events: dict[int, FakeEvent] = {}
        self.contexts = [0] * devices
        """Owners of each primary context."""
        self.kernels = {"jitree_copy": FakeKernel(3, _copy), "jitree_fill": FakeKernel(3, _fill)}
        """By name; tests add theirs."""
        self.machine_code: dict[str, int] = {}
        """Addresses of the calls that machine code makes: none, unless a test asks for them."""
        self._held = self._lazy = False
        self._lock = threading.RLock()
        self._next_handle = 0x1000
        self._thread = threading.local()
        self.attributes = {
            "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
        }  # fmt: skip

    # For tests.

    def names(self) -> list[str]:
        """The names of the calls so far."""
        return [name for name, _ in self.calls]

    def count(self, name: str) -> int:
        return self.names().count(name)

    def fail_next(self, name: str, result: fake_results.CUresult) -> None:
        """The next call of this name returns ``result`` and does nothing."""
        self.failures.setdefault(name, []).append(result)

    def be_lazy(self) -> None:
        """From now on the device works only while the host waits for a stream: it has done what a stream was
        given when it is asked for the fourth time."""
        self._held = self._lazy = True

    def hold(self) -> None:
        """From now on the device is busy."""
        self._held = True

    def release(self) -> None:
        """The device does all that is pending, and is idle again."""
        with self._lock:
            self._held = False
            while any(stream.pending for stream in self.streams.values()):
                for stream in self.streams.values():
                    self._advance(stream)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Holds, and releases at the end."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    @property
    def live_bytes(self) -> int:
        """Of device and pinned memory."""
        return sum(memory.size for memory in self.allocations.values())

    # For the parts.

    def record(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.calls.append((name, arguments))

    def new_handle(self) -> Handle:
        with self._lock:
            self._next_handle += 0x10
            return Handle(self._next_handle)

    def current(self) -> int | None:
        """Ordinal of the context that is current on this thread."""
        return getattr(self._thread, "ordinal", None)

    def enqueue(self, stream: int, work: Work) -> None:
        """Does the work now or, while the device is held, later."""
        with self._lock:
            target = self.streams[int(stream)]
            target.pending.append(work)
            target.asked = 0
            if not self._held:
                self._advance(target)

    def read_parameters(self, name: str, pointers: int) -> list[int]:
        """The words of a kernel's parameters, as a launch copies them."""
        count = self.kernels[name].parameters
        addresses = (ctypes.c_uint64 * count).from_address(pointers)
        return [ctypes.c_uint64.from_address(address).value for address in addresses]

    def run_kernel(
        self, name: str, words: list[int], grid: tuple[int, int, int], block: tuple[int, int, int]
    ) -> None:
        """Runs it now; part of the work of a stream."""
        self.kernels[name].run(self, words, grid, block)

    def bytes_at(self, address: int, size: int) -> np.ndarray:
        """Memory for reading and writing. A fault where none is allocated."""
        for memory in self.allocations.values():
            if memory.address <= address and address + size <= memory.address + memory.size:
                start = address - memory.address
                return memory.array[start : start + size]
        raise Fault(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)

    def _advance(self, stream: FakeStream) -> None:
        while stream.pending:
            work = stream.pending[0]
            blocked: Callable[[], bool] | None = getattr(work, "blocked", None)
            if blocked is not None and blocked():
                return
            stream.pending.pop(0)
            if self.lost is None:
                try:
                    work()
                except Fault as fault:
                    self.lost = fault.result
                    self._finish_events()
        if self.lost is not None:
            self._finish_events()

    def _finish_events(self) -> None:
        """On a lost device no thread waits for ever."""
        for event in self.events.values():
            event.reached.set()

    def _allocate(self, size: int, ordinal: int | None) -> Memory:
        array = np.empty(size + 256, np.uint8)
        array[:_POISONED] = 0xEE
        start = -array.ctypes.data % 256
        memory = Memory(array[start : start + size], array.ctypes.data + start, size, ordinal)
        with self._lock:
            self.allocations[memory.address] = memory
        return memory

    def _free_bytes(self, ordinal: int) -> int:
        used = sum(memory.size for memory in self.allocations.values() if memory.ordinal == ordinal)
        return self.memory - used

    # The driver.

    @driver_call
    def cuInit(self, flags: int) -> Any:
        return ((_OK if self.devices else CUresult.CUDA_ERROR_NO_DEVICE),)

    @driver_call
    def cuDriverGetVersion(self) -> Any:
        return _OK, self.version

    @driver_call
    def cuGetErrorName(self, result: fake_results.CUresult) -> Any:
        return _OK, result.name.encode()

    @driver_call
    def cuGetErrorString(self, result: fake_results.CUresult) -> Any:
        return _OK, f"text of {result.name}".encode()

    @driver_call
    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:
        address = self.machine_code.get(name.decode(), 0)
        return (_OK if address else CUresult.CUDA_ERROR_NOT_FOUND), address, int(not address)

    @driver_call
    def cuDeviceGetCount(self) -> Any:
        return _OK, self.devices

    @driver_call
    def cuDeviceGet(self, ordinal: int) -> Any:
        if not 0 <= ordinal < self.devices:
            raise Fault(CUresult.CUDA_ERROR_INVALID_DEVICE)
        return _OK, Handle(ordinal)

    @driver_call
    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return _OK, b"Fake GPU".ljust(length, b"\0")

    @driver_call
    def cuDeviceGetUuid(self, device: int) -> Any:
        return _OK, Uuid(bytes(range(15)) + bytes([int(device)]))

    @driver_call
    def cuDeviceGetPCIBusId(self, length: int, device: int) -> Any:
        return _OK, f"0000:{0x1A + int(device):02X}:00.0\0".encode()

    @driver_call
    def cuDeviceTotalMem(self, device: int) -> Any:
        return _OK, self.memory

    @driver_call
    def cuDeviceGetAttribute(self, attribute: fake_results.CUdevice_attribute, device: int) -> Any:
        return _OK, self.attributes[attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    @driver_call
    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        self.contexts[device] += 1
        return _OK, Handle(0x100 + device)

    @driver_call
    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        self.contexts[device] -= 1
        return (_OK,)

    @driver_call
    def cuCtxSetCurrent(self, context: int) -> Any:
        self._thread.ordinal = int(context) - 0x100
        return (_OK,)

    @driver_call
    def cuCtxPushCurrent(self, context: int) -> Any:
        self._thread.before = [*getattr(self._thread, "before", ()), self.current()]
        return self.cuCtxSetCurrent(context)

    @driver_call
    def cuCtxPopCurrent(self) -> Any:
        ordinal, self._thread.ordinal = self.current(), self._thread.before.pop()
        return _OK, ordinal

    @driver_call
    def cuCtxEnablePeerAccess(self, context: int, flags: int) -> Any:
        return (_OK,)

    @driver_call
    def cuMemGetInfo(self) -> Any:
        ordinal = self.current()
        assert ordinal is not None
        return _OK, self._free_bytes(ordinal), self.memory

    @driver_call
    def cuMemAlloc(self, size: int) -> Any:
        ordinal = self.current()
        assert ordinal is not None
        if size > self._free_bytes(ordinal):
            raise Fault(CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        return _OK, Handle(self._allocate(size, ordinal).address)

    @driver_call
    def cuMemFree(self, address: int) -> Any:
        with self._lock:
            return (_OK if self.allocations.pop(int(address), None) else CUresult.CUDA_ERROR_INVALID_VALUE,)

    @driver_call
    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        return _OK, self._allocate(size, None).address

    @driver_call
    def cuMemFreeHost(self, address: int) -> Any:
        with self._lock:
            return (_OK if self.allocations.pop(int(address), None) else CUresult.CUDA_ERROR_INVALID_VALUE,)

    @driver_call
    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        return _OK, Handle(address)

    @driver_call
    def cuMemHostRegister(self, address: int, size: int, flags: int) -> Any:
        array = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        with self._lock:
            self.allocations[address] = Memory(array, address, size, None)
        return (_OK,)

    @driver_call
    def cuMemHostUnregister(self, address: int) -> Any:
        return self.cuMemFreeHost(address)

    @driver_call
    def cuPointerGetAttribute(self, attribute: fake_results.CUpointer_attribute, address: int) -> Any:
        for memory in self.allocations.values():
            if memory.address <= address < memory.address + memory.size and memory.ordinal is not None:
                return _OK, memory.ordinal
        raise Fault(CUresult.CUDA_ERROR_INVALID_VALUE)

    @driver_call
    def cuStreamCreate(self, flags: int) -> Any:
        handle = self.new_handle()
        self.streams[handle] = FakeStream(ordinal=self.current())
        return _OK, handle

    @driver_call
    def cuStreamDestroy(self, stream: int) -> Any:
        del self.streams[int(stream)]
        return (_OK,)

    @driver_call
    def cuStreamSynchronize(self, stream: int) -> Any:
        done = threading.Event()
        with self._lock:
            if not self.streams[int(stream)].pending:  # also while the device is busy with others
                return (self.lost or _OK,)
            self.enqueue(stream, done.set)
        if self._lazy:
            with self._lock:
                self._advance(self.streams[int(stream)])
        while not done.wait(0.001):
            if self.lost is not None:
                break
        return (self.lost or _OK,)

    @driver_call
    def cuCtxSynchronize(self) -> Any:
        for stream in list(self.streams):
            self.cuStreamSynchronize(stream)
        return (self.lost or _OK,)

    @driver_call
    def cuStreamQuery(self, stream: int) -> Any:
        target = self.streams[int(stream)]
        target.asked += 1
        if self._lazy and target.asked > _LAZY_QUERIES:
            with self._lock:
                self._advance(target)
        return (CUresult.CUDA_ERROR_NOT_READY if target.pending else self.lost or _OK,)

    @driver_call
    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> Any:
        reached = self.events[int(event)].reached

        def wait() -> None: ...

        wait.blocked = lambda: not reached.is_set()  # type: ignore[attr-defined]
        self.enqueue(stream, wait)
        return (_OK,)

    @driver_call
    def cuEventCreate(self, flags: int) -> Any:
        handle = self.new_handle()
        self.events[handle] = FakeEvent()
        return _OK, handle

    @driver_call
    def cuEventDestroy(self, event: int) -> Any:
        del self.events[int(event)]
        return (_OK,)

    @driver_call
    def cuEventRecord(self, event: int, stream: int) -> Any:
        record = self.events[int(event)]
        record.reached = threading.Event()
        self.enqueue(stream, record.reached.set)
        return (_OK,)

    @driver_call
    def cuEventQuery(self, event: int) -> Any:
        return (_OK if self.events[int(event)].reached.is_set() else CUresult.CUDA_ERROR_NOT_READY,)

    @driver_call
    def cuEventSynchronize(self, event: int) -> Any:
        while not self.events[int(event)].reached.wait(0.001):
            if self._lazy:
                with self._lock:
                    for stream in self.streams.values():
                        self._advance(stream)
        return (self.lost or _OK,)

    @driver_call
    def cuLaunchKernel(
        self,
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        stream: int,
        parameters: int,
        extra: int,
    ) -> Any:
        self._launch(function, (grid_x, grid_y, grid_z), (block_x, block_y, block_z), stream, parameters)
        return (_OK,)

    def _launch(self, function: int, grid: Shape, block: Shape, stream: int, parameters: int) -> None:
        if 0 in grid:
            raise Fault(CUresult.CUDA_ERROR_INVALID_VALUE)
        name = self.function_names[int(function)]
        words = self.read_parameters(name, parameters)
        self.enqueue(stream, lambda: self.run_kernel(name, words, grid, block))

    @driver_call
    def cuLaunchKernelEx(self, configuration: int, function: int, parameters: int, extra: int) -> Any:
        x, y, z, block_x, block_y, block_z, *_ = struct.unpack("8I", ctypes.string_at(configuration, 32))
        stream, attributes, count = struct.unpack("QQI", ctypes.string_at(configuration + 32, 20))
        for number in range(count):
            kind, value = struct.unpack("I4xi", ctypes.string_at(attributes + 72 * number, 12))
            assert (kind, value) == (_EARLY_LAUNCH, 1)
        self._launch(function, (x, y, z), (block_x, block_y, block_z), stream, parameters)
        return (_OK,)

    @driver_call
    def cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            self.bytes_at(target, size)[:] = self.bytes_at(source, size)

        self.enqueue(stream, copy)
        return (_OK,)

    @driver_call
    def cuMemcpyHtoDAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        data = np.frombuffer(ctypes.string_at(source, size), np.uint8)

        def copy() -> None:
            self.bytes_at(target, size)[:] = data

        self.enqueue(stream, copy)
        return (_OK,)

    @driver_call
    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> Any:
        def copy() -> None:
            ctypes.memmove(target, self.bytes_at(source, size).ctypes.data, size)

        self.enqueue(stream, copy)
        return self.cuStreamSynchronize(stream)  # pageable memory: the driver waits

    @driver_call
    def cuMemsetD8Async(self, address: int, value: int, count: int, stream: int) -> Any:
        return self._fill(address, value, count, 1, stream)

    @driver_call
    def cuMemsetD16Async(self, address: int, value: int, count: int, stream: int) -> Any:
        return self._fill(address, value, count, 2, stream)

    @driver_call
    def cuMemsetD32Async(self, address: int, value: int, count: int, stream: int) -> Any:
        return self._fill(address, value, count, 4, stream)

    def _fill(self, address: int, value: int, count: int, width: int, stream: int) -> Any:
        def fill() -> None:
            self.bytes_at(address, count * width).view(f"<u{width}")[:] = value

        self.enqueue(stream, fill)
        return (_OK,)


def _copy(driver: FakeDriver, words: list[int], grid: object, block: object) -> None:
    target, source, length = words
    driver.bytes_at(target, length)[:] = driver.bytes_at(source, length)


def _fill(driver: FakeDriver, words: list[int], grid: object, block: object) -> None:
    address, length, pattern = words
    target = driver.bytes_at(address, length)
    target[:] = np.resize(np.frombuffer((pattern & 0xFFFFFFFF).to_bytes(4, "little"), np.uint8), length)
