"""Has products, softmax and layer normalisation done by Triton, on a GPU.

Each function makes a :class:`jitree.kernels.Kernel` for dispatches of given sizes. Triton compiles it when it
is put in; UNAVAILABLE where there is no Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from jitree.errors import UnavailableError
from jitree.kernels.kernel import Kernel

_TILE: Final = 32
"""Rows and columns that a block does at once: products that take long enough have some hundred blocks."""
_DEPTH: Final = 64
_ROW_WARPS: Final = 4


def product(
    rows: int,
    columns: int,
    depth: int,
    *,
    batch: int = 1,
    places: Sequence[int] = (0, 0, 0),
    tile: int = _TILE,
) -> Kernel:
    """Multiplies matrices of float32, nearly as exactly as in float32.

    There are ``batch`` products of ``rows`` x ``depth`` by ``depth`` x ``columns``. For dispatches that bind
    both operands, then the result. ``places``: where these begin in their bindings, in bytes; -1, -2 and -3:
    as the first, second and third constant of the dispatch says, of which there are as many then."""
    constants = dict.fromkeys(("first", "second", "third")[max(0, -min(places)) :], 0)
    sizes = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "TILE": tile}
    sizes |= dict(zip(("LHS", "RHS", "OUT"), places, strict=True)) | {"STEP": min(_DEPTH, _power(depth))}
    return Kernel(
        _source().product, ["?xf32@0"] * 3, grid=(-(-rows // tile), -(-columns // tile), batch),
        arguments=sizes | constants | {"num_warps": 4, "num_stages": 3},
    )  # fmt: skip


def softmax(rows: int, columns: int) -> Kernel:
    """Does the softmax of each row of float32. For dispatches that bind scores, then the result."""
    sizes = {"COLUMNS": columns, "WIDTH": _power(columns), "num_warps": _ROW_WARPS}
    return Kernel(_source().softmax, ["?xf32@0"] * 2, grid=rows, arguments=sizes)


def layer_norm(rows: int, columns: int, epsilon: float = 1e-5) -> Kernel:
    """Normalises each row of float32, then scales and moves it. For dispatches that bind rows, factors,
    summands, then the result."""
    sizes = {"COLUMNS": columns, "WIDTH": _power(columns), "EPSILON": epsilon, "num_warps": _ROW_WARPS}
    return Kernel(_source().layer_norm, ["?xf32@0"] * 4, grid=rows, arguments=sizes)


def _power(size: int) -> int:
    """Rounds a size up to a power of two, 16 at least."""
    return max(1 << (size - 1).bit_length(), 16)


def _source() -> Any:
    try:
        return import_module("jitree.kernels.triton_source")
    except ImportError as error:
        raise UnavailableError(f"this kernel is Triton's, which cannot be imported: {error}") from error
