"""The call stack that code in libraries enters and leaves its frames on.

The stack of jitree's own bytecode is elsewhere (:mod:`jitree.regs.machine`): a call of a C function sees a
stack with one frame, that of the host. Only the outermost frame is made here; the library makes and removes
those of its functions, and asks ``resolve_state`` for the state of its module.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Final

from jitree.base.c_allocator import allocator_address, free
from jitree.base.endings import Ending, carefully
from jitree.errors import FailedPreconditionError
from jitree.modules.native_library import layout

_STORAGE: Final = 8192
"""Bytes; the library replaces it when it needs more."""
_GUARD: Final = bytes(range(0xA0, 0xB0))
_MOST_FRAMES: Final = 1 << 16


class CallStack:
    """A stack for one call at a time; it has to stay where it is."""

    def __init__(self, token: int, resolve_state: int) -> None:
        """``resolve_state`` is called with ``token`` to find the state of a module."""
        self._block = ctypes.create_string_buffer(
            ctypes.sizeof(layout.Stack) + len(_GUARD) + 16 + _STORAGE + len(_GUARD)
        )
        base = ctypes.addressof(self._block)
        self._stack = layout.Stack.from_buffer(self._block)
        self._ending = Ending(carefully(partial(_free_storage, self._block)))
        self.address = base
        storage = base + ctypes.sizeof(layout.Stack) + len(_GUARD)
        storage += -storage % 16
        self._guards = (base + ctypes.sizeof(layout.Stack), storage + _STORAGE)
        for guard in self._guards:
            ctypes.memmove(guard, _GUARD, len(_GUARD))
        self._stack.capacity = _STORAGE
        self._stack.storage = storage
        self._stack.resolver_self = token
        self._stack.resolve_state = resolve_state
        self._stack.allocator = layout.CAllocator(None, allocator_address())
        frame = layout.CFrame.from_address(storage)
        frame.size = ctypes.sizeof(layout.CFrame)
        frame.type = layout.FRAME_EXTERNAL
        self._stack.size = frame.size
        self._stack.top = storage

    @property
    def waits(self) -> bool:
        """Whether the function that returned wants to be resumed when something has happened."""
        return bool(layout.CFrame.from_address(self._stack.top).type == layout.FRAME_WAIT)

    def require_left(self) -> None:
        """FAILED_PRECONDITION unless a call that succeeded left the stack as it was."""
        self._require_intact()
        if self._stack.top != self._stack.storage or self._stack.size != ctypes.sizeof(layout.CFrame):
            raise FailedPreconditionError(_layout_text("a function returned without leaving its frame"))

    def unwind(self) -> None:
        """Removes the frames that a failed call has left."""
        self._require_intact()
        base = self._stack.storage or 0
        for _ in range(_MOST_FRAMES):
            top = self._stack.top or 0
            if top == base:
                return
            if not base < top <= base + self._stack.capacity - ctypes.sizeof(layout.CFrame):
                break
            frame = layout.CFrame.from_address(top)
            if frame.cleanup:
                layout.DESTROY(frame.cleanup)(top + layout.FRAME_PUBLIC)
            self._stack.size -= frame.size
            self._stack.top = frame.parent
        raise FailedPreconditionError(_layout_text("its frames are not where they belong"))

    def _require_intact(self) -> None:
        if any(ctypes.string_at(guard, len(_GUARD)) != _GUARD for guard in self._guards):
            raise FailedPreconditionError(_layout_text("memory around the stack was overwritten"))


def _free_storage(block: ctypes.Array[ctypes.c_char]) -> None:
    """Frees the storage of a stack that has ended in ``block``; where the library put it."""
    stack = layout.Stack.from_buffer(block)
    if stack.owns_storage:
        free(stack.storage or 0)


def _layout_text(what: str) -> str:
    return (
        f"the library does not keep to the layout of VM stacks of releases 2023 to 3.13: {what}; build it "
        "against one of these releases"
    )
