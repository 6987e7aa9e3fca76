"""Module ``hal``: devices, buffers, fences, command buffers and queues as compiled programs call them."""

from jitree.modules.hal.module import HalModule

__all__ = ["HalModule"]
