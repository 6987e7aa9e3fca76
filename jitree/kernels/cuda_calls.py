"""Calls functions of the user in the place of launches, on the host.

They get copies of the bindings there, or what lies in the GPU's memory, and are called in the order of the
stream, between the graphs of what comes before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.errors import InvalidArgumentError, is_interruption
from jitree.hal.stepwise import merged
from jitree.kernels.kernel import DEVICE, GRID, KernelCall
from jitree.kernels.local import failure_of
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.cuda.executable import OwnCall
    from jitree.cuda.stream import Stream
    from jitree.hal.stepwise import Extent
    from jitree.kernels.kernel import BoundTensor, Kernel


class DeviceTensor:
    """Shows a tensor in the GPU's memory to CuPy, PyTorch, Numba: all that knows the array interface."""

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
