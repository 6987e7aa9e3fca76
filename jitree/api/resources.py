"""Shares drivers, reference types and loaders of executables among sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any

from jitree import errors
from jitree.api.array import Array, use_parts
from jitree.api.calls.refusal import describe, listed
from jitree.api.calls.transfers import copy_to_device
from jitree.api.executables import Plugin, create_loaders
from jitree.api.load_order import parse_reference
from jitree.api.session_arguments import host_array, require, require_arithmetic
from jitree.base.finalizers import Unique
from jitree.dispatch.host_module import HostModule
from jitree.hal.buffer import BufferView
from jitree.hal.device import Device, home_of
from jitree.hal.driver import Driver, DriverRegistry, all_drivers
from jitree.hal.executable import ExecutableLoader
from jitree.hal.heap import HeapAllocator
from jitree.modules.hal.references import HAL_TYPES
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.archive import standard_input
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.sandbox import Sandbox
    from jitree.dispatch.context import ModuleLike
    from jitree.hal.allocator import Allocator
    from jitree.vmfb.archive import Source


DEFAULT_DEVICES = ("local-task", "cuda")
"""Drivers tried in this order when no device is named."""


class Resources(Unique):
    """Drivers, reference types and loaders. Safe to use from several threads."""

    def __init__(
        self, registry: DriverRegistry | None = None, loaders: Sequence[ExecutableLoader] | None = None
    ) -> None:
        """``registry``: drivers by name, None = those of this process. ``loaders``: makers of executables for
        devices without threads, None = all there are."""
        if registry is not None:
            require("registry", "a DriverRegistry", registry, DriverRegistry)
        self.driver_registry = all_drivers() if registry is None else registry
        """The drivers by name."""
        self.ref_types = RefTypes()
        """The types of references that sessions of the instance have in common."""
        self.ref_types.declare(HAL_TYPES)
        self._loaders = None if loaders is None else listed("loaders", "loaders", loaders, ExecutableLoader)
        self._host_allocators: list[HeapAllocator] = []
        """The first one counts: threads may make some at the same time."""

    @property
    def host_allocator(self) -> Allocator:
        """Memory of the host for code that needs buffers without a device."""
        if not self._host_allocators:
            self._host_allocators.append(HeapAllocator())
        return self._host_allocators[0]

    @property
    def loaders(self) -> tuple[ExecutableLoader, ...]:
        """Asked in this order by the devices that the instance creates."""
        if self._loaders is None:
            self._loaders = default_loaders()
        return self._loaders

    def loaders_with(
        self,
        tier: str | None = None,
        plugins: Iterable[Plugin] = (),
        modules: Iterable[HostModule] = (),
        arithmetic: str = FUSED,
    ) -> tuple[ExecutableLoader, ...]:
        """Gives the loaders for devices of one session; see :func:`jitree.api.executables.create_loaders`.

        ``tier``, ``plugins``, ``modules`` and ``arithmetic`` are those of :class:`jitree.Session`.
        INVALID_ARGUMENT for plugins, modules or strict arithmetic when the instance was given other loaders.
        """
        require_arithmetic(arithmetic)
        plugins = listed("executable_plugins", "plugins", plugins)
        modules = listed("executable_modules", "host modules", modules, HostModule)
        if tier is None and not plugins and not modules and arithmetic == FUSED:
            return self.loaders
        if self._loaders is None or self._loaders is default_loaders():
            from jitree.api.executables import create_loaders

            return create_loaders(tier, plugins, modules, arithmetic=arithmetic)
        if plugins or modules or arithmetic != FUSED:
            raise errors.InvalidArgumentError(
                "executable plugins, modules and arithmetic have to be given to the loaders that the "
                "instance was given"
            )
        return self._loaders

    def drivers(self) -> list[tuple[str, str]]:
        """Lists name and description of each driver of this process."""
        return self.driver_registry.enumerate()

    def driver(self, name: str) -> Driver:
        """Finds a driver by its ``name``: ``local-task``.

        NOT_FOUND for an unknown name, with those that there are, UNAVAILABLE when the driver cannot start.
        """
        require("name", "the name of a driver", name, str)
        return self.driver_registry.driver(name)

    def create_device(
        self,
        uri: str,
        parameters: Mapping[str, str] | None = None,
        loaders: Sequence[ExecutableLoader] | None = None,
    ) -> Device:
        """Makes a new device: ``local-sync``, ``local-task://?threads=4``, ``cuda://0``.

        ``uri``: driver, device and parameters; ``parameters`` are defaults for those that it does not state,
        ``loaders`` make its executables (None = the instance's). NOT_FOUND for an unknown driver or device,
        INVALID_ARGUMENT for parameters that the driver does not have.
        """
        require("uri", "the URI of a device", uri, str)
        require("parameters", "a mapping of names to texts", parameters, Mapping, NoneType)
        chosen = self.loaders if loaders is None else listed("loaders", "loaders", loaders, ExecutableLoader)
        return self.driver_registry.create_device(uri, chosen, parameters)

    def create_default_device(
        self, driver: str | None = None, loaders: Sequence[ExecutableLoader] | None = None
    ) -> Device:
        """Makes the default device of a driver, or of the first with one.

        ``driver``: its name; ``loaders`` as of :meth:`create_device`. UNAVAILABLE with all reasons when none
        has one.
        """
        if driver is not None:
            return self.create_device(driver, loaders=loaders)
        reasons = []
        for name in DEFAULT_DEVICES:
            try:
                return self.create_device(name, loaders=loaders)
            except errors.StatusError as error:
                reasons.append(f"{name}: {error}")
        raise errors.UnavailableError(f"no device can be created; {'; '.join(reasons)}")


DeviceChoice = str | Device | Sequence[str | Device] | Mapping[str, str | Device] | None


def open_devices(
    choice: DeviceChoice,
    instance: Resources,
    loaders: Sequence[ExecutableLoader],
    owned: list[Device],
    sandbox: Sandbox | None,
    zero_memory: bool,
) -> tuple[Device, ...]:
    """The devices of a choice, of a mapping in its order; those that are created are added to ``owned``."""
    if choice is None and sandbox is None:
        created = instance.create_default_device(loaders=loaders)
        owned.append(created)
        return (_prepared(created, zero_memory),)
    if choice is None:
        choice = "local-task"
    items: tuple[Any, ...] = (choice,)
    if not isinstance(choice, (str, Device)) and isinstance(choice, Iterable):
        items = listed("device", "URIs or Devices", in_order(choice))
    devices = []
    for item in items:
        if not isinstance(item, (str, Device)):
            raise errors.InvalidArgumentError(f"device: expected a URI or a Device but got {describe(item)}")
        if sandbox is not None:
            from jitree.api.sandbox import require_local

            require_local(item)
        if isinstance(item, str):
            item = instance.driver_registry.create_device(item, loaders)
            owned.append(item)
            if sandbox is not None:
                sandbox.adopt(item)
        devices.append(_prepared(item, zero_memory))
    if not devices:
        raise errors.InvalidArgumentError("device: a session needs at least one device")
    return tuple(devices)


def in_order(choice: Iterable[Any]) -> Iterable[Any]:
    """Lists devices of a list, or of a mapping, whose names are for readers: programs know numbers."""
    return choice.values() if isinstance(choice, Mapping) else choice


def _prepared(device: Device, zero_memory: bool) -> Device:
    """UNIMPLEMENTED for a device whose memory cannot be zero where that is wanted."""
    if zero_memory:
        for allocator in (device.device_allocator, device.host_allocator):
            if not isinstance(allocator, HeapAllocator):
                raise errors.UnimplementedError(
                    f"zero_memory: memory of {device.id} is not cleared; local-sync and local-task do that"
                )
            allocator.is_zeroed = True
    return device


@cache
def default_loaders() -> tuple[ExecutableLoader, ...]:
    """One of each loader for executables that run on this machine's processors."""

    return create_loaders()


def read_module(source: Source | ModuleLike, ref_types: RefTypes) -> ModuleLike:
    """Reads the module that a source is or has, for sessions with ``ref_types``."""
    if isinstance(source, (BytecodeModule, HostModule)):
        return source
    if isinstance(source, str):
        if source == "-":  # standard input
            return BytecodeModule.load(standard_input(), "<standard input>")
        reference = parse_reference(source)
        if reference is not None:
            from jitree.api.module_files import open_module_file

            return open_module_file(reference, ref_types)
    return BytecodeModule.load(source)


def placed(value: Any, device: Device, copy: bool | None = None) -> Array:
    """The elements of a value on a device. ``copy``: True for memory of their own, False for the memory that
    the value has. INVALID_ARGUMENT for types that programs cannot have, and if it cannot be False."""
    require("copy", "True, False or None", copy, bool, NoneType)
    if isinstance(value, BufferView):
        value = Array(value, home_of(value.buffer, (device,)))
    if copy is not None:
        return _copied(value, device) if copy else _wrapped(value, device)
    if isinstance(value, Array):
        if value.device is device and not value.is_donated:
            return value
        value = value.to_host()
    exchange = device.array_exchange
    if exchange is not None and exchange.is_importable(value):
        return Array(exchange.import_view(value), device)
    array, row = host_array(value)
    return Array(copy_to_device(array, row, device), device)


def _copied(value: Any, device: Device) -> Array:
    from jitree.api.calls.transfers import copy_view

    made, exchange = placed(value, device), device.array_exchange
    shares = made is value or (exchange is not None and exchange.is_importable(value))
    return Array(copy_view(made.wait().buffer_view, device), device) if shares else made


def _wrapped(value: Any, device: Device) -> Array:
    from jitree.api.calls.tensor_packing import as_array
    from jitree.api.calls.transfers import wrap
    from jitree.base.arguments import is_masked

    exchange = device.array_exchange
    is_there = isinstance(value, Array) and value.device is device and not value.is_donated
    if is_there or (exchange is not None and exchange.is_importable(value)):
        return placed(value, device)
    array = as_array(value)
    view = None if array is None or is_masked(value) else wrap(array, device)
    if view is None:
        raise errors.InvalidArgumentError(
            f"to_device: {device.uri} cannot use the memory of {describe(value)}, which copy=False asks for: "
            "that takes C order, elements of whole bytes and an address that is a multiple of 64, such as "
            "numpy.asarray(session.empty(shape, dtype)) has; leave copy= out to copy it"
        )
    return Array(view, device)


def _read_part(array: Array, index: Any) -> Any:
    from jitree.api.indexing import read

    return read(array, index)


def _write_part(array: Array, index: Any, value: Any) -> None:
    from jitree.api.indexing import write

    write(array, index, value)


def _explained(error: Exception, shape: tuple[int, ...], index: Any) -> Exception:
    from jitree.api.indexing import explained

    return explained(error, shape, index)


def _exchange_functions() -> object:
    from jitree.api.calls.native.session import exchange_functions
    from jitree.base.memory import can_bind

    return exchange_functions() if can_bind() else None


def _moved(array: Array, device: Any, stream: None) -> Any:
    if stream is not None:
        raise errors.InvalidArgumentError(
            "to_device: a stream is not taken: copies through the host are ordered by it"
        )
    if isinstance(device, str) and device == "cpu":
        return array.to_host()
    if not isinstance(device, Device):
        raise errors.InvalidArgumentError(
            'to_device: expected a jitree.Device (session.device), or "cpu" for numpy, but got '
            f"{describe(device)}"
        )
    return placed(array, device)


@cache
def _device_of_pickles(uri: str) -> Device:
    """Holds the arrays that come from pickles."""
    return all_drivers().create_device(uri)


def _unpickled(elements: npt.NDArray[Any], uri: str) -> Array:
    with errors.error_context(f"unpickling an array of the device {uri}"):
        return placed(elements, _device_of_pickles(uri))


use_parts(
    _read_part, _write_part, _explained, _exchange_functions, _moved, _unpickled
)  # arrays cannot import what is made of them
