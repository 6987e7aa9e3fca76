"""The host module ``io_parameters``: programs load weights by scope and key, and write them back."""

from jitree.modules.io_parameters.module import IoParametersModule

__all__ = ["IoParametersModule"]
