"""Makes devices of the process, and loads modules into contexts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitree.base.finalizers import ReentrantLock
from jitree.compat.iree_runtime.arguments import anything, takes, text
from jitree.compat.iree_runtime.array_interop import DeviceArray
from jitree.compat.iree_runtime.function import FunctionInvoker
from jitree.compat.iree_runtime.hal import HalDevice, HalDriver, get_cached_hal_driver
from jitree.compat.iree_runtime.modules import create_hal_module
from jitree.compat.iree_runtime.vm import VmContext, VmInstance, VmModule, a_module
from jitree.errors import is_interruption, pass_interruption

DEFAULT_DRIVER_NAMES: Final = "local-task,cuda,vulkan"
_LOCK = ReentrantLock()
_devices: dict[str, HalDevice | Exception] = {}


def query_available_drivers() -> list[str]:
    return HalDriver.query()


def get_driver(device_uri: str) -> HalDriver:
    """The same for each call with one name. ValueError for an unknown one."""
    return get_cached_hal_driver(device_uri)


@takes(text, anything)
def get_device(device_uri: str, cache: bool = True) -> HalDevice:
    """The same for each call with one URI, unless ``cache`` is false; a failure is raised again."""
    with _LOCK:
        found = _devices.get(device_uri) if cache else None
        if found is None:
            try:
                found = get_driver(device_uri).create_device_by_uri(device_uri)
            except Exception as error:
                if is_interruption(error):
                    raise
                found = error
            if cache:
                _devices[device_uri] = found
    if isinstance(found, Exception):
        raise found
    return found


def get_first_device(device_uris: Sequence[str] | None = None, cache: bool = True) -> HalDevice:
    """The first that can be made.

    ValueError if none of them is there, RuntimeError if the last one fails.
    """
    if device_uris is None:
        text = os.environ.get("IREE_DEFAULT_DEVICE", DEFAULT_DRIVER_NAMES)
        device_uris = [uri.strip() for uri in text.split(",")]
    failure: Exception | None = None
    for uri in device_uris:
        try:
            return get_device(uri, cache)
        except ValueError as error:  # there is no such driver or device
            pass_interruption(error)
            continue
        except Exception as error:
            if is_interruption(error):
                raise
            failure = error
    if failure is None:
        raise ValueError(f"No device found from list {device_uris}")
    raise RuntimeError("Could not create device. Exception for last tried follows.") from failure


TARGET_BACKEND_TO_DRIVER: Final = {
    "llvm-cpu": "local-task",
    "vmvx": "local-task",
    "vulkan-spirv": "vulkan",
}


class Config:
    """A device and the modules that all contexts have."""

    def __init__(self, driver_name: str | None = None, *, device: HalDevice | None = None) -> None:
        """``driver_name``: one, or several with commas between them; the first that works is taken."""
        if device is not None and driver_name is not None:
            raise ValueError("Either 'device' or 'driver_name' can be specified (not both)")
        if device is None:
            device = get_first_device(None if driver_name is None else driver_name.split(","))
        self.device = device
        self.vm_instance = VmInstance()
        self.default_vm_modules = (create_hal_module(self.vm_instance, device),)


class BoundModule:
    """A module in a context; its functions are attributes and items."""

    def __init__(self, context: SystemContext, vm_module: VmModule) -> None:
        self._context = context
        self._vm_module = vm_module
        self._functions: dict[str, FunctionInvoker] = {}

    @property
    def name(self) -> str:
        return self._vm_module.name

    @property
    def vm_module(self) -> VmModule:
        return self._vm_module

    def __getitem__(self, name: str) -> FunctionInvoker:
        found = self._functions.get(name)
        if found is None:
            vm_function = self._vm_module.lookup_function(name)
            if vm_function is None:
                raise KeyError(f"Function '{name}' not found in module '{self}'")
            context = self._context
            found = FunctionInvoker(context.vm_context, context.config.device, vm_function)
            self._functions[name] = found
        return found

    def __getattr__(self, name: str) -> FunctionInvoker:
        try:
            found = self[name]
        except KeyError:
            raise AttributeError(name) from None
        self.__dict__[name] = found  # the next look-up does not come here
        return found

    def __repr__(self) -> str:
        return f"<BoundModule {self._vm_module!r}>"


class BoundModules(dict[str, BoundModule]):
    """Modules by name; they are attributes too."""

    def __getattr__(self, name: str) -> BoundModule:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class SystemContext:
    """Modules linked to each other, on the device of a configuration."""

    def __init__(self, vm_modules: Sequence[VmModule] | None = None, config: Config | None = None) -> None:
        """With modules it has just these, without any more can be added."""
        self._config = Config() if config is None else config
        self._is_dynamic = vm_modules is None
        defaults = self._config.default_vm_modules
        if vm_modules is None:
            modules = list(defaults)
            self._vm_context = VmContext(self._config.vm_instance)
            self._vm_context.register_modules(modules)
        else:
            names = {a_module(module).name for module in vm_modules}
            modules = [*(module for module in defaults if module.name not in names), *vm_modules]
            modules.sort(key=lambda module: module.name != "hal")
            self._vm_context = VmContext(self._config.vm_instance, modules)
        self._modules = BoundModules((module.name, BoundModule(self, module)) for module in modules)

    @property
    def vm_context(self) -> VmContext:
        return self._vm_context

    @property
    def is_dynamic(self) -> bool:
        return self._is_dynamic

    @property
    def config(self) -> Config:
        return self._config

    @property
    def instance(self) -> VmInstance:
        return self._config.vm_instance

    @property
    def modules(self) -> BoundModules:
        return self._modules

    def add_module_dependency(self, name: str, minimum_version: int = 0) -> None:
        """Adds a module that the instance knows by name."""
        self.add_vm_module(VmModule.resolve_module_dependency(self.instance, name, minimum_version))

    def add_vm_modules(self, vm_modules: Sequence[VmModule]) -> None:
        """ValueError for a module whose name is there already."""
        assert self._is_dynamic, "Cannot 'add_module' on a static context"
        bound = {}
        for module in [a_module(each) for each in vm_modules]:
            if module.name in self._modules or module.name in bound:
                raise ValueError(f"Attempt to register duplicate VmModule: '{module.name}'")
            bound[module.name] = BoundModule(self, module)
        self._vm_context.register_modules(vm_modules)
        self._modules.update(bound)

    def add_vm_module(self, vm_module: VmModule) -> None:
        self.add_vm_modules((vm_module,))


def load_vm_modules(*vm_modules: VmModule, config: Config | None = None) -> list[BoundModule]:
    """Loads several modules into one new context, those that others depend on first."""
    context = SystemContext(vm_modules=vm_modules, config=config)
    return [context.modules[module.name] for module in vm_modules]


def load_vm_module(vm_module: VmModule, config: Config | None = None) -> BoundModule:
    return load_vm_modules(vm_module, config=config)[0]


def _config_of(driver: str | None, backend: str | None) -> Config:
    if driver is None and backend is None:
        raise ValueError("Either 'driver' or 'backend' must be specified, but got 'None' for both.")
    if driver is not None and backend is not None:
        raise ValueError("Cannot specify both 'driver' and a 'backend' to infer the driver from.")
    return Config(driver if backend is None else TARGET_BACKEND_TO_DRIVER[backend])


def load_vm_flatbuffer(
    vm_flatbuffer: Any, *, driver: str | None = None, backend: str | None = None
) -> BoundModule:
    """A module of bytes, which are copied."""
    config = _config_of(driver, backend)
    return load_vm_module(VmModule.copy_buffer(config.vm_instance, vm_flatbuffer), config)


def load_vm_flatbuffer_file(
    path: Any,
    *,
    driver: str | None = None,
    backend: str | None = None,
    destroy_callback: Callable[[], object] | None = None,
) -> BoundModule:
    """A module of a file, which is mapped; ``destroy_callback`` is called when nothing uses it any more."""
    config = _config_of(driver, backend)
    return load_vm_module(VmModule.mmap(config.vm_instance, path, destroy_callback), config)


def normalize_value(value: Any) -> Any:
    """An array of numpy of what is a number or an array; Python's numbers become f32 and i32."""
    if value is None or isinstance(value, (list, tuple, dict)):
        return value
    if isinstance(value, DeviceArray):
        return np.asarray(value)
    array = np.asarray(value)
    narrow = {"float64": np.float32, "int64": np.int32}.get(array.dtype.name)
    if narrow is None or not isinstance(value, (int, float)):
        return array
    made = array.astype(narrow)
    if narrow is np.int32 and made != array:
        raise ValueError(f"{value} is no number of 32 bits; use a numpy type")
    return made
