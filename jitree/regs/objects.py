"""The two reference types of the instruction set."""

from __future__ import annotations

from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList

__all__ = ["VmBuffer", "VmList"]
