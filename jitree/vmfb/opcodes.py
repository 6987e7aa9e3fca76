"""Opcode words as they follow from the instruction table.

Programs have them from ``opcode_table.py``, which is generated: to read the instruction table takes longer
than to load a small module.
"""

from __future__ import annotations

from typing import Final

from jitree.vmfb.isa import INSTRUCTIONS

INTERNAL_FORMS: Final = ("call.internal", "call.import", "br.bare", "host.exit")
"""Instructions that exist only in decoded form; numbered after the rows of the table."""

OPCODE: Final = {
    name: number for number, name in enumerate((*(row.mnemonic for row in INSTRUCTIONS), *INTERNAL_FORMS))
}
