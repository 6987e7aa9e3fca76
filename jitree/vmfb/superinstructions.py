"""Superinstructions: frequent runs of instructions that the fast tier executes as one.

Fusing rewrites nothing but the opcode word of the first instruction; all words keep their place. So a fused
opcode means "this instruction, and then those after it". A tier may as well execute the first instruction
alone and go on with the next, and execution can resume at any of them.

This is where they are stated. Loading finds them (``native/fusing.py``) by tables (``native/tables.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Final

from jitree.base.records import NamedTuple
from jitree.vmfb.isa import BY_MNEMONIC, INSTRUCTIONS

INTERNAL_FORMS: Final = ("call.internal", "call.import", "br.bare", "host.exit")
"""Instructions that exist only in decoded form; numbered after the rows of the table."""
OPCODE: Final = {
    name: number for number, name in enumerate((*(row.mnemonic for row in INSTRUCTIONS), *INTERNAL_FORMS))
}
"""Opcode words. Programs have them from ``opcode_table.py``: to read the instruction table takes longer than
to load a small module."""


class Part(NamedTuple):
    """One instruction of a superinstruction."""

    name: str
    """Its mnemonic; or ``br:`` and the kinds of its moves in order, ``w`` for a 32-bit value, ``d`` for a
    pair (``br:`` alone is ``br.bare``); or ``cond_br:true``, ``cond_br:false``, where the block if true or if
    false comes next; or the name of a :class:`Loop`."""
    links: tuple[tuple[int, int], ...] = ()
    """(word position, number of an earlier part): the operand is the register that this part wrote. Only then
    does the superinstruction apply; the value need not be read back."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{position}={part}" for position, part in self.links)])


Superinstruction = tuple[Part, ...]

COMPARES: Final = tuple(name for name in BY_MNEMONIC if name.startswith("cmp."))
SHAPES: Final = tuple("br:" + "".join(moves) for count in range(4) for moves in product("wd", repeat=count))
"""Branches with at most three moves of values."""

_COMMON_SHAPES: Final = (*(shape for shape in SHAPES if len(shape) <= 5), "br:www", "br:ddd")
_HEADER_COMPARES: Final = tuple(name for name in COMPARES if "i32" in name or "i64" in name)


class Loop(NamedTuple):
    """A branch to a block that consists of a comparison and the ``cond_br`` on it: mostly a loop's back edge.

    After the words of the branch, where execution never comes, stand copies of the comparison's operands and
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
LOOP_OPCODE: Final = {loop: len(OPCODE) + number for number, loop in enumerate(LOOPS)}
"""Opcode words of branches that carry their target's comparison; those of superinstructions follow."""


_BRANCHES: Final = (
    *(f"{compare}; cond_br{side} 1=0" for side in ("", ":true", ":false") for compare in COMPARES),
    "cond_br:{true,false}",
    *SHAPES[1:],
    *(f"add.{kind}; loop:{shape.removeprefix('br:')}:cmp.lt.{kind}.s"
      for kind in ("i32", "i64") for shape in _COMMON_SHAPES),
    "mul.i64; loop:d:cmp.lt.i64.s",
    # A sum or product over a counted loop.
    "{add,mul,fma}.{f32,i32}; add.i32; loop:w:cmp.lt.i32.s 4=0",
    "{add,mul,fma}.{f32,i32}; add.i64; loop:w:cmp.lt.i64.s 4=0",
    "{add,mul,fma}.{f64,i64}; add.i32; loop:d:cmp.lt.i32.s 4=0",
    "{add,mul,fma}.{f64,i64}; add.i64; loop:d:cmp.lt.i64.s 4=0",
)  # fmt: skip
_INTEGERS: Final = "{add,sub,mul,and,xor}"
_FLOATS: Final = "{add,sub,mul,fma}"
_LOADS: Final = "buffer.load.{i8.u,i8.s,i32,i64,f32,f64}"
_STORES: Final = "buffer.store.{i8,i32,i64,f32,f64}"
_STRAIGHT: Final = (
    *(f"{_INTEGERS}.{kind}; {_INTEGERS}.{kind} {operand}=0" for kind in ("i32", "i64") for operand in (1, 2)),
    *(
        f"{_FLOATS}.{kind}; {_FLOATS}.{kind}{link}"
        for kind in ("f32", "f64")
        for link in ("", " 1=0", " 2=0")
    ),
    "{add,sub,mul}.f32; cmp.{lt,lte}.f32.o {1,2}=0; cond_br{,:true,:false} 1=1",
    # Index arithmetic and elements of buffers.
    f"{{add,fma}}.i64; {_LOADS} 2=0",
    f"add.i64; add.i64 1=0; {_LOADS} 2=1",
    f"mul.i64; add.i64 {{1,2}}=0; {_LOADS} 2=1",
    f"add.i64; {_STORES} 2=0",
    f"{_STORES}; add.i64; loop::cmp.lt.i64.s",
    "mul.i64; mul.i64",
    "fma.i64; add.i64 1=0",
    "buffer.load.{f32,f64}; buffer.load.{f32,f64}",
    *(f"buffer.load.{kind}; {{add,sub,mul,fma}}.{kind} {{1,2}}=0" for kind in ("f32", "f64", "i32")),
    *(f"buffer.load.{kind}; fma.{kind} 3=0; buffer.store.{kind} 3=1" for kind in ("f32", "f64", "i32")),
    *(f"{{add,sub,mul,div,fma}}.{kind}; buffer.store.{kind} 3=0" for kind in ("f32", "f64")),
    *(f"fma.{kind}; buffer.store.{kind} 3=0; add.i64; loop::cmp.lt.i64.s" for kind in ("f32", "f64")),
    # Kernels have this in place of fma.f32.
    *(f"fma.f32.fused; add.{kind}; loop:w:cmp.lt.{kind}.s 4=0" for kind in ("i32", "i64")),
    "buffer.load.f32; fma.f32.fused {1,2}=0",
    "buffer.load.f32; fma.f32.fused 3=0; buffer.store.f32 3=1",
    "fma.f32.fused; buffer.store.f32 3=0",
    "fma.f32.fused; buffer.store.f32 3=0; add.i64; loop::cmp.lt.i64.s",
)
"""Frequent in loops of compiled kernels and of programs written by hand. ``{a,b}`` are alternatives."""


def _expanded(text: str) -> Iterator[Superinstruction]:
    """The superinstructions of a pattern: parts separated by ``;``, each a name and its links."""
    pieces = [piece.split(",") for piece in text.replace("{", "}").split("}")]
    for chosen in product(
        *(piece if number % 2 else [",".join(piece)] for number, piece in enumerate(pieces))
    ):
        yield tuple(_part(part) for part in "".join(chosen).split(";"))


@cache
def _part(text: str) -> Part:
    name, *links = text.split()
    pairs = (link.split("=") for link in links)
    return Part(name, tuple((int(position), int(number)) for position, number in pairs))


SUPERINSTRUCTIONS: Final = tuple(parts for text in (*_BRANCHES, *_STRAIGHT) for parts in _expanded(text))
