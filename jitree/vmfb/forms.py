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
    """Its mnemonic; or ``br:`` and the kinds of its moves in order, ``w`` for a 32-bit value, ``d`` for a
    pair (``br:`` alone is ``br.bare``); or ``cond_br:true``, ``cond_br:false``, where the block if true or if
    false comes next; or the name of a :class:`Loop`."""
    links: tuple[tuple[int, int], ...] = ()
    """(word position, number of an earlier part): the operand is the register that this part wrote. Only then
    does the form apply; the value need not be read back."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{position}={part}" for position, part in self.links)])


Form = tuple[Part, ...]

COMPARES: Final = tuple(name for name in BY_MNEMONIC if name.startswith("cmp."))
SHAPES: Final = tuple("br:" + "".join(moves) for count in range(4) for moves in product("wd", repeat=count))
"""Branches with at most three moves of values."""

_COMMON_SHAPES: Final = (*(shape for shape in SHAPES if len(shape) <= 5), "br:www", "br:ddd")
_HEADER_COMPARES: Final = tuple(name for name in COMPARES if "i32" in name or "i64" in name)


@dataclass(frozen=True, slots=True)
class Loop:
    """A branch to a block that consists of a comparison and the ``cond_br`` on it: mostly a loop's back edge.

    Behind the words of the branch, where execution never comes, stand copies of the comparison's operands and
    then the displacements if true and if false, counted from the branch.
    """

    shape: str
    compare: str

    @property
    def name(self) -> str:
        return f"loop:{self.shape.removeprefix('br:')}:{self.compare}"

    @property
    def branch_size(self) -> int:
        """Words of the branch."""
        moves = len(self.shape) - len("br:")
        return 3 + 3 * moves if moves else 2


LOOPS: Final = tuple(Loop(*pair) for pair in product(_COMMON_SHAPES, _HEADER_COMPARES))
LOOP_BY_NAME: Final = {loop.name: loop for loop in LOOPS}


def _forms() -> Iterator[Form]:
    for side in ("", ":true", ":false"):
        for compare in COMPARES:
            yield Part(compare), Part(f"cond_br{side}", ((1, 0),))
        if side:
            yield (Part(f"cond_br{side}"),)
    for shape in SHAPES[1:]:
        yield (Part(shape),)
    for kind, shape in product(("i32", "i64"), _COMMON_SHAPES):
        yield Part(f"add.{kind}"), Part(Loop(shape, f"cmp.lt.{kind}.s").name)


FUSED_FORMS: Final = tuple(_forms())
