"""Values of the VM as host modules take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitree.regs.objects import VmBuffer


def text(buffer: VmBuffer) -> str:
    """A string that a program passes: UTF-8 without terminator."""
    return str(buffer.view, "utf-8", "replace")


def unsigned32(value: int) -> int:
    return value & 0xFFFFFFFF


def unsigned64(value: int) -> int:
    return value & 0xFFFFFFFFFFFFFFFF
