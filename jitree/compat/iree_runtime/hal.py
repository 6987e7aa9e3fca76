"""Drivers, devices and allocators, and the flags that they are made with."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitree.api.calls.transfers import native_row
from jitree.api.session import Instance
from jitree.base import dlpack
from jitree.base.dlpack_names import NAME, VERSIONED_NAME
from jitree.base.elements import pack_integers
from jitree.compat.iree_runtime.arguments import (
    Reference,
    a,
    array,
    bits,
    element,
    integer,
    memory,
    of,
    optional,
    size,
    something,
    takes,
    text,
)
from jitree.compat.iree_runtime.buffers import HalBuffer, HalBufferView
from jitree.compat.iree_runtime.dtypes import map_dtype_to_hal_element_type
from jitree.compat.iree_runtime.fences import HalSemaphore, fence_of
from jitree.errors import InvalidArgumentError, UnimplementedError, pass_interruption
from jitree.hal.buffer import Allocation, Buffer, BufferView
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.device import Device
from jitree.hal.driver import DEFAULT_OPTIONS, Driver
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.heap import host_memory_type
from jitree.types import is_packed

FUNCTION_INPUT_VALIDATION: Final = True
"""Calls always check their arguments."""
_VARIABLE: Final = "IREE_PY_RUNTIME_FLAGS"
_given: list[str] = []


def parse_flags(*flags: str) -> None:
    """Reads flags of ``iree-run-module``, for devices that are made later. ValueError for unknown ones."""
    from jitree.tools import run
    from jitree.tools.flags import parse_flags as parse

    for given in [text(each) for each in flags]:
        name = given.lstrip("-").partition("=")[0]
        if given.startswith("-") and run.FLAGS.find(name) is None:
            raise InvalidArgumentError(
                f"flag '{name}' not recognized; `jitree run --help` lists those there are"
            )
    parse([*_given, *flags], run.FLAGS)
    _given.extend(flags)


def device_parameters(driver: str) -> Mapping[str, str]:
    """What the flags say of devices of a driver."""
    if not _given or driver != "local-task":
        return {}
    from jitree.tools import run
    from jitree.tools.flags import parse_flags as parse
    from jitree.tools.program import task_parameters

    return task_parameters(parse(_given, run.FLAGS))


def parse_default_flags() -> None:
    """Reads the flags that the environment gives."""
    given = os.environ.get(_VARIABLE, "")
    try:
        parse_flags(*shlex.split(given))
    except ValueError as error:
        pass_interruption(error)
        raise RuntimeError(
            f"parsing flags of the environment variable {_VARIABLE}='{given}': {error}"
        ) from error


_ANY: Final = -1
_STAGING: Final = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
_STAGING_USAGE: Final = int(BufferUsage.TRANSFER | BufferUsage.MAPPING)
_PERSISTENT: Final = int(BufferUsage.MAPPING_PERSISTENT)
_DISPATCH: Final = int(BufferUsage.DISPATCH_STORAGE)


_ALLOCATORS: Final = ("caching", "debug")


def _allocators(value: Any) -> list[str]:
    names = [text(item) for item in a(list)(value)]
    for name in names:
        if name.partition(":")[0] not in _ALLOCATORS:
            raise InvalidArgumentError(f"no allocator '{name}'; there are: {', '.join(_ALLOCATORS)}")
    return names


def _device_number(value: Any) -> int:
    """The number of a device, given by its number or a row of :meth:`HalDriver.query_available_devices`."""
    return int(size(value["device_id"] if isinstance(value, dict) else value))


class HalDriver:
    """Makes devices of one kind."""

    @takes(a(Driver))
    def __init__(self, raw: Driver) -> None:
        self.raw = raw

    @staticmethod
    def query() -> list[str]:
        """The names of all drivers."""
        return sorted(name for name, _ in Instance.default().drivers())

    def query_available_devices(self) -> list[dict[str, Any]]:
        return [
            {"device_id": info.id, "path": info.path, "name": info.name}
            for info in self.raw.query_available_devices()
        ]

    @takes(optional(_allocators))
    def create_default_device(self, allocators: Sequence[str] | None = None) -> HalDevice:
        return self._create(Driver.DEFAULT_ID, {})

    @takes(optional(_device_number), optional(a(dict)), optional(_allocators), _device_number)
    def create_device(
        self,
        device_id: Any = None,
        params: dict[str, str] | None = None,
        allocators: Sequence[str] | None = None,
        *,
        device_info: Any = None,
    ) -> HalDevice:
        """Makes a device by its number, or its row of :meth:`query_available_devices`.

        ``allocators`` change nothing: jitree's allocators keep and check memory in any case. NOT_FOUND for
        another number.
        """
        number = device_info if device_id is None else device_id
        if number is None:
            raise TypeError("create_device(): incompatible function arguments: device_id: expected a number")
        return self._create(number, params or {})

    def _create(self, number: int, params: dict[str, str]) -> HalDevice:
        parameters = {**device_parameters(self.raw.name), **params}
        options = DEFAULT_OPTIONS._replace(parameters=parameters, loaders=Instance.default().loaders)
        return HalDevice(self.raw.create_device_by_id(number, options))

    @takes(text, optional(_allocators))
    def create_device_by_uri(self, device_uri: str, allocators: Sequence[str] | None = None) -> HalDevice:
        parameters = device_parameters(self.raw.name)
        return HalDevice(Instance.default().create_device(device_uri, parameters))

    @takes(size)
    def dump_device_info(self, device_id: int, /) -> str:
        return self.raw.dump_device_info(device_id)


_drivers: dict[str, HalDriver] = {}


@takes(text)
def create_hal_driver(device_uri: str) -> HalDriver:
    """Another driver in each call. NOT_FOUND for an unknown name."""
    return HalDriver(Instance.default().driver(device_uri.partition("://")[0]))


@takes(text)
def get_cached_hal_driver(device_uri: str) -> HalDriver:
    """The same driver for each call with one name."""
    name = device_uri.partition("://")[0]
    if name not in _drivers:
        _drivers[name] = create_hal_driver(name)
    return _drivers[name]


def clear_hal_driver_cache() -> None:
    _drivers.clear()


class HalDevice:
    """A device and its queue."""

    @takes(a(Device))
    def __init__(self, raw: Device) -> None:
        self.raw = raw
        self._allocator = HalAllocator(self)

    @property
    def allocator(self) -> HalAllocator:
        found: HalAllocator = self._allocator
        return found

    @takes(size)
    def create_semaphore(self, initial_value: int) -> HalSemaphore:
        return HalSemaphore.on(self.raw, initial_value)

    @takes(size, something, something)
    def queue_alloca(self, allocation_size: int, wait_semaphores: Any, signal_semaphores: Any) -> HalBuffer:
        wait, signal = _fences(wait_semaphores, signal_semaphores)
        made = self.raw.queue_alloca(
            _ANY, wait, signal, 0, int(MemoryType.DEVICE_LOCAL), int(BufferUsage.DEFAULT), allocation_size
        )
        return HalBuffer.of(made)

    @takes(of(Buffer), something, something)
    def queue_dealloca(self, buffer: HalBuffer, wait_semaphores: Any, signal_semaphores: Any) -> None:
        self.raw.queue_dealloca(_ANY, *_fences(wait_semaphores, signal_semaphores), buffer.raw)

    @takes(of(Buffer), of(Buffer), something, something)
    def queue_copy(
        self, source_buffer: HalBuffer, target_buffer: HalBuffer, wait_semaphores: Any, signal_semaphores: Any
    ) -> None:
        """Copies all of the source. ValueError if the target is shorter."""
        length = source_buffer.raw.byte_length
        if length > target_buffer.raw.byte_length:
            raise ValueError(
                "Source and buffer length must be less than the target buffer length and it does not. "
                "Please check allocations"
            )
        wait, signal = _fences(wait_semaphores, signal_semaphores)
        self.raw.queue_copy(_ANY, wait, signal, source_buffer.raw, 0, target_buffer.raw, 0, length)

    @takes(of(CommandBuffer), something, something)
    def queue_execute(self, command_buffers: Reference, wait_semaphores: Any, signal_semaphores: Any) -> None:
        self.raw.queue_execute(_ANY, *_fences(wait_semaphores, signal_semaphores), command_buffers.raw)

    @takes(of(BufferView), integer(-(2**31), 2**31 - 1), integer(-(2**31), 2**31 - 1))
    def create_dlpack_capsule(self, buffer_view: HalBufferView, device_type_code: int, device_id: int) -> Any:
        """Makes a capsule over the view's memory, for the device that the caller says."""
        from jitree.api.array import Array

        array = Array(buffer_view.raw, self.raw)
        here = array.__dlpack_device__()
        if here != (device_type_code, device_id):
            raise InvalidArgumentError(
                f"the view is on DLPack device {here}, not on ({device_type_code}, {device_id})"
            )
        return array.__dlpack__()

    @takes(something)
    def from_dlpack_capsule(self, input_capsule: Any, /) -> HalBufferView:
        """A view over the capsule's memory, without a copy.

        INVALID_ARGUMENT for memory that is not aligned to 64 bytes and for arrays with gaps.
        """
        from jitree.api.calls.native.exporting import GivenCapsule  # few programs pass capsules themselves

        if not dlpack.is_valid(id(input_capsule), VERSIONED_NAME):
            dlpack.pointer(id(input_capsule), NAME)  # ValueError for what is none
        exchange = self.raw.array_exchange
        if exchange is not None:
            return HalBufferView.of(exchange.import_view(GivenCapsule(input_capsule, exchange.dlpack_device)))
        cannot_say = dlpack.is_valid(id(input_capsule), NAME)  # whether it is read-only
        imported = dlpack.import_array(GivenCapsule(input_capsule, dlpack.CPU_DEVICE))
        code = map_dtype_to_hal_element_type(imported.dtype)
        if code is None or not imported.flags.c_contiguous:
            raise InvalidArgumentError("from_dlpack_capsule: expected a contiguous imported of numbers")
        if cannot_say and not imported.flags.writeable:
            imported = np.asarray(_Writable(imported))
        data = imported.reshape(-1).view(np.uint8)
        buffer = self._allocator.import_bytes(data, int(MemoryType.DEVICE_LOCAL), int(BufferUsage.DEFAULT))
        return HalBufferView.of(BufferView(buffer.raw, imported.shape, int(code)))

    @takes(optional(text))
    def begin_profiling(self, mode: str | None = None) -> None:
        """Nothing is measured without a sink, which Python cannot give: ValueError for a mode."""
        if mode is not None:
            raise ValueError(
                "Python HAL native profiling requires a profile sink and is not exposed by the runtime "
                "bindings"
            )

    def flush_profiling(self) -> None:
        pass

    def end_profiling(self) -> None:
        pass

    @takes(text, optional(text), optional(text))
    def begin_external_capture(
        self, provider: str, file_path: str | None = None, label: str | None = None
    ) -> None:
        """UNIMPLEMENTED: no driver has one."""
        raise UnimplementedError(f"UNIMPLEMENTED; no external capture by '{provider}' on {self.raw.id}")

    def end_external_capture(self) -> None:
        raise UnimplementedError(f"UNIMPLEMENTED; no external capture on {self.raw.id}")

    def __repr__(self) -> str:
        return self.raw.id


