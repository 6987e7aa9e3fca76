"""Programs as other packages write them: serving a language model, launching from PyTorch, samples."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree.compat.iree_runtime as rt

DATA = Path(__file__).resolve().parent.parent / "data"
FAMILIES = sorted((DATA / "releases").glob("families-*.vmfb"))
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


class Instance:
    """A model with its parameters, whose functions are attributes; arguments and caches are device arrays."""

    def __init__(self, devices: list[str], vmfb: Path | bytes, parameters: dict[str, rt.ParameterIndex]):
        self._instance = rt.VmInstance()
        self._devices = [rt.get_device(name) for name in devices]
        self._config = rt.Config(device=self._devices[0])
        if isinstance(vmfb, Path):
            vmfb = vmfb.read_bytes()
        providers = [index.create_provider(scope) for scope, index in parameters.items()]
        self._parameters = rt.create_io_parameters_module(self._instance, *providers)
        self._hal = rt.create_hal_module(self._instance, devices=self._devices)
        self._binary = rt.VmModule.copy_buffer(self._instance, vmfb)
        self._modules = rt.load_vm_modules(self._parameters, self._hal, self._binary, config=self._config)
        self.main = self._modules[-1]
        for name in self.main.vm_module.function_names:
            if "$async" not in name:
                setattr(self, name, self.main[name])

    def allocate(self, *shape: int, element_type: Any, size: int) -> rt.DeviceArray:
        device = self._devices[0]
        buffer = device.allocator.allocate_buffer(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=(rt.BufferUsage.DEFAULT),
            allocation_size=math.prod(shape) * size,
        )
        view = rt.HalBufferView(buffer, shape=shape, element_type=element_type)
        return rt.DeviceArray(device=device, buffer_view=view)


def parameters(folder: Path) -> dict[str, rt.ParameterIndex]:
    rt.save_archive_file({"w": WEIGHT, "b": np.ones(3, np.float32)}, folder / "model.irpa")
    rt.save_archive_file({"scale": rt.SplatValue(np.float32(2), 3)}, folder / "plain.irpa")
    model, plain = rt.ParameterIndex(), rt.ParameterIndex()
    model.load(str(folder / "model.irpa"))
    plain.load(str(folder / "plain.irpa"))
    return {"model": model, "": plain}


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_model_with_parameters_is_served(device: str, tmp_path: Path) -> None:
    instance: Any = Instance([device], DATA / "programs" / "parameters.vmfb", parameters(tmp_path))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_allclose(np.asarray(instance.linear(x)), (x @ WEIGHT + 1) * 2)
    instance.set_state(np.zeros(3, np.float32))
    np.testing.assert_allclose(instance.linear(x).to_host(), (x @ WEIGHT) * 2)


def test_a_cache_of_pages_is_written_where_it_is() -> None:
    instance: Any = Instance(["local-sync"], DATA / "programs" / "paged.vmfb", {})
    cache = instance.allocate(8, 4, element_type=rt.HalElementType.FLOAT_32, size=4)
    cache._buffer_view.get_buffer().fill_zero(0, 8 * 4 * 4)
    token = np.arange(8, dtype=np.float32).reshape(2, 4)
    signal = rt.HalFence.create_at(instance._devices[0].create_semaphore(0), 1)
    context, main = instance.main._context.vm_context, instance.main.vm_module
    name = next(name for name in main.function_names if name.startswith("decode_bs2") and "$async" in name)
    function = main.lookup_function(name)
    arguments, results = rt.VmVariantList(6), rt.VmVariantList(1)
    for array in (token, np.array([1, 3], np.int64)):
        arguments.push_ref(rt.asdevicearray(instance._devices[0], array)._buffer_view)
    arguments.push_ref(cache._buffer_view)
    size = int(function.reflection["iree.abi.transients.size.constant"])
    arguments.push_ref(instance._devices[0].allocator.allocate_buffer(0x30, 0xC03, size))
    arguments.push_ref(rt.HalFence(0))
    arguments.push_ref(signal)
    context.invoke(function, arguments, results)
    assert signal.wait()
    expected = np.zeros((8, 4), np.float32)
    expected[[1, 3]] = token
    np.testing.assert_array_equal(cache.to_host(), expected)
    got = rt.DeviceArray(instance._devices[0], results.get_as_object(0, rt.HalBufferView), True)
    np.testing.assert_allclose(got, token @ expected.T @ expected)


class Launchable:
    """Calls a function with fences of a timeline of its device, one point a call."""

    def __init__(self, path: Path, entry_point: str) -> None:
        driver = rt.get_driver("local-task")
        info = driver.query_available_devices()[0]
        self.device = driver.create_default_device()
        assert repr(self.device).partition(":")[0] == "local-task" and driver.dump_device_info(
            info["device_id"]
        )
        instance = rt.VmInstance()
        data = path.read_bytes()
        output = (ctypes.c_char * len(data)).from_buffer_copy(data)  # as the compiler gives it
        module = rt.VmModule.copy_buffer(instance, output)
        self.context = rt.VmContext(instance, [rt.create_hal_module(instance, self.device), module])
        self.function = module.lookup_function(entry_point)
        self.timeline, self.point = self.device.create_semaphore(0), 0

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        arguments, results = rt.VmVariantList(len(arrays) + 2), rt.VmVariantList(1)
        for array in arrays:
            arguments.push_ref(
                self.device.allocator.allocate_buffer_copy(
                    memory_type=rt.MemoryType.DEVICE_LOCAL, allowed_usage=rt.BufferUsage.DEFAULT,
                    device=self.device, buffer=array, element_type=rt.HalElementType.FLOAT_32,
                )
            )  # fmt: skip
        self.point += 1
        signal = rt.HalFence.create_at(self.timeline, self.point)
        arguments.push_ref(rt.HalFence.create_at(self.timeline, self.point - 1))
        arguments.push_ref(signal)
        self.context.invoke(self.function, arguments, results)
        signal.wait()
        returned = []
        for place in range(len(results)):
            value = results.get_variant(place)
            view = value.deref(rt.HalBufferView, True) if isinstance(value, rt.VmRef) else None
            assert view is not None and int(view.element_type) == int(rt.HalElementType.FLOAT_32)
            returned.append(view.map().asarray(list(view.shape), np.float32))
        return returned


def test_programs_are_launched_in_the_order_of_a_timeline() -> None:
    two = Launchable(DATA / "programs" / "asynchronous.vmfb", "two")
    for step in range(3):
        array = np.arange(4, dtype=np.float32) + step
        doubled, squared = two(array)
        np.testing.assert_array_equal(doubled, array * 2)
        np.testing.assert_array_equal(squared, array * array)
    assert two.timeline.query() == 3


def as_context(path: Path) -> Any:
    """The way of the notebooks."""
    config = rt.system_api.Config("local-task")
    context = rt.system_api.SystemContext(config=config)
    context.add_vm_module(
        rt.VmModule.from_flatbuffer(context.instance, path.read_bytes(), warn_if_copy=False)
    )
    return context.modules.families


def as_loaded(path: Path) -> Any:
    return rt.load_vm_flatbuffer_file(str(path), driver="local-sync")


def as_bytes(path: Path) -> Any:
    return rt.load_vm_flatbuffer(path.read_bytes(), backend="llvm-cpu")


def as_static(path: Path) -> Any:
    config = rt.Config(device=rt.get_first_device(["vulkan", "local-sync"]))
    module = rt.VmModule.mmap(config.vm_instance, str(path))
    return rt.SystemContext(vm_modules=[module], config=config).modules[module.name]


@pytest.mark.parametrize("load", [as_context, as_loaded, as_bytes, as_static])
@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_samples_run_on_modules_of_nine_releases(path: Path, load: Any) -> None:
    module = load(path)
    x, y = np.linspace(0, 1, 5, dtype=np.float32), np.full(5, 3, np.float32)
    scaled = module.scale_add(x, y, 2.0)
    assert isinstance(scaled, rt.DeviceArray) and scaled.shape == [5] and scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, x * 2 + y, rtol=1e-6)
    np.testing.assert_allclose(module["scale_add"](scaled, scaled, 1).to_host(), 2 * (x * 2 + y), rtol=1e-6)
    assert [int(value) for value in module.patch(np.array([1, 2], np.int32))] == [7, 7, 7, 1, 2, 7, 7, 7]
    for step in (1, 2):
        total = module.add_to_total(np.arange(4, dtype=np.int32))
        np.testing.assert_array_equal(total, np.arange(4) * step)
    assert int(module.choose(np.array([1, 11, 3, 4], np.int32)).to_host()) == 111
    assert module.layers(np.ones((4, 8), np.float32)).to_host().shape == (4,)
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        module.patch(np.array([1, 2, 3], np.int32))


def test_there_are_modules_of_nine_releases() -> None:
    assert len(FAMILIES) == 9


def test_device_arrays_are_reinterpreted() -> None:
    """As bfloat16 reaches PyTorch: the buffer of a view gets another element type."""
    device = rt.get_device("local-sync")
    array = rt.asdevicearray(device, np.array([1, -2, 0.5], "bfloat16"))
    words = rt.DeviceArray(
        array._device,
        rt.HalBufferView(
            buffer=array._buffer_view.get_buffer(), shape=array._buffer_view.shape,
            element_type=rt.array_interop.map_dtype_to_element_type(np.int16),
        ),
    )  # fmt: skip
    np.testing.assert_array_equal(words.to_host().view(np.uint16), [0x3F80, 0xC000, 0x3F00])


def test_copied_modules_may_work_in_place_on_constants() -> None:
    data = (DATA.parent / "security" / "sorted.vmfb").read_bytes()
    given = bytes(data)
    module = rt.load_vm_module(rt.VmModule.copy_buffer(rt.VmInstance(), given), rt.Config("local-sync"))
    assert module.sorted().to_host().tolist() == [[3, 6], [5, 7]]
    blob = module.vm_module.stashed_flatbuffer_blob
    assert blob.readonly and given == data
