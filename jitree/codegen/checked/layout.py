"""Says where the map of accessible memory is, and what its bytes mean.

Also how code tells it of pools and frames.
"""

from __future__ import annotations

from typing import Final

from jitree.codegen.image.shipped import CHECKED
from jitree.codegen.primitives import call, load64

REPORTS: Final = "JITREE_CHECKED_REPORTS"
"""The variable that names a file which reports are added to; without it they go to the standard error."""
NOT_CHECKED: Final = "not checked: "
"""How a line there begins that tells of code which cannot be checked."""
SHADOW: Final = 0x7FFF8000
"""Address of the map: the byte at ``SHADOW + (address >> 3)`` tells of 8 bytes of memory. It is a hole in the
address space of all Linux processes on x86-64 (AddressSanitizer has it there, too)."""
SHADOW_SIZE: Final = 1 << 44
CALLS: Final = 0x7FE00000
"""Address of a page that code reads: the function for what is not plain, then what that function needs."""
CALLS_SIZE: Final = 1 << 17

ACCESS: Final = "checked_access"
"""The name of the function that looks at an access."""
DESCRIPTOR: Final = CALLS + 104
"""Where the descriptor is that reports go to."""
OUTSIDE: Final = CALLS + 112
"""Where the address of a function is that reports one: of address, bytes and a text."""
MASKED: Final = CALLS + 136
"""Where the address of the function is for those elements of a vector that a mask has."""
LET: Final = CALLS + 120
KEEP_OUT: Final = CALLS + 128
"""Where the addresses of functions are that let memory be accessed from now on, and that let it not be."""

UNKNOWN: Final = 0
WHOLE: Final = 8
"""1 to 8: so many bytes of the 8 may be accessed, the first ones."""
FREED: Final = 0x80
BEFORE: Final = 0x81
AFTER: Final = 0x82
POOLED: Final = 0x83
BETWEEN: Final = 0x84

ENTRY_SHUT: Final = 8
"""The first bytes of a handle's entry, its kind and count, which nothing may access while it is free."""


def let_access(address: int, size: int) -> None:
    """Lets memory be accessed, which begins at a multiple of 8."""
    if CHECKED:
        call(load64(LET), address, size)


def keep_out(address: int, size: int) -> None:
    """Lets nothing access memory."""
    if CHECKED:
        call(load64(KEEP_OUT), address, size)


def frame_checks(frame: int, **places: tuple[int, int]) -> str:
    """Writes functions that report registers which the current frame lacks.

    They are ``checked.frame.NAME (place, state, text)``. ``frame``: where the state block has the frame's
    address; ``places``: by name, where the frame has the addresses of its first register and of its end.
    """
    return "\n".join(
        _FRAME_CHECK.format(name=name, frame=frame, outside=OUTSIDE, first=first, end=end)
        for name, (first, end) in places.items()
    )


_FRAME_CHECK: Final = """
define internal void @checked.frame.{name}(ptr %place, ptr %state, ptr %text) noinline nounwind {{
  %frame.at = getelementptr i8, ptr %state, i64 {frame}
  %frame = load ptr, ptr %frame.at, align 8
  %first.at = getelementptr i8, ptr %frame, i64 {first}
  %first = load ptr, ptr %first.at, align 8
  %end.at = getelementptr i8, ptr %frame, i64 {end}
  %end = load ptr, ptr %end.at, align 8
  %low = icmp ult ptr %place, %first
  %high = icmp uge ptr %place, %end
  %out = or i1 %low, %high
  br i1 %out, label %outside, label %inside
inside:
  ret void
outside:
  %address = ptrtoint ptr %place to i64
  %function = load ptr, ptr inttoptr (i64 {outside} to ptr)
  call void %function(i64 %address, i64 4, ptr %text)
  ret void
}}
"""
