"""States what generators hand to the builder. It is LLVM IR, grouped by how it is to be optimised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.image.flat import Recipe


class Pipeline(NamedTuple):
    """How LLVM optimises a unit."""

    speed_level: int
    """0 to 3, as of ``-O``."""
    loop_vectorization: bool
    slp_vectorization: bool
    loop_unrolling: bool
    tidies: bool = True
    """Whether machine code is made better where the texts leave something to do
    (:data:`~jitree.codegen.image.compile.TIDYING`): nearly half of the time of writing it."""
    passes: tuple[str, ...] = ()
    """What simplifies functions in which all calls have been inlined that are to be, by llvmlite's names, in
    this order and nothing else; none: what LLVM has for the level."""


PLAIN: Final = Pipeline(2, loop_vectorization=False, slp_vectorization=False, loop_unrolling=False)
"""For code without loops that gain from more, such as the loop of the fast tier."""

STRAIGHT: Final = Pipeline(
    1,
    loop_vectorization=False,
    slp_vectorization=False,
    loop_unrolling=False,
    tidies=False,
    passes=("sroa", "instruction_combine", "jump_threading", "simplify_cfg", "dead_code_elimination"),
)
"""For code whose loops are written as they are to be, vectors with nothing in them that does not change, and
in which little is computed twice, and that where it is used; counters are good enough for its addresses. All
that LLVM has for the level takes three times as long, most of it for ``instruction_combine``, again and
again, and kernels are no faster then."""


class Unit(NamedTuple):
    """Texts that become one object. The others are linked into the first one, so that they can be inlined."""

    texts: Sequence[str]
    entries: tuple[str, ...]
    """Functions that stay visible to other units and to callers; all others become internal."""
    pipeline: Pipeline = PLAIN


class Generated(NamedTuple):
    """Everything an image is made of.

    The package's own images are the same on every machine, for every machine. Programs are written for a
    processor, the one that the process has or assumes: shapes of nests and instructions that they name go by
    its features.
    """

    units: Sequence[Unit]
    """Functions of one may call those of another, without being inlined."""
    entries: tuple[str, ...]
    """Functions of any unit to be called from outside."""
    notes: bytes = b""
    """Kept with the image, for code that maps or lists it."""
    base: Recipe | None = None
    """An image of the package's own that this one begins with a copy of. Units may call its functions."""


def one_unit(texts: Sequence[str], entries: Iterable[str], notes: bytes = b"") -> Generated:
    """Texts that become one object with some functions."""
    names = tuple(entries)
    return Generated((Unit(texts, names),), names, notes)
