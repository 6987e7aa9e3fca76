"""Opens a GPU: this process's context on it, and a pool of events.

Creating and destroying an event costs more than all that is done with it. One that is taken out of the pool
has an owner, which gives it back to the pool: when it is told to, or when nothing refers to it any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from operator import call
from typing import Any, Final

from jitree.base.finalizers import Finalizer, guard, uninterrupted
from jitree.cuda.api import PEER_ACCESS_ALREADY_ENABLED, Action, Api, Discarded, Handle, Owned

_EARLY_CAPABILITY: Final = (9, 0)
_EARLY_DRIVER: Final = 12040
"""The first driver whose graphs have edges for programmatic dependent launch."""

_BLOCKING_SYNC: Final = 0x1
"""Threads that wait for an event sleep instead of spinning."""
_DISABLE_TIMING: Final = 0x2


class CudaContext:
    """Holds a device's primary context. PyTorch and CuPy use it as well: pointers can be exchanged."""

    def __init__(self, driver: Any, ordinal: int, dependent_launch: bool = True) -> None:
        """``driver``: the bindings' module; ``ordinal``: of the device in this process; ``dependent_launch``:
        whether kernels may be launched before those are done that they wait for."""
        self.api = Api(driver, f"cuda://{ordinal}")
        self.ordinal = ordinal
        self.device: Handle = self.api.call("cuDeviceGet", ordinal)
        self.info = DeviceDescription(self.api, self.device)
        self.launches_early = (
            dependent_launch
            and self.info.compute_capability >= _EARLY_CAPABILITY
            and self.info.driver_version >= _EARLY_DRIVER
            and hasattr(driver, "CUgraphEdgeData")
        )
        """Whether dependent kernels are launched early, and wait by themselves."""
        self._owned = Owned(self.api, "cuDevicePrimaryCtxRelease", _make_all)
        self._owned.make("cuDevicePrimaryCtxRetain", (self.device,), (self.device,))
        self.handle: Handle = self._owned.handle
        self._lock = guard()
        self._discarded = Discarded(self._owned)
        self.generation = 0
        """Counts changes of kernels that plans name: older plans are made anew."""
        self._peers: set[int] = {ordinal}

    def enter(self) -> None:
        """Makes the context current on this thread; other libraries may have changed that since."""
        self.api.set_current(self.handle)

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name in cuda.h: ``MULTIPROCESSOR_COUNT``."""
        return self.info.attribute(name)

    def enable_peer(self, other: CudaContext) -> None:
        """Lets kernels and copies here use memory of another device. UNIMPLEMENTED where that cannot
        be."""
        with self._lock:
            if other.ordinal in self._peers:
                return
            self.enter()
            (result,) = self.api.driver.cuCtxEnablePeerAccess(other.handle, 0)
            if result and result != PEER_ACCESS_ALREADY_ENABLED:
                raise self.api.failure("cuCtxEnablePeerAccess", result)
            self._peers.add(other.ordinal)

    def make(
        self,
        name: str,
        arguments: Iterable[Any],
        give_back: str,
        known: tuple[Handle, ...] = (),
        kept: object = None,
    ) -> Owned:
        """Makes something by the driver's call ``name``. Its owner's death has ``give_back`` give it back at
        the next :meth:`release_discarded`. The context must be current.

        ``known``: what is given back, where that is no result. ``kept``: lives until then.
        """
        owned = Owned(self.api, give_back, partial(self._discarded.leave, kept))
        owned.make(name, arguments, known)
        return owned

    def release_discarded(self) -> None:
        """Gives back what has been discarded; the context must be current. For any thread."""
        self._discarded.release()


def _make_all(calls: Iterator[Action]) -> Action:
    return uninterrupted(partial(deque, map(call, calls), 0))


class DeviceDescription:
    """Describes a device, without a context."""

    def __init__(self, api: Api, device: Handle) -> None:
        self._api = api
        self._device = device
        self.name: str = _text(api.call("cuDeviceGetName", 256, device))
        self.uuid = format_uuid(bytes(api.call("cuDeviceGetUuid", device).bytes))
        self.pci_id = _text(api.call("cuDeviceGetPCIBusId", 32, device)).lower()
        self.memory: int = api.call("cuDeviceTotalMem", device)
        self.driver_version: int = api.call("cuDriverGetVersion")
        self.compute_capability = (
            self.attribute("COMPUTE_CAPABILITY_MAJOR"),
            self.attribute("COMPUTE_CAPABILITY_MINOR"),
        )

    def attribute(self, name: str) -> int:
        kinds = self._api.driver.CUdevice_attribute
        kind = getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._api.call("cuDeviceGetAttribute", kind, self._device))

    def format(self) -> str:
        """Details for people, in lines."""
        major, minor = self.compute_capability
        version = f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"
        shared = self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        return (
            f"  compute capability: {major}.{minor}\n"
            f"  PCI id: {self.pci_id}\n"
            f"  UUID: {self.uuid}\n"
            f"  memory: {self.memory} bytes\n"
            f"  multiprocessors: {self.attribute('MULTIPROCESSOR_COUNT')}\n"
            f"  shared memory per block: {shared} bytes at most\n"
            f"  driver: CUDA {version}\n"
        )


def format_uuid(data: bytes) -> str:
    """``GPU-…`` as nvidia-smi writes it."""
    text = data[:16].hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _text(value: bytes | str) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
    return text.partition("\0")[0]


class PooledEvent:
    """Owns an event of a pool."""

    __slots__ = ("_ending", "_free", "_owned")

    def __init__(self, free: list[Owned]) -> None:
        """``free``: where it comes from and goes back to."""
        self._owned: list[Owned] = []
        self._free = free
        self._ending = Finalizer(partial(free.extend, self._owned))

    def take(self, context: CudaContext) -> None:
        """Has a free event of the pool, or a new one."""
        try:
            self._owned.extend(map(self._free.pop, (-1,)))
        except IndexError:
            flags = _BLOCKING_SYNC | _DISABLE_TIMING
            self._owned.append(context.make("cuEventCreate", (flags,), "cuEventDestroy"))

    @property
    def handle(self) -> Handle:
        return self._owned[0].handle

    def __int__(self) -> int:
        return int(self.handle)

    def release(self) -> None:
        """Returns the event to its pool, reached or not. It may be recorded anew. Twice is once."""
        try:
            self._free.extend(map(self._owned.pop, (-1,)))
        except IndexError:
            return


class EventPool:
    """Events of one context; safe to use from several threads."""

    __slots__ = ("_context", "_free", "_permanent")

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._free: list[Owned] = []
        self._permanent: list[PooledEvent] = []

    def permanent(self) -> PooledEvent:
        """Makes an event that lives as long as the pool. The context must be current."""
        event = self.acquire()
        self._permanent.append(event)
        return event

    def acquire(self) -> PooledEvent:
        """An event; the context must be current."""
        event = PooledEvent(self._free)
        event.take(self._context)
        return event

    def close(self) -> None:
        """Destroys the free and the permanent ones. Called again, it finishes what was interrupted."""
        for event in self._permanent:
            event.release()
        self._permanent.clear()
        self._free.clear()
        self._context.release_discarded()
