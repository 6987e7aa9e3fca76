"""Types that annotations name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jitree.compat.iree_runtime.buffers import HalBufferView

TraceKey = str
HalModuleBufferViewTraceCallback = Callable[[TraceKey, "list[HalBufferView]"], None]
