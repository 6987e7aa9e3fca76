"""Defines the decoded form of bytecode, which every tier runs.

It is one flat array of 32-bit words a module.

An instruction is its opcode word (:attr:`Instruction.index`, or an internal form below) and then the words of
its operands in table order:

==================  =====================================================================================
operand kind        words
==================  =====================================================================================
``r.i32 r.f32``     slot ordinal
``r.i64 r.f64``     even slot ordinal
``r.ref``           ref ordinal; a movable *input* is followed by a word 0 (copy) or 1 (move)
``imm.i32 imm.f32`` the bits
``imm.i64 imm.f64`` low word, high word
``imm.gbyte`` …     the offset or ordinal (gbyte, gref, rodata, type)
``string``          byte offset in the module's bytecode
``target``          branch displacement in words, from the branch's own opcode word
``list.i32`` …      count, then one ordinal each; ``list.ref``: (ordinal, move) each
``list.any``        of ``trace`` and ``print``: count, then (tag, register) each, values as one slot
``remap``           count, then (tag, source, destination) each, applied in order
==================  =====================================================================================

Block markers are dropped. Conditional branches carry no remap lists: a remap of theirs becomes a ``br`` stub
after the function. Instructions whose operands need more than the generic rule:

==========================  =============================================================================
``br``                      displacement, remap
``br.bare``                 displacement (a ``br`` without moves)
``cond_br``                 condition, displacement if true, displacement if false
``br_table``                index, default displacement, count, displacements
``yield``                   displacement, remap
``cond_break``, ``break``   as ``cond_br`` with both displacements equal, as ``br``
``fail``                    status slot, string, displacement of the next block in file order or 0
``return``                  count, then (tag, source) each
``call.internal``           size, function, argument count, result count, arguments (tag, source,
                            destination in the callee) each, results (tag, destination) each
``call.import``             size, call site, import, argument count, result count, arguments
                            (tag, source) each, results (tag, destination) each
``host.exit``               leaves the VM: the call made by the host is complete
==========================  =============================================================================

``size`` is the length of the instruction in words; execution goes on after it. All four call instructions
become ``call.internal`` or ``call.import``; the yieldable ones are followed by a ``br.bare`` to their resume
block. Variadic arguments are flattened; their segment counts stay with the call site.

An opcode word may also be that of a superinstruction (:mod:`jitree.vmfb.superinstructions`): the words are
those of its first instruction, :data:`BASE_OPCODE` tells which that is.

Compilers write ``fma.f32`` where a product is added to something. The C interpreter rounds the product
first, on most processors (``strict``). Compiled libraries, as those that people compare with, do not
(``fused``), and are twice as fast: so kernels run ``fma.f32.fused`` instead, unless they are to be strict.
What is decided is decided while a module is decoded, so that all tiers compute the same bits.
"""

from __future__ import annotations

from typing import Final

from jitree.vmfb.opcode_table import BASE, NAMES

TAG_VALUE32: Final = 0
"""One value slot."""
TAG_VALUE64: Final = 1
"""An even pair of value slots."""
TAG_REF_COPY: Final = 2
"""A ref; the source keeps its reference."""
TAG_REF_MOVE: Final = 3
"""A ref; the source becomes null."""

OPCODE_NAMES: Final = NAMES

OPCODE: Final[dict[str, int]] = {name: number for number, name in enumerate(NAMES)}
"""Opcode word of every mnemonic and internal form."""

BASE_OPCODE: Final = (*range(len(OPCODE)), *BASE)
"""The opcode word of the (first) instruction, in :data:`OPCODE`, that an opcode word stands for."""


FUSED: Final = "fused"
"""Products are not rounded before they are added: of kernels."""
STRICT: Final = "strict"
"""Each operation rounds: of programs, and of kernels that are asked to."""

ARITHMETICS: Final = (FUSED, STRICT)
MULTIPLY_ADD: Final = {FUSED: OPCODE["fma.f32.fused"], STRICT: OPCODE["fma.f32"]}
"""The opcode word that ``fma.f32`` becomes."""

_EXACT: Final = ".exact"
EXACT: Final = {
    OPCODE[name.removesuffix(_EXACT)]: opcode for name, opcode in OPCODE.items() if name.endswith(_EXACT)
}
"""Opcode word of the instruction that fails where the one with this opcode word wraps around."""
SUMS: Final = {OPCODE[f"{name}.{kind}"] for name in ("add", "sub") for kind in ("i32", "i64")}
TRUNCATION: Final = OPCODE["trunc.i64.i32"]


def signed(value: int, bits: int) -> int:
    """The low bits of an integer, read as signed."""
    half = 1 << bits - 1
    return (value + half & (1 << bits) - 1) - half
