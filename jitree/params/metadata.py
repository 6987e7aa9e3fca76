"""Shape and element type that tools of IREE's Python packages store beside a parameter.

``TENSORv0:{"type": "Tensor", "dtype": "float32", "shape": [2, 3]}``, or with ``PYTORCH:`` in front.
"""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from jitree.errors import pass_interruption
from jitree.params.entry import TensorType
from jitree.types import BY_NAME, ElementType, element_type_of

_PREFIXES: Final = ("TENSORv0", "PYTORCH")


def tensor_type(metadata: bytes) -> TensorType | None:
    """What metadata says about the elements; None when it says nothing that can be read."""
    if not metadata:
        return None
    prefix, separator, text = metadata.decode("utf-8", "backslashreplace").partition(":")
    if not separator or prefix not in _PREFIXES:
        return None
    try:
        fields = json.loads(text)
        if fields["type"] != "Tensor":
            return None
        shape = tuple(int(dimension) for dimension in fields["shape"])
        return TensorType(shape, element_called(str(fields["dtype"])))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        pass_interruption(error)
        return None  # a text for people; nothing depends on it


def element_called(name: str) -> ElementType | str:
    """The element type of a numpy name or of IREE's own; the name itself when there is none."""
    if name in BY_NAME:
        return BY_NAME[name]
    try:
        return element_type_of(np.dtype(name)) or name
    except TypeError as error:
        pass_interruption(error)
        return name
