"""Writes nearest resizing by whole factors as rounding down, where that is the same.

The importer writes other roundings (PyTorch's and ONNX's defaults) as elements that are looked up by indices,
each computed in several roundings; rounding down becomes a copy that repeats elements. For a factor of two
all usual forms are the same. Where an element differs, the operator stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from jitree.compiling.onnx_nodes import KnownValues, NodeChain

_LARGEST: Final = 1 << 16
"""Elements of a dimension that are compared at most."""
_DOWN: Final = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
_ATTRIBUTES: Final = {*_DOWN, "mode", "cubic_coeff_a", "exclude_outside", "extrapolation_value"}
"""What nearest resizing of all dimensions may have: the last three say nothing for it."""


def round_down(node: Any, known: KnownValues, _: NodeChain) -> None:
    """Changes the attributes of a Resize; one of open sizes, by other factors or in other forms stays."""
    attributes, shape = {one.name: one for one in node.attribute}, known.shapes.get(node.input[0])
    if shape is None or not all(shape) or not {*attributes} <= _ATTRIBUTES:
        return
    if "mode" in attributes and attributes["mode"].s != b"nearest":
        return
    sizes = [size or 0 for size in shape]
    factors = _factors(node, sizes, known)
    given = {name: attributes[name].s for name in _DOWN if name in attributes}
    if not factors or given == _DOWN:
        return
    coordinates = given.get("coordinate_transformation_mode", b"half_pixel")
    rounding = given.get("nearest_mode", b"round_prefer_floor")
    for size, factor in zip(sizes, factors, strict=True):
        found = _elements(size, factor, coordinates, rounding)
        if found is None or (found != np.arange(size * factor) // factor).any():
            return
    _write(node, attributes)


def _factors(node: Any, sizes: Sequence[int], known: KnownValues) -> list[int]:
    """Times that each dimension grows; none where these are unknown, or no whole numbers."""
    names = [*node.input, "", "", ""][2:4]
    given = [known.array(name) for name in names if name]
    if len(given) != 1 or given[0] is None or given[0].shape != (len(sizes),):
        return []
    if given[0].dtype.kind not in "fi":
        return []
    factors = given[0].astype(np.float64) / (sizes if names[1] else 1)
    if not (factors == np.floor(factors)).all() or factors.min() < 1 or (factors * sizes).max() > _LARGEST:
        return []
    return [int(factor) for factor in factors]


def _elements(size: int, factor: int, coordinates: bytes, rounding: bytes) -> Any:
    """The elements that are taken along a dimension, as ONNX says; None for forms that are not known."""
    steps = np.arange(size * factor)
    if coordinates == b"asymmetric":
        places = steps / factor
    elif coordinates in (b"half_pixel", b"pytorch_half_pixel"):
        places = (steps + 0.5) / factor - 0.5
    else:
        return None
    rounded = {
        b"round_prefer_floor": np.ceil(places - 0.5), b"round_prefer_ceil": np.floor(places + 0.5),
        b"floor": np.floor(places), b"ceil": np.ceil(places),
    }.get(rounding)  # fmt: skip
    return None if rounded is None else np.clip(rounded, 0, size - 1)


def _write(node: Any, attributes: Mapping[str, Any]) -> None:
    import onnx

    for name, value in _DOWN.items():
        if name in attributes:
            attributes[name].s = value
        else:
            node.attribute.append(onnx.helper.make_attribute(name, value))
