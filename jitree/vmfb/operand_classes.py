"""Classes of fixed-size operands while loading: which limit an operand has, and how many words it makes."""

from __future__ import annotations

from typing import Final

LITERAL: Final = 0
"""Any bits."""
VALUE: Final = 1
"""Slot of the value bank."""
PAIR: Final = 2
"""Even slot of a pair."""
RODATA: Final = 3
TYPE: Final = 4
GLOBAL32: Final = 5
"""Byte offset of a 32-bit global."""
GLOBAL64: Final = 6
"""Byte offset of a 64-bit global."""
REF_GLOBAL: Final = 7
REF: Final = 8
"""Ref register; one word."""
REF_BORROWED: Final = 9
"""Movable ref input in a bytecode version where its move flag means nothing; register and 0."""
REF_MOVABLE: Final = 10
"""Movable ref input; register and move flag."""
CLASS_COUNT: Final = 11

FIRST_MOVING_VERSION: Final = 16
"""First bytecode version in which single ref operands and remaps honour the move flag."""
