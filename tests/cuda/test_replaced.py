"""Kernels of the user in the graphs of a GPU's stream: put in, checked, undone and refused.

The fake driver runs them by their names; what compiles them is tested on a GPU, where there is one.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from jitree import Module, Session
from jitree.cuda.device import CudaDevice
from jitree.cuda.executable import CudaExecutable, LoadedImage
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from jitree.kernels import Kernel, KernelCall, by_cublas, by_triton
from jitree.kernels.cuda import CudaLaunches, Mirror
from jitree.kernels.cuda_code import KernelTarget, code_of
from tests.cuda.fake import FakeDriver, FakeKernel
from tests.cuda.programs import STATELESS
from tests.cuda.test_graphs import ADD, COUNT, GRID, Rig

pytestmark = pytest.mark.usefixtures("machine_code")

REPLACED = Path(__file__).parents[2] / "perf" / "programs" / "replaced_cuda.vmfb"
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.llvm-cpu.vmfb"
Shape = tuple[int, int, int]
FIRST = "scale_dispatch_0_elementwise_8_f32"
SECOND = "scale_dispatch_1_elementwise_8_f32"
X = np.arange(8, dtype=np.float32)
TYPES = ["8xf32", "8xf32"]


def text(name: str, pointers: int, words: int = 0) -> str:
    """A kernel for the fake driver, which looks at its parameters alone."""
    kinds = [".u64"] * pointers + [".u32"] * words
    parameters = ", ".join(f".param {kind} {name}_{index}" for index, kind in enumerate(kinds))
    head = ".version 6.0\n.target sm_60\n.address_size 64\n"
    return f"{head}.visible .entry {name}({parameters})\n{{\n\tret;\n}}\n"


def _triple(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    source, target = (driver.bytes_at(word, 32).view("f4") for word in words)
    target[:] = source * (3 if (grid, block) == ((2, 1, 1), (4, 1, 1)) else 5)


def _double(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    source, target = (driver.bytes_at(word, 32).view("f4") for word in words)
    target[:] = source + source


def _astray(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    _double(driver, words, grid, block)
    driver.bytes_at(words[1] + 32, 4)[:] = 1


def _both(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    """Both dispatches of a run: (source, sum, counted, constant)."""
    source, total, counted = (driver.bytes_at(word, 16).view("<u4") for word in words[:3])
    assert total.ctypes.data == counted.ctypes.data
    counted[:] = source + (words[3] & 0xFFFFFFFF) + 1000


KERNELS = {
    "triple": FakeKernel(2, _triple), "double": FakeKernel(2, _double), "astray": FakeKernel(2, _astray),
    "both": FakeKernel(4, _both),
}  # fmt: skip


@pytest.fixture
def scaling(fake: FakeDriver, session: Session) -> Module:
    fake.kernels.update(KERNELS)
    return session.load(STATELESS)


def factor(module: Module) -> float:
    """By which the first dispatch has multiplied; the second one has added once more."""
    first, second = (np.asarray(each) for each in module.scale(X, X))
    assert np.array_equal(second, first + X)
    return float(first[1])


def kernel(name: str, **more: Any) -> Kernel:
    return Kernel(text(name, 2), TYPES, **more)


def test_a_kernel_runs_in_graphs_until_it_is_undone(scaling: Module) -> None:
    """Machine code has the graphs of what ran before, and those of the kernel have its own grid and block."""
    session = scaling.session
    assert [factor(scaling) for _ in range(4)] == [2] * 4
    handle = session.replace(f"module.{FIRST}", kernel("triple", grid=2, block=4))
    assert handle.names == (FIRST,)
    assert [factor(scaling) for _ in range(4)] == [3] * 4
    handle.undo()
    assert [factor(scaling) for _ in range(4)] == [2] * 4
    with session.replace(FIRST, kernel("triple")):
        assert [factor(scaling) for _ in range(4)] == [5] * 4  # as the dispatch was launched
    assert factor(scaling) == 2


def test_a_grid_may_depend_on_what_the_dispatch_gives(scaling: Module) -> None:
    grids = []

    def grid(call: KernelCall) -> int:
        grids.append(call.workgroups)
        return 0 if len(grids) > 6 else 1 + call.workgroups[0]

    with scaling.session.replace(FIRST, kernel("triple", grid=grid, block=4), atol=100):
        assert [factor(scaling) for _ in range(4)] == [2, 3, 3, 3]
        assert set(grids) == {(1, 1, 1)}
        with pytest.raises(InvalidArgumentError, match="grid: expected one to three positive numbers"):
            [factor(scaling) for _ in range(4)]
    assert factor(scaling) == 2


def test_the_first_dispatch_is_the_original_s_and_the_next_the_kernel_s(scaling: Module) -> None:
    with scaling.session.replace(FIRST, kernel("triple", grid=2, block=4), atol=100):
        assert [factor(scaling) for _ in range(4)] == [2, 3, 3, 3]
    assert factor(scaling) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "triple",
            rf"and {FIRST} differ in binding 1 of {FIRST} \(8xf32\) at \(1,\): 5.0 and 2.0",
        ),
        ("astray", rf"kernel astray and {FIRST}: the kernel has written 4 bytes outside of bindings"),
    ],
)
def test_a_wrong_kernel_is_told(scaling: Module, name: str, said: str) -> None:
    refused = pytest.raises(FailedPreconditionError, match=said)
    with scaling.session.replace(FIRST, kernel(name), verify=True), refused:
        scaling.scale(X, X)
    assert factor(scaling) == 2


C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int32)(int)
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (text("triple", 3), {}, InvalidArgumentError, "takes 3 pointers and 0 words, but .* gives 2 pointers"),
    (text("triple", 2, 1), {}, InvalidArgumentError, "takes 2 pointers and 1 words"),
    (
        text("triple", 2) + text("double", 2),
        {"entry": "half"},
        InvalidArgumentError,
        "has triple, double",
    ),
    (text("triple", 2), {"block": 2048}, InvalidArgumentError, "2048 threads"),
    (text("triple", 2), {"grid": 0}, InvalidArgumentError, "grid: expected one to three positive"),
    (text("triple", 2), {"shared_memory": -1}, InvalidArgumentError, "shared_memory: expected bytes"),
    (C_FUNCTION, {}, UnimplementedError, "PTX, CUDA C"),
    (lambda one: None, {}, InvalidArgumentError, r"<lambda>\(one\) is to take 2 arrays"),
    (np.copyto, {"grid": 2}, InvalidArgumentError, "kernel copyto: a Python function is called once"),
]


@pytest.mark.parametrize(("function", "more", "error", "said"), REFUSED)
def test_what_cannot_be_launched_is_refused_before_it_runs(
    scaling: Module, function: Any, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        scaling.session.replace(FIRST, Kernel(function, TYPES, **more))
    assert factor(scaling) == 2


def test_a_text_is_refused_on_local_devices() -> None:
    with Session("local-sync") as session:
        session.load(DIGITS)
        with pytest.raises(InvalidArgumentError, match="a text runs on a GPU"):
            session.replace("*softmax*", text("triple", 2))


def threefold(x: Any, y: Any) -> None:
    y[:] = x * 3


def on_device(driver: FakeDriver) -> Any:
    """Reads and writes what the array interface says, as CuPy would."""

    def function(x: Any, y: Any, call: KernelCall) -> None:
        interfaces = [each.__cuda_array_interface__ for each in (x, y)]
        assert all(each["shape"] == (8,) and each["typestr"] == "<f4" for each in interfaces)
        assert all(each["stream"] == call.stream != 0 for each in interfaces)
        source, target = (driver.bytes_at(each["data"][0], 32).view("f4") for each in interfaces)
        target[:] = source * 3

    return function


@pytest.mark.parametrize("memory", ["host", "device"])
def test_the_host_calls_python_functions_at_their_place_in_the_stream(
    fake: FakeDriver, scaling: Module, memory: Any
) -> None:
    session = scaling.session
    assert [factor(scaling) for _ in range(3)] == [2] * 3
    own = Kernel(threefold if memory == "host" else on_device(fake), TYPES, memory=memory)
    with session.replace(FIRST, own):
        assert [factor(scaling) for _ in range(4)] == [3] * 4
        with session.tap(FIRST):
            assert factor(scaling) == 3
    with session.replace(FIRST, own, atol=100):
        assert [factor(scaling) for _ in range(3)] == [2, 3, 3]
    refused = pytest.raises(FailedPreconditionError, match="differ in binding 1")
    with session.replace(FIRST, own, verify=True), refused:
        scaling.scale(X, X)
    assert factor(scaling) == 2


def test_what_a_function_raises_is_the_error_of_the_call(scaling: Module) -> None:
    def raising(x: Any, y: Any) -> None:
        if x[1] == 1:
            raise ValueError("eight numbers")

    with scaling.session.replace(FIRST, Kernel(raising, TYPES)):
        for _ in range(3):
            with pytest.raises(ValueError, match="eight numbers") as caught:
                factor(scaling)
            assert f"in kernel raising, which replaces {FIRST}" in "".join(caught.value.__notes__)
            assert any(entry.name == "raising" for entry in caught.traceback)
    assert [factor(scaling) for _ in range(3)] == [2] * 3


def test_ranges_that_touch_are_copied_apart() -> None:
    mirror = Mirror([(64, 8), (72, 8), (76, 8), (64, 4), (64, 0)])
    assert sorted((address, len(data)) for address, data in mirror.regions if len(data)) == [
        (64, 8),
        (72, 12),
    ]
    mirror.at(72, 8)[:] = 7
    assert mirror.at(76, 8).tolist() == [7] * 4 + [0] * 4


def test_cublas_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, mode: int) -> None:
        raise OSError(name)

    by_cublas.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UnavailableError, match="pip install nvidia-cublas"):
        by_cublas.product(4, 5, 6)


def test_a_run_is_one_launch_where_its_dispatches_follow_each_other(
    fake: FakeDriver, device: CudaDevice
) -> None:
    fake.kernels.update(KERNELS)
    rig = Rig(fake, device)
    source, target, other = rig.buffer(1, 2, 3, 4), rig.buffer(), rig.buffer()
    commands = rig.record()
    rig.add(commands, source, target, 5)
    commands.execution_barrier(28, 13)
    commands.dispatch(rig.executable, COUNT, GRID, [], [(0, target, 0, -1)])
    commands.execution_barrier(28, 13)
    rig.add(commands, source, other, 7)  # alone: as compiled
    commands.finalize()
    rig.run(commands).wait()
    assert rig.read(target) == [7, 8, 9, 10]
    functions = [(cast(CudaExecutable, rig.executable), number) for number in (ADD, COUNT)]
    launches = CudaLaunches(Kernel(text("both", 3, 1)), functions, None, [device])
    launches.begin()
    rig.run(commands).wait()  # a list that has been planned before
    assert rig.read(target) == [1006, 1007, 1008, 1009] and rig.read(other) == [8, 9, 10, 11]
    launches.undo()

    def both(source: Any, total: Any, counted: Any, call: KernelCall) -> None:
        assert list(call.constants) == [5]
        counted[:] = source + call.constants[0] + 2000

    called = CudaLaunches(Kernel(both, ["4xi32"] * 3), functions, None, [device])
    called.begin()
    rig.run(commands).wait()
    assert rig.read(target) == [2006, 2007, 2008, 2009] and rig.read(other) == [8, 9, 10, 11]
    called.undo()
    rig.run(commands).wait()
    assert rig.read(target) == [7, 8, 9, 10]


SOURCE = 'extern "C" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }'


def _by_cupy() -> Kernel:
    cupy = pytest.importorskip("cupy")
    return Kernel(cupy.RawKernel(SOURCE, "twice"), TYPES, grid=1, block=8)


def _by_numba() -> Kernel:
    cuda = pytest.importorskip("numba.cuda")
    if not hasattr(np, "row_stack"):
        pytest.skip("this numba-cuda needs an older numpy")

    @cuda.jit  # type: ignore[untyped-decorator]
    def twice(x: Any, y: Any) -> None:
        place = cuda.grid(1)
        if place < x.shape[0]:
            y[place] = 2 * x[place]

    return Kernel(twice, TYPES, grid=2, block=4)


@pytest.mark.parametrize(
    "make",
    [lambda: Kernel(SOURCE, TYPES, grid=1, block=8), _by_cupy, _by_numba],
    ids=["C++", "CuPy", "Numba"],
)
def test_a_gpu_runs_kernels_of_all_kinds(gpu: CudaDevice, make: Any) -> None:
    with Session(device=gpu) as session:
        module = session.load(STATELESS)
        with session.replace(FIRST, make(), verify=True):
            assert [factor(module) for _ in range(3)] == [2] * 3


READY: list[tuple[str, list[list[int]], Any]] = [
    ("product", [[40, 70], [70, 50]], np.matmul),
    ("softmax", [[5, 70]], lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    (
        "layer_norm", [[5, 70], [70], [70]],
        lambda x, f, s: (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * f + s,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "reference"), READY, ids=[name for name, _, _ in READY])
def test_ready_kernels_of_triton(gpu: CudaDevice, name: str, shapes: list[list[int]], reference: Any) -> None:
    """Sizes that no block divides."""
    pytest.importorskip("triton")
    inputs = [np.random.default_rng(1).standard_normal(shape, np.float32) for shape in shapes]
    made = by_triton.product(40, 50, 70) if name == "product" else getattr(by_triton, name)(5, 70)
    expected = reference(*inputs).astype(np.float32)
    count = len(shapes) + 1
    tensors = [made.tensors(["it"], [count])[0]]
    code = code_of(made, KernelTarget(gpu.context, ["it"], [count], [0], tensors))
    image = LoadedImage(gpu.context, code.text)
    grid, block, shared_memory = cast(Any, (made.grid, code.block, code.shared_memory))
    buffers = [gpu.device_allocator.allocate(0x30, 0, x.nbytes) for x in (*inputs, expected)]
    for buffer, x in zip(buffers, inputs, strict=False):
        gpu.write_buffer(buffer, x.reshape(-1).view(np.uint8))
    numbers = array(
        "q", [each if isinstance(each, int) else buffers[each.number].address for each in code.parameters]
    )
    first = numbers.buffer_info()[0]
    pointers = array("q", range(first, first + 8 * len(numbers), 8))
    with gpu.stream.lock:
        gpu.context.enter()
        gpu.stream.flush()
        gpu.context.api.launch_kernel(
            image.function(code.name), grid, block, shared_memory, gpu.stream.handle,
            pointers.buffer_info()[0],
        )  # fmt: skip
        gpu.context.api.synchronize_stream(gpu.stream.handle)
    found = np.asarray(gpu.read_buffer(buffers[-1])).view(np.float32).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _multiply(weights: Any, scales: Any, _numbers: Any, x: Any, _same: Any, out: Any) -> None:
    out[:] = x @ (weights * scales)


def _own_pair() -> Kernel:
    """A run by one kernel: rows in y, columns in x."""
    source = """extern "C" __global__ void both(const signed char* weights, const float* scales,
        float* numbers, const float* x, const float* same, float* out) {
        int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
        float sum = 0;
        for (int k = 0; k < 1024; ++k) sum += x[row * 1024 + k] * weights[k * 1024 + column];
        out[row * 1024 + column] = sum * scales[column];
    }"""
    return Kernel(source, ["?xi8", *["?xf32"] * 5], grid=(8, 64), block=128)


SIZES = [
    "1024x1024xi8", "1024xf32", "1024x1024xf32", "64x1024xf32", "1024x1024xf32", "64x1024xf32",
]  # fmt: skip
PAIR = ["*dequantised_dispatch_0*", "*dequantised_dispatch_1*"]
ON_GPU: list[tuple[str, Any, Callable[[], Kernel]]] = [
    ("dequantised", PAIR, _own_pair),
    ("dequantised", PAIR, lambda: Kernel(_multiply, SIZES)),
    ("product", "*product_dispatch_0*", lambda: by_cublas.product(1024, 1024, 1024)),
    ("product", "*product_dispatch_0*", lambda: by_triton.product(1024, 1024, 1024)),
    ("softmax", "*softmax_dispatch_0*", lambda: by_triton.softmax(16384, 1024)),
]


@pytest.mark.parametrize(("name", "names", "make"), ON_GPU)
def test_a_gpu_checks_dispatches_and_runs(gpu: CudaDevice, name: str, names: Any, make: Any) -> None:
    """Results of the first call, which is checked, are the original's, and the others' near them."""
    shapes: dict[str, list[Any]] = {
        "dequantised": [(64, 1024), (1024, 1024), (1024,)],
        "product": [(1024, 1024)] * 2,
    }
    generator = np.random.default_rng(1)
    inputs = [generator.standard_normal(s, np.float32) for s in shapes.get(name, [(16384, 1024)])]
    if name == "dequantised":
        inputs[1] = np.clip(inputs[1] * 40, -128, 127).astype(np.int8)
    try:
        kernel = make()
    except UnavailableError as error:
        pytest.skip(str(error))
    with Session(device=gpu) as session:
        function = session.load(REPLACED)[name]
        expected = np.asarray(function(*inputs))
        with session.replace(names, kernel, atol=0.3, rtol=1e-2):
            assert np.array_equal(np.asarray(function(*inputs)), expected)
            for _ in range(3):
                assert np.allclose(np.asarray(function(*inputs)), expected, atol=0.3, rtol=1e-2)
        with session.replace(names, kernel, ulp=0) as handle:
            with suppress(FailedPreconditionError):  # unless all bits agree
                function(*inputs)
            assert handle.names
        assert np.array_equal(np.asarray(function(*inputs)), expected)


def test_a_gpu_lends_its_memory_to_functions(gpu: CudaDevice) -> None:
    cupy = pytest.importorskip("cupy")

    def threefold_there(x: Any, y: Any, call: KernelCall) -> None:
        with cupy.cuda.Stream.from_external(call):
            cupy.asarray(y)[:] = cupy.asarray(x) * 3

    with Session(device=gpu) as session:
        module = session.load(STATELESS)
        for function, memory in ((threefold, "host"), (threefold_there, "device")):
            with session.replace(FIRST, Kernel(function, TYPES, memory=memory)):
                assert [factor(module) for _ in range(4)] == [3] * 4
        assert factor(module) == 2
