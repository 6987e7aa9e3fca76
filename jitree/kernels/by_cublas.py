"""Has products done by cuBLAS, on a GPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitree.base.finalizers import SharedWeakKeys
from jitree.base.platform import open_library
from jitree.errors import InternalError, UnavailableError, pass_interruption
from jitree.kernels.kernel import DEVICE, Kernel, KernelCall

if TYPE_CHECKING:
    from jitree.cuda.stream import Stream
    from jitree.kernels.cuda import DeviceTensor

_SONAMES: Final = ("libcublas.so.13", "libcublas.so.12")
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)
_handles: Final = SharedWeakKeys["Stream", ctypes.c_void_p]()
"""What cuBLAS has of each device; it ends with the device's context."""


def product(
    rows: int, columns: int, depth: int, *, batch: int = 1, places: Sequence[int] = (0, 0, 0)
) -> Kernel:
    """Multiplies matrices of float32, as :func:`jitree.kernels.by_triton.product` does.

    UNAVAILABLE where there is no cuBLAS."""
    library()
    counts = (columns, rows, depth)
    sizes = (rows * depth, depth * columns, rows * columns)

    def product_by_cublas(lhs: DeviceTensor, rhs: DeviceTensor, out: DeviceTensor, call: KernelCall) -> None:
        begins = [int(call.constants[-1 - place]) if place < 0 else place for place in places]
        left, right, result = (
            ctypes.c_void_p(tensor.address + begin)
            for tensor, begin in zip((lhs, rhs, out), begins, strict=True)
        )
        # Matrices in the order of columns are those in the order of rows, turned.
        _call(
            "cublasSgemmStridedBatched", _handle(out.stream), 0, 0, *map(ctypes.c_int, counts),
            ctypes.byref(_ONE), right, columns, ctypes.c_longlong(sizes[1]), left, depth,
            ctypes.c_longlong(sizes[0]), ctypes.byref(_ZERO), result, columns, ctypes.c_longlong(sizes[2]),
            batch,
        )  # fmt: skip

    return Kernel(product_by_cublas, ["?xf32@0"] * 3, memory=DEVICE)


@cache
def library() -> ctypes.CDLL:
    """cuBLAS of NVIDIA's packages, or of the system. UNAVAILABLE where there is none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(each) for each in spec.submodule_search_locations or ()]
    found = [str(path) for name in _SONAMES for folder in folders for path in folder.glob(f"*/lib/{name}")]
    for name in (*found, *_SONAMES):
        try:
            return open_library(name)
        except OSError as error:
            pass_interruption(error)
    raise UnavailableError(
        "this kernel is cuBLAS's, which is not there; pip install nvidia-cublas-cu12, or use "
        "jitree.kernels.by_triton"
    )


def _call(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status:
        raise InternalError(f"{name} of cuBLAS fails with status {status}")


def _handle(stream: Stream) -> ctypes.c_void_p:
    handle = _handles.get(stream)
    if handle is None:
        handle = ctypes.c_void_p()
        _call("cublasCreate_v2", ctypes.byref(handle))
        _call("cublasSetStream_v2", handle, ctypes.c_void_p(int(stream.handle)))
        _handles[stream] = handle
    return handle
