"""LLVM IR of span functions: loops over workgroups around kernels that the native tier has lowered.

The builder process imports this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.native.calls import Needs
from jitree.hal.command_layout import DISPATCH, WORKGROUP
from jitree.loaders import vmvx_layout
from jitree.regs.layout import ENTRY, FRAME, SCRATCH, STATE
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_FOLDER: Final = Path(__file__).parent
_NAME: Final = re.compile(r"\$([a-z_]+\.[a-z_]+|[A-Z][A-Z_]*)")
_CHANGES_LISTS: Final = ("list.set", "list.resize", "list.reserve", "list.swap")
"""Beginnings of mnemonics that could leave a lane's list of bindings changed for the next span."""
_STACK_SIZE: Final = 256 << 10
"""Bytes of a thread's stack that kernels may take, whatever thread it is; deeper calls are the VM's."""
_IDS: Final = ("x", "y", "z", "size_x", "size_y", "size_z", "count_x", "count_y", "count_z")


class Kernel(NamedTuple):
    """A kernel as its span function calls it."""

    ordinal: int
    """Of its function in the module."""
    symbol: str
    """Of the lowered function, in the same LLVM module."""
    needs: Needs
    """Room that it and its callees take on the machine's stacks."""


def span_text(kernels: Sequence[Kernel]) -> str:
    """The span functions of kernels, to stand behind the text of the lowered module."""
    names = _template_names()
    template = (_FOLDER / "vmvx_span.ll").read_text(encoding="ascii")
    parts = [_fill((_FOLDER / "vmvx_helpers.ll").read_text(encoding="ascii"), names)]
    for kernel in kernels:
        own: dict[str, int | str] = {
            "ORDINAL": kernel.ordinal,
            "CALL": _call(kernel.symbol),
            "FRAMES": FRAME.size * kernel.needs.frames,
            "VALUES": kernel.needs.values,
            "REFS": kernel.needs.refs,
        }
        parts.append(_fill(template, names | own))
    return "\n".join(parts)


def list_changes(words: Sequence[int], starts: Sequence[int]) -> Iterator[str]:
    """Instructions of a module, whose words begin at ``starts``, that rule out lanes."""
    for start in starts:
        mnemonic = OPCODE_NAMES[BASE_OPCODE[words[start]]]
        if mnemonic.startswith(_CHANGES_LISTS):
            yield mnemonic


def _call(kernel: str) -> str:
    arguments = [f"ptr %{name}" for name in ("state", "frame", "values", "refs")]
    arguments += ["i64 %fuel", "ptr %local", "ptr %constants", "ptr %bindings"]
    arguments += [f"i32 %{name}" for name in _IDS]
    return f"call fastcc {{ i64 }} @{kernel}({', '.join(arguments)}) alwaysinline"


def _template_names() -> dict[str, int | str]:
    names: dict[str, int | str] = {
        "STACK_SIZE": _STACK_SIZE,
        "SCRATCH_MARK": vmvx_layout.SCRATCH_MARK,
        "MAXIMUM_BINDINGS": vmvx_layout.MAXIMUM_BINDINGS,
        "MOST_FINISHED": vmvx_layout.MOST_FINISHED,
        "WORKGROUP_DONE": vmvx_layout.WORKGROUP_DONE,
        "WORKGROUP_LEFT": vmvx_layout.WORKGROUP_LEFT,
        "WORKGROUP_LITTERED": vmvx_layout.WORKGROUP_LITTERED,
        "WORKGROUP_REFUSED": vmvx_layout.WORKGROUP_REFUSED,
    }
    for prefix, offsets in (
        ("environment", vmvx_layout.ENVIRONMENT.offsets), ("lanes", vmvx_layout.LANES.offsets),
        ("lane", vmvx_layout.LANE.offsets), ("state", STATE.offsets), ("entry", ENTRY.offsets),
        ("scratch", SCRATCH.offsets), ("dispatch", DISPATCH.offsets), ("group", WORKGROUP.offsets),
    ):  # fmt: skip
        names |= {f"{prefix}.{field}": offset for field, offset in offsets.items()}
    return names


def _fill(template: str, names: dict[str, int | str]) -> str:
    return _NAME.sub(lambda match: str(names[match[1]]), template)
