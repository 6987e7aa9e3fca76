"""Launches kernels of the user in place of those of a GPU's executables.

Plans and graphs name kernels, so they are forgotten whenever one is put in or undone. What is launched then
is found as before: the user's kernel is a node of the graph like others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.base.events import DISPATCH, EventReader, listen, stop_listening
from jitree.cuda.device import CudaDevice
from jitree.cuda.executable import CudaExecutable, LoadedImage, OwnCall, OwnKernel, OwnParameter, check_limits
from jitree.errors import InvalidArgumentError, UnimplementedError, is_interruption
from jitree.hal.stepwise import merged
from jitree.kernels.cuda_code import KernelTarget, code_of, is_called
from jitree.kernels.kernel import DEVICE, GRID, KernelCall, blocks
from jitree.kernels.local import failure_of
from jitree.kernels.verification import ZONE, CheckedDispatch, CopiedMemory
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.cuda.api import Owned
    from jitree.cuda.stream import Stream
    from jitree.hal.device import Device
    from jitree.hal.stepwise import DeviceStep, Extent
    from jitree.kernels.kernel import BoundTensor, Kernel
    from jitree.kernels.verification import CopiedRange
    from jitree.observe.tolerance import Tolerance


class DeviceTensor:
    """Shows a tensor in the GPU's memory to other libraries. CuPy, PyTorch and Numba know the array
    interface."""

    def __init__(self, tensor: BoundTensor, extent: Extent, stream: Stream) -> None:
        self.address = extent[0] + (tensor.offset or 0)
        self.shape = tuple(tensor.shape_in(extent[1]))
        self.dtype = tensor.dtype
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """With bits for elements that numpy has not."""
        dtype = f"<u{self.dtype.itemsize}" if self.dtype.kind == "V" else self.dtype.str
        stream = int(self.stream.handle)
        data = {"data": (self.address, False), "version": 3, "strides": None, "stream": stream}
        return {"shape": self.shape, "typestr": dtype, **data}


class StreamCalls:
    """Calls a function for a dispatch or a run. The stream's lock is held."""

    def __init__(
        self, kernel: Kernel, names: Sequence[str], tensors: Sequence[Sequence[BoundTensor]]
    ) -> None:
        self._kernel, self._tensors = kernel, tensors
        self._what = f"in kernel {kernel.name}, which replaces {' and '.join(names)}"
        self._takes_call = kernel.takes_call(sum(map(len, tensors)))
        if kernel.by != GRID or kernel.grid or kernel.block or kernel.shared_memory or kernel.arguments:
            raise InvalidArgumentError(
                f"kernel {kernel.name}: a Python function is called once, on the host; by=, grid=, block=, "
                "shared_memory= and arguments= are of kernels that a GPU runs"
            )

    def __call__(self, stream: Stream, given: OwnCall) -> None:
        extents = iter(zip(given.addresses, given.lengths, strict=True))
        bound = [[next(extents) for _ in range(count)] for count in given.counts]
        if self._kernel.memory == DEVICE:
            self._call(bound, stream, given, lambda tensor, extent: DeviceTensor(tensor, extent, stream))
            return
        mirror = Mirror([extent for part in bound for extent in part])
        mirror.copy("cuMemcpyDtoHAsync", stream)
        before = [data.copy() for _, data in mirror.regions]
        self._call(bound, stream, given, lambda tensor, extent: tensor.view(mirror.at(*extent)))
        mirror.keep_changed(before)
        mirror.copy("cuMemcpyHtoDAsync", stream)

    def _call(self, bound: Sequence[Sequence[Extent]], stream: Stream, given: OwnCall, array: Any) -> None:
        arrays = [
            array(tensor, extents[tensor.binding])
            for tensors, extents in zip(self._tensors, bound, strict=True)
            for tensor in tensors
        ]
        if self._takes_call:
            constants = np.array(given.constants, np.uint32)
            arrays.append(KernelCall((0, 0, 0), given.grid, constants, int(stream.handle)))
        try:
            self._kernel.function(*arrays)
        except Exception as error:
            if is_interruption(error):
                raise
            raise failure_of(error, self._what) from error


