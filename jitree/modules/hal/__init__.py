"""Answer what compiled programs ask of devices, buffers, fences, command buffers and queues."""

from jitree.modules.hal.module import HalModule

__all__ = ["HalModule"]