def _fences(wait: Any, signal: Any) -> tuple[Any, Any]:
    return fence_of(wait, "wait_semaphores"), fence_of(signal, "signal_semaphores")


class _Writable:
    """Memory of an array, to be written to."""

    def __init__(self, array: Any) -> None:
        interface = array.__array_interface__
        self._array = array
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


a_device: Final = a(HalDevice)


class HalAllocator:
    """Makes buffers of a device."""

    @takes(a_device)
    def __init__(self, device: HalDevice) -> None:
        self._device = device

    @property
    def _raw(self) -> Any:
        return self._device.raw.device_allocator

    def trim(self) -> None:
        self._raw.trim()

    @property
    def _is_host_memory(self) -> bool:
        return self._device.raw.array_exchange is None

    def _usage(self, allowed_usage: int) -> int:
        """Memory of the host stays mapped."""
        return (allowed_usage or int(BufferUsage.DEFAULT)) | (_PERSISTENT if self._is_host_memory else 0)

    @property
    def has_statistics(self) -> bool:
        return True

    @property
    def statistics(self) -> dict[str, int]:
        found = self._raw.statistics
        return {
            f"{name}_bytes_{what}": getattr(heap, what)
            for name, heap in (("host", found.host), ("device", found.device))
            for what in ("peak", "allocated", "freed")
        }

    @property
    def formatted_statistics(self) -> str:
        return "\n".join(self._raw.formatted_statistics.split("\n")[1:])

    @takes(bits, bits, bits, size)
    def query_buffer_compatibility(
        self, memory_type: Any, allowed_usage: Any, intended_usage: Any, allocation_size: int
    ) -> int:
        return int(self._raw.query_compatibility(memory_type, allowed_usage, intended_usage, allocation_size))

    @takes(bits, bits, size)
    def allocate_buffer(self, memory_type: int, allowed_usage: int, allocation_size: int) -> HalBuffer:
        return HalBuffer.of(self._raw.allocate(memory_type, self._usage(allowed_usage), allocation_size))

    @takes(bits, bits, a_device, array, optional(element))
    def allocate_buffer_copy(
        self, memory_type: Any, allowed_usage: Any, device: HalDevice, buffer: Any, element_type: Any = None
    ) -> Any:
        """A buffer with the bytes of an array; a view of them where an element type is given."""
        row = native_row(buffer.dtype)
        if row is not None and is_packed(row):
            data = pack_integers(buffer.reshape(-1), row)
        else:
            data = buffer.reshape(-1).view(np.uint8)
        made = self._raw.allocate(memory_type, self._usage(allowed_usage), len(data))
        self._device.raw.write_buffer(made, data)
        if element_type is None:
            return HalBuffer.of(made)
        return HalBufferView.of(BufferView(made, buffer.shape, element_type))

    @takes(a_device, something)
    def allocate_host_staging_buffer_copy(self, device: HalDevice, initial_contents: Any) -> HalBuffer:
        """A buffer of the host's memory, which the device sees too."""
        memory_type = int(MemoryType.DEVICE_LOCAL) if self._is_host_memory else _STAGING
        made: HalBuffer = self.allocate_buffer_copy(memory_type, _STAGING_USAGE, device, initial_contents)
        return made

    @takes(memory, bits, bits)
    def import_host_allocation(self, buffer: Any, memory_type: int, allowed_usage: int) -> HalBuffer:
        """A buffer over an array's own memory.

        ValueError for memory that the device cannot use.
        """
        return self.import_bytes(np.frombuffer(buffer, np.uint8), memory_type, allowed_usage)

    def import_bytes(self, data: Any, memory_type: int, allowed_usage: int) -> HalBuffer:
        made = self._raw.import_host(data.data, memory_type, allowed_usage)
        if made is None and not allowed_usage & _DISPATCH and self._is_host_memory:
            made = _for_transfers(data, memory_type, allowed_usage)
        if made is None:
            raise InvalidArgumentError(
                f"memory at {data.ctypes.data:#x} is not aligned to 64 bytes, which {self._device!r} needs "
                "to use it in place; copy it by allocate_buffer_copy"
            )
        return HalBuffer.of(made)


def _for_transfers(data: Any, memory_type: int, allowed_usage: int) -> Buffer:
    """Host memory of any alignment, which only kernels care for."""
    address = data.ctypes.data
    access = MemoryAccess.ALL if data.flags.writeable else MemoryAccess.READ
    allocation = Allocation(
        address, len(data), host_memory_type(memory_type), allowed_usage, int(access), address, data
    )
    return Buffer(allocation)
