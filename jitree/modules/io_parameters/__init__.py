"""Host module ``io_parameters``: loads weights by scope and key.

Programs write them back, too.
"""

from jitree.modules.io_parameters.module import IoParametersModule

__all__ = ["IoParametersModule"]
