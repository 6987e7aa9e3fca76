"""States what generators hand to builders: LLVM IR, and passes for it.

All that decides which of LLVM's passes run is here: pipelines by name, and options of machine code.
``jitree dump --time`` says what each takes.
"""

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
    """Whether machine code is made better where the texts leave something to do (:data:`TIDYING`): nearly
    half of the time of writing it."""
    passes: tuple[str, ...] = ()
    """What simplifies functions after ``whole``, by llvmlite's names, in this order and nothing else; none:
    what LLVM has for the level."""
    whole: tuple[str, ...] = ()
    """What inlines and looks at a module as a whole before ``passes``, by llvmlite's names."""


FIRST: Final = ("global_dead_code_eliminate",)
"""What every unit begins with: few of the functions that are linked in are called."""

_SKIPPING: Final = ("disable-lsr", "disable-cgp", "disable-post-ra")
TIDYING: Final = {"enable-misched": True, **dict.fromkeys(_SKIPPING, False)}
"""LLVM's options, as they are where machine code is made as good as LLVM can. Of the time of writing that of
a kernel additions for addresses (lsr) take a fifth, addresses and conversions near their uses (cgp) an
eleventh, the order without registers (misched) and with them (post-ra) a thirteenth and a twelfth. Sinking,
placed blocks, common subexpressions and copies take a ninth together, which is not worth the percent that
calls of PP-OCR cls take longer without."""

ALWAYS: Final = (
    "-enable-tail-merge=false",  # each way out of a handler ends in its jump
    # No masks for the rest of short loops: of one lane LLVM stores the number before it is narrowed.
    "-vectorizer-min-trip-count=0",
)
"""LLVM's options for all units."""


PLAIN: Final = Pipeline(2, loop_vectorization=False, slp_vectorization=False, loop_unrolling=False)
"""For code without loops that gain from more, such as the loop of the fast tier."""

LOOPS: Final = PLAIN._replace(loop_vectorization=True)
"""For loops over elements, which become vectors."""

PROGRAM: Final = Pipeline(2, loop_vectorization=True, slp_vectorization=True, loop_unrolling=True)
"""For programs: LLVM finds out what they have."""

STRAIGHT: Final = Pipeline(
    1,
    loop_vectorization=False,
    slp_vectorization=False,
    loop_unrolling=False,
    tidies=False,
    passes=("sroa", "instruction_combine", "jump_threading", "simplify_cfg", "dead_code_elimination"),
    whole=("always_inliner", "global_dead_code_eliminate", "ipsccp", "post_order_function_attributes"),
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