class Mirror:
    """Holds ranges of the device on the host; those that overlap share memory."""

    def __init__(self, ranges: Sequence[Extent]) -> None:
        self.regions = [(first, np.zeros(length, np.uint8)) for first, length in merged(ranges)]

    def at(self, address: int, length: int) -> npt.NDArray[np.uint8]:
        for first, data in self.regions:
            if first <= address and address + length <= first + len(data):
                return data[address - first : address - first + length]
        raise ValueError(address)

    def moved(self, extent: Extent) -> Extent:
        return address_of(self.at(*extent)), extent[1]

    def keep_changed(self, before: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Leaves out what a function has only read."""
        pairs = zip(self.regions, before, strict=True)
        self.regions = [region for region, old in pairs if not np.array_equal(region[1], old)]

    def copy(self, function: str, stream: Stream) -> None:
        """Copies all from the device or to it, and waits."""
        for address, data in self.regions:
            sides = [address_of(data), address]
            if function.startswith("cuMemcpyHtoD"):
                sides.reverse()
            if len(data):
                stream.api.call(function, *sides, len(data), stream.handle)
        stream.api.synchronize_stream(stream.handle)
        stream.api.check_alive()


# -- Functions of the user, called on the host -----------------------------------------------------------
#
# They get copies of the bindings there, or what lies in the GPU's memory, and are called in the order of
# the stream, between the graphs of what comes before and after.


class CudaLaunches:
    """Launches a kernel in place of a function or a run."""

    def __init__(
        self,
        kernel: Kernel,
        functions: Sequence[tuple[CudaExecutable, int]],
        verify: Tolerance | None,
        devices: Sequence[Device],
    ) -> None:
        """``verify``: as of :class:`jitree.kernels.local.LocalKernel`."""
        self.functions = functions
        self.names = [executable.function_name(ordinal) for executable, ordinal in functions]
        self.name = " and ".join(self.names)
        self._kernel = kernel
        context = functions[0][0].context
        self._devices = [d for d in devices if isinstance(d, CudaDevice) and d.context is context]
        if any(executable.context is not context for executable, _ in functions):
            raise UnimplementedError(f"replace: {self.name} run on several devices")
        bindings = [executable.binding_count(ordinal) or 0 for executable, ordinal in functions]
        constants = [executable.constant_count(ordinal) or 0 for executable, ordinal in functions]
        needs_tensors = kernel.types or verify is not None or is_called(kernel)
        self.tensors = kernel.tensors(self.names, bindings) if needs_tensors else []
        target = KernelTarget(context, self.names, bindings, constants, self.tensors)
        self._parameters = target.parameters
        self.own = self._made(target)
        self._verification = None if verify is None else Verification(self, verify)

    def begin(self) -> None:
        """Puts the kernel in, or has the first dispatch verified before."""
        if self._verification is None:
            self.install()
        else:
            for device in self._devices:
                listen(device, self._verification)

    def _made(self, target: KernelTarget) -> OwnKernel:
        kernel, original = self._kernel, self.functions[-1][0].functions.kernels[self.functions[-1][1]]
        entries = tuple(executable.functions.entry_point(ordinal) for executable, ordinal in self.functions)
        if is_called(kernel):
            call = StreamCalls(kernel, self.names, self.tensors)
            parameters = target.parameters
            return OwnKernel(
                kernel.name, None, original.block, 0, None, parameters, True, entries, call, call
            )
        code = code_of(kernel, target)
        image = LoadedImage(target.context, code.text)
        launched = image.function(code.name)
        block = kernel.block or code.block or original.block
        shared = original.shared_memory if code.shared_memory is None else code.shared_memory
        shared = shared if kernel.shared_memory is None else kernel.shared_memory
        check_limits(target.context, launched, block, shared)
        own = OwnKernel(
            code.name, launched, block, shared, None, code.parameters, image.waits, entries, image
        )
        if callable(kernel.grid):
            return own._replace(call=self._launch)
        return own._replace(grid=kernel.grid)

    def install(self) -> None:
        """Launches the kernel from now on."""
        self._stop_verifying()
        for executable, ordinal in self.functions:
            executable.functions.own_kernels[ordinal] = self.own
        self._forget_plans()

    def undo(self) -> None:
        """Launches the originals again."""
        self._stop_verifying()
        for executable, ordinal in self.functions:
            executable.functions.own_kernels.pop(ordinal, None)
        self._forget_plans()

    def _stop_verifying(self) -> None:
        if self._verification is not None:
            for device in self._devices:
                stop_listening(device, self._verification)

    def _forget_plans(self) -> None:
        for device in self._devices:
            with device.stream.lock:
                device.context.generation += 1
                device.stream.share.forget_programs()

    def run_on(
        self, addresses: Sequence[Sequence[int]], steps: Sequence[DeviceStep], grid: tuple[int, int, int]
    ) -> None:
        """Runs the kernel on other memory, and waits for it."""
        lengths = [length for step in steps for _, length in step.operands]
        constants = [number for step in steps for number in step.constants]
        given = OwnCall([*chain(*addresses)], lengths, [*map(len, addresses)], constants, grid)
        stream = self.stream
        (self.own.call or self._launch)(stream, given)
        stream.api.synchronize_stream(stream.handle)

    def _launch(self, stream: Stream, given: OwnCall) -> None:
        """Launches the kernel for what a dispatch or a run gives."""
        words = chain(given.addresses, given.constants)
        numbers, given_words = array("q"), dict(zip(self._parameters, words, strict=True))
        for wanted in self.own.parameters:
            numbers.append(given_words[wanted] if isinstance(wanted, OwnParameter) else wanted)
        first = numbers.buffer_info()[0]
        pointers = array("q", range(first, first + 8 * len(numbers), 8))
        own, grid = self.own, self.own.grid or given.grid
        if callable(self._kernel.grid):
            constants = np.array(given.constants, np.uint32)
            grid = blocks("grid", self._kernel.grid(KernelCall((0, 0, 0), given.grid, constants))) or grid
        stream.api.launch_kernel(
            own.function, grid, own.block, own.shared_memory, stream.handle, pointers.buffer_info()[0]
        )

    @property
    def stream(self) -> Any:
        return self._devices[0].stream


class Verification(EventReader):
    """Compares the first dispatch with the kernel on copies, then installs it."""

    def __init__(self, launches: CudaLaunches, allowed: Tolerance) -> None:
        self._launches = launches
        self._allowed = allowed
        self._steps: list[DeviceStep] = []
        """Of a run, those that have begun."""
        self._before: list[tuple[Extent, npt.NDArray[np.uint8]]] = []
        self._between: list[tuple[Extent, npt.NDArray[np.uint8]]] = []
        """What the last one of a run begins with."""

    def submitted(self, work: Any) -> EventReader | None:
        self._steps, self._before = [], []
        return self

    def begins(self, event: Any) -> None:
        functions = self._launches.functions
        place = len(self._steps)
        if event.kind == DISPATCH and (event.executable, event.function) == functions[place % len(functions)]:
            self._steps.append(event)
            self._before += [(extent, np.array(event.look(extent))) for extent in event.operands]
            if len(self._steps) == len(functions):
                self._between = [(extent, np.array(event.look(extent))) for extent, _ in self._before]
        else:
            self._steps, self._before = [], []

    def ends(self, event: Any) -> None:
        if len(self._steps) == len(self._launches.functions) and event is self._steps[-1]:
            steps, before = self._steps, self._before
            self._steps, self._before = [], []
            self._compare(steps, before)
            self._launches.install()

    def _compare(
        self, steps: Sequence[DeviceStep], before: Sequence[tuple[Extent, npt.NDArray[np.uint8]]]
    ) -> None:
        """Runs the kernel on copies, and compares its results with those of the originals.

        The host compares; the copies are of what the dispatches got."""
        ranges = [extent for extent, _ in before]
        mirror = Mirror(ranges)
        for (address, _), data in reversed(before):  # what was first seen counts
            mirror.at(address, len(data))[:] = data
        copied = CopiedMemory([mirror.moved(extent) for extent in ranges])
        for (address, _), data in self._between:
            mirror.at(address, len(data))[:] = data
        copied.keep_changes()
        launches = self._launches
        counts = [len(step.operands) for step in steps]
        with launches.stream.lock:
            launches.stream.context.enter()
            launches.stream.flush()
            _run_on_copies(launches, copied, counts, steps)
        for (address, length), _ in before:
            mirror.at(address, length)[:] = steps[-1].look((address, length))
        what = f"kernel {launches.own.name} and {launches.name}"
        parts, moved = [], iter([mirror.moved(extent) for extent in ranges])
        for step, tensors in zip(steps, launches.tensors, strict=True):
            parts.append(CheckedDispatch(step.name, tensors, [next(moved) for _ in step.operands]))
        copied.require_near(what, parts, self._allowed)


def _run_on_copies(
    launches: CudaLaunches, copied: CopiedMemory, counts: Sequence[int], steps: Sequence[DeviceStep]
) -> None:
    """Launches the kernel on copies on the device. They come back with the zones around them. The stream's
    lock is held."""
    stream: Any = launches.stream
    api = stream.api
    made: list[tuple[Owned, CopiedRange]] = []
    try:
        for region in copied.regions:
            size = len(region.bytes)
            owned = stream.context.make("cuMemAlloc", (size,), "cuMemFree")
            made.append((owned, region))
            api.call("cuMemcpyHtoDAsync", int(owned.handle), address_of(region.bytes), size, stream.handle)
        places = iter([_place(extent, made) for extent in copied.extents])
        launches.run_on(
            [[next(places) for _ in range(count)] for count in counts], steps, steps[-1].workgroups
        )
        for owned, region in made:
            size = len(region.bytes)
            api.call("cuMemcpyDtoHAsync", address_of(region.bytes), int(owned.handle), size, stream.handle)
        api.synchronize_stream(stream.handle)
    finally:
        for owned, _ in made:
            owned.close()


def _place(extent: Extent, made: Sequence[tuple[Owned, CopiedRange]]) -> int:
    """The device's address of a range of the copies."""
    for owned, region in made:
        offset = extent[0] - region.address
        if 0 <= offset <= len(region.data):
            return int(owned.handle) + ZONE + offset
    raise ValueError(extent)
