"""Lists, buffers, references, fences, and modules written in Python, by iree.runtime's names."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree.compat.iree_runtime as rt

DATA = Path(__file__).resolve().parent.parent / "data"


def device() -> Any:
    return rt.get_device("local-sync")


def test_zeros_into_memory_that_is_only_read() -> None:
    room = np.ones(128, np.uint8)
    memory = room[-room.ctypes.data % 64 :][:64]
    memory.flags.writeable = False
    buffer = device().allocator.import_host_allocation(memory, rt.MemoryType.DEVICE_LOCAL, 0)
    with pytest.raises(RuntimeError, match="PERMISSION_DENIED; fill_zero: a buffer that is read-only"):
        buffer.fill_zero(0, 8)
    assert memory.all()


def test_a_list_holds_values_of_any_type() -> None:
    inner = rt.VmVariantList(1)
    inner.push_int(3)
    made = rt.VmVariantList(4)
    made.push_int(10**10)
    made.push_float(2.5)
    made.push_list(inner)
    made.push_ref(rt.HalFence(2))
    assert repr(made) == "<VmVariantList(4): [10000000000, 2.500000, List[3], fence(0)]>"
    assert [made.get_variant(0), made.get_variant(1)] == [10**10, 2.5]
    assert made.get_as_list(2) == inner and made.get_as_ref(2) == inner.ref
    assert made.get_as_object(2, rt.HalFence) is None
    assert made.get_serialized_trace_value(2) == {"type": "vm.list", "items": [{"type": "value", "i64": 3}]}
    with pytest.raises(IndexError, match=r"index 9 out of bounds \(4\)"):
        made.get_variant(9)
    with pytest.raises(ValueError, match="not a ref"):
        made.get_as_ref(0)
    with pytest.raises(TypeError, match="Cannot dereference"):
        inner.ref.deref(rt.HalFence)


def test_a_buffer_has_the_buffer_protocol() -> None:
    made = rt.VmBuffer(4)
    memoryview(made)[:] = b"abcd"
    assert bytes(made) == b"abcd" and made.ref.deref(rt.VmBuffer) == made
    with pytest.raises(TypeError):
        memoryview(rt.VmBuffer(4, mutable=False))[:] = b"abcd"


def test_a_module_written_in_python_is_called() -> None:
    class Counter:
        def __init__(self, interface: rt.PyModuleInterface) -> None:
            self.total = 0

        def add(self, number: int, values: rt.VmRef) -> tuple[int, rt.VmRef]:
            self.total += number + values.deref(rt.VmVariantList).get_variant(0)
            return self.total, values

        def fail(self) -> None:
            raise KeyError("nothing here")

    interface = rt.PyModuleInterface("counter", Counter)
    interface.export("add", "0ir_ir", Counter.add)
    interface.export("fail", "0v", Counter.fail)
    module = interface.create()
    context = rt.VmContext(rt.VmInstance(), modules=(module,))
    add = module.lookup_function("add")
    arguments, results = rt.VmVariantList(2), rt.VmVariantList(2)
    values = rt.VmVariantList(1)
    values.push_int(5)
    arguments.push_int(2)
    arguments.push_list(values)
    for _ in range(2):
        context.invoke(add, arguments, results)
    assert repr(results) == "<VmVariantList(2): [14, List[5]]>"
    with pytest.raises(RuntimeError, match="KeyError: 'nothing here'"):
        context.invoke(module.lookup_function("fail"), rt.VmVariantList(0), rt.VmVariantList(0))
    with pytest.raises(RuntimeError, match="made already"):
        interface.export("late", "0v", Counter.fail)
    assert interface.initialized
    del context, module, results, arguments
    gc.collect()
    assert interface.destroyed, "a function keeps its module"
    other = rt.VmContext(rt.VmInstance(), modules=())
    with pytest.raises(
        RuntimeError, match="NOT_FOUND; the module 'counter' of function 'add' has been dropped"
    ):
        other.invoke(add, rt.VmVariantList(0), rt.VmVariantList(0))


def test_semaphores_and_fences_wait_in_nanoseconds() -> None:
    semaphore = device().create_semaphore(0)
    fence = rt.HalFence.create_at(semaphore, 2)
    assert not fence.wait(timeout=1000) and not semaphore.wait(2, deadline=0)
    with pytest.raises(ValueError, match="both"):
        fence.wait(timeout=1, deadline=1)
    threading.Timer(0.02, semaphore.signal, (2,)).start()
    assert fence.wait() and semaphore.query() == 2
    failing = device().create_semaphore(0)
    failing.fail("no more")
    with pytest.raises(RuntimeError, match=r"^synchronous semaphore failure.*no more"):
        failing.wait(1)
    joined = rt.HalFence.join([fence, rt.HalFence.create_at(failing, 1)])
    assert joined.timepoint_count == 2


def test_queue_operations_follow_their_fences() -> None:
    target = device()
    data = np.arange(64, dtype=np.float32)
    source = target.allocator.allocate_buffer_copy(
        rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, target, data
    )
    copy = target.allocator.allocate_buffer(rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, 256)
    semaphore = target.create_semaphore(0)
    target.queue_copy(source, copy, [(semaphore, 0)], [(semaphore, 1)])
    commands = rt.HalCommandBuffer(target)
    commands.fill(copy, np.float32(7), 0, 16, end=True)
    target.queue_execute(commands, [(semaphore, 1)], [(semaphore, 2)])
    assert semaphore.wait(2)
    got = copy.map().asarray([64], np.float32)
    np.testing.assert_array_equal(got, [7, 7, 7, 7, *data[4:]])
    with pytest.raises(ValueError, match="length must be less than"):
        small = target.allocator.allocate_buffer(rt.MemoryType.DEVICE_LOCAL, rt.BufferUsage.DEFAULT, 8)
        target.queue_copy(source, small, [], [])
    with pytest.raises(ValueError, match="pairs of a HalSemaphore"):
        target.queue_copy(source, copy, [1], [])


def test_an_event_loop_waits_for_semaphores() -> None:
    async def wait() -> str:
        bridge = rt.HalDeviceLoopBridge(device(), asyncio.get_running_loop())
        semaphore = device().create_semaphore(0)
        future = bridge.on_semaphore(semaphore, 1, "there")
        threading.Timer(0.02, semaphore.signal, (1,)).start()
        found: str = await future
        bridge.stop()
        with pytest.raises(RuntimeError, match="stopped"):
            bridge.on_semaphore(semaphore, 2, "never")
        return found

    assert asyncio.run(wait()) == "there"


def test_arrays_say_when_they_go_to_the_host() -> None:
    array = rt.asdevicearray(device(), np.arange(6, dtype=np.int32).reshape(2, 3))
    assert (array.shape, array.dtype) == ([2, 3], np.int32)
    assert repr(array) == "<IREE DeviceArray: shape=[2, 3], dtype=int32>"
    with pytest.raises(ValueError, match="cannot be implicitly transferred"):
        np.asarray(array)
    with pytest.raises(ValueError, match="cannot be implicitly transferred"):
        array + 1
    np.testing.assert_array_equal(array.to_host(), [[0, 1, 2], [3, 4, 5]])
    assert array.is_host_accessible and float(array[1, 2]) == 5.0
    with pytest.raises(ValueError, match="Could not map dtype"):
        rt.asdevicearray(device(), np.zeros(3, "V1"))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float64", "complex64", "bfloat16"])
def test_arrays_of_every_type_come_back(dtype: str) -> None:
    elements = np.arange(12).reshape(3, 4).astype(dtype)
    array = rt.asdevicearray(device(), elements)
    assert array.dtype == elements.dtype
    np.testing.assert_array_equal(array.to_host(), elements)


def test_enumerations_give_integers() -> None:
    both = rt.BufferUsage.TRANSFER | rt.BufferUsage.MAPPING
    assert type(both) is int and both == 0x9000003
    assert rt.MemoryType.DEVICE_LOCAL & 0x10 == 0x10 and rt.MemoryType.NONE != 0
    assert rt.HalElementType.map_to_dtype(rt.HalElementType.SINT_16) == np.int16
    assert not rt.HalElementType.is_byte_aligned(rt.HalElementType.INT_4)


def test_a_sink_that_holds_its_context_goes_with_it() -> None:
    instance = rt.VmInstance()
    seen: list[Any] = []

    def made() -> weakref.ref[Any]:
        context: Any
        sink = rt.HalModuleDebugSink(lambda key, views: seen.append((context, key, views)))
        hal = rt.create_hal_module(instance, device(), debug_sink=sink)
        path = DATA / "releases" / "simple_mul-3.13.0.vmfb"
        context = rt.VmContext(instance, modules=[hal, rt.VmModule.mmap(instance, str(path))])
        return weakref.ref(context)

    context = made()
    gc.collect()
    assert context() is None


def test_an_exception_of_a_module_written_in_python_is_the_cause() -> None:
    interface = rt.PyModuleInterface("failing", lambda interface: None)
    interface.export("fail", "0v_v", lambda state: int("nothing"))
    module = interface.create()
    context = rt.VmContext(rt.VmInstance(), modules=[module])
    with pytest.raises(RuntimeError, match="ValueError") as raised:
        context.invoke(module.lookup_function("fail"), rt.VmVariantList(0), rt.VmVariantList(0))
    assert isinstance(raised.value.__cause__, ValueError)


def test_wrappers_are_not_made_of_anything() -> None:
    for kind in (rt.HalDevice, rt.HalDriver, rt.HalAllocator, rt.MappedMemory, rt.VmModule, rt.FileHandle,
                 rt.ParameterProvider):  # fmt: skip
        with pytest.raises(TypeError):
            kind(3)
