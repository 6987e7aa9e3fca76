"""Parameters: weights that programs load by scope and key.

They come from archives or from Python.
"""

from jitree.params.entry import Access, Mode, ParameterEntry, Splat, TensorType, splat_entry
from jitree.params.provider import ParameterIndex, ParameterProvider, open_providers

__all__ = [
    "Access",
    "Mode",
    "ParameterEntry",
    "ParameterIndex",
    "ParameterProvider",
    "Splat",
    "TensorType",
    "open_providers",
    "splat_entry",
]
