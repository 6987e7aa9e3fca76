"""ABI 0.6 (3.4.0 to 3.11.0): what 0.7 replaced. Functions of executables are called by number, not by id."""

# ruff: noqa: E501 - one import, one line where it fits

from __future__ import annotations

from typing import Final

from jitree.modules.hal import command_buffer
from jitree.modules.hal.references import BINDINGS, COMMANDS, ImportRow

ROWS: Final = (
    # Ids are the same numbers on every device, only wider.
    ImportRow("command_buffer.dispatch", "0rriiiiICiDCiirIID_v",
        f"{COMMANDS}, executable: hal.executable, entry_point, workgroup_x, workgroup_y, workgroup_z, flags, [value], "
        f"{BINDINGS}", command_buffer.dispatch),
    ImportRow("command_buffer.dispatch.indirect", "0rriirIICiDCiirIID_v",
        f"{COMMANDS}, executable: hal.executable, entry_point, workgroups_buffer_slot, workgroups_buffer: hal.buffer?, "
        f"workgroups_offset, flags, [value], {BINDINGS}", command_buffer.dispatch_indirect),
)  # fmt: skip
