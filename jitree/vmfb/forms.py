"""Fused forms: frequent runs of instructions that the fast tier executes as one.

Fusing rewrites nothing but the opcode word of the first instruction; all words keep their place. So a fused
opcode means "this instruction, and then those behind it (or, behind a branch, at its target)". A tier may as
well execute the first instruction alone and go on with the next, and execution can resume at any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from jitree.vmfb.isa import BY_MNEMONIC


@dataclass(frozen=True, slots=True)
class Part:
    """One instruction of a form."""

    name: str
    """Its mnemonic, or ``br:`` and the kinds of its moves in order: ``w`` for a 32-bit value, ``d`` for a pair;
    ``br:`` alone is ``br.bare``."""
    links: tuple[tuple[int, int], ...] = ()
    """(word position, number of an earlier part): the operand is the register that this part wrote. Only then
    does the form apply; the value need not be read back."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{position}={part}" for position, part in self.links)])


Form = tuple[Part, ...]

COMPARES: Final = tuple(name for name in BY_MNEMONIC if name.startswith("cmp."))
SHAPES: Final = tuple("br:" + "".join(moves) for count in range(4) for moves in product("wd", repeat=count))
"""Branches with at most three moves of values."""

_HEADER_SHAPES: Final = (*(shape for shape in SHAPES if len(shape) <= 5), "br:www", "br:ddd")
_HEADER_COMPARES: Final = (
    "cmp.lt.i32.s", "cmp.lt.i64.s", "cmp.lt.i32.u", "cmp.lt.i64.u", "cmp.eq.i32", "cmp.eq.i64",
)  # fmt: skip
_STEPS: Final = ("add.i32", "add.i64")


def _forms() -> Iterator[Form]:
    for compare in COMPARES:
        yield Part(compare), Part("cond_br", ((1, 0),))
    for shape in SHAPES[1:]:
        yield (Part(shape),)
    for shape, compare in product(_HEADER_SHAPES, _HEADER_COMPARES):
        yield Part(shape), Part(compare), Part("cond_br", ((1, 1),))
    for step, shape in product(_STEPS, _HEADER_SHAPES):
        yield Part(step), Part(shape), Part(f"cmp.lt.{step[-3:]}.s"), Part("cond_br", ((1, 2),))


FUSED_FORMS: Final = tuple(_forms())
