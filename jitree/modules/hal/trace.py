"""What happens to traced tensors unless the host wants them: they are printed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jitree.errors import StatusError
from jitree.hal.buffer import BufferView
from jitree.types import element_type


def write_to_stderr(key: str, views: Sequence[BufferView]) -> None:
    """``=== key ===``, one line per tensor, an empty line."""
    lines = [f"=== {key} ===", *map(view_text, views), "", ""]
    sys.stderr.write("\n".join(lines))


def view_text(view: BufferView) -> str:
    """``4xf32=1 2 3 4``; a reason in place of the elements when the host cannot read them."""
    from jitree.base.host_tensor import HostTensor  # few programs trace

    row = element_type(view.element_type)
    try:
        return HostTensor(row, view.shape, view.buffer.host_array()).text()
    except StatusError as error:
        shape = "".join(f"{size}x" for size in view.shape)
        return f"{shape}{row.name}=<{error}>"
