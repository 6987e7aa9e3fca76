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
REF_KEPT: Final = 8
"""Ref input that cannot be moved, in a bytecode version where the move flag is an error then; one word."""
REF: Final = 9
"""Ref register whose move flag means nothing; one word."""
REF_BORROWED: Final = 10
"""Movable ref input in a bytecode version where its move flag means nothing; register and 0."""
REF_MOVABLE: Final = 11
"""Movable ref input; register and move flag."""
CLASS_COUNT: Final = 12

FIRST_MOVING_VERSION: Final = 16
"""First bytecode version in which single ref operands and remaps honour the move flag, and those that cannot
be moved must not have it. Compilers of earlier ones set it at the last use, whatever that is."""
