"""The peephole pass: rewrites the blocks of a function before they are laid out as words.

``fuse`` sees a verified function whose blocks still have symbolic edges, so instructions may change their
size freely. What a rewrite must keep:

* every block stays, under the same ``offset`` (others branch to it);
* ``block.words``, ``block.starts`` and ``block.offsets`` stay in step, one entry per remaining instruction;
* ``exit.offset`` stays the byte offset of the instruction that may fail or be reported in a backtrace;
* each displacement word of an exit has its :class:`~jitree.vmfb.blocks.Edge`; moves that a form carries in
  its own words are removed from the edge, all others become a stub;
* ``block.call_sites`` positions stay right when words in front of a call change.

New opcode words are added to ``INTERNAL_FORMS`` in :mod:`jitree.vmfb.words` with their layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.vmfb.blocks import Block

PASSES: Final[tuple[Callable[[Sequence[Block]], None], ...]] = ()
"""Rewrites in the order in which they run on each function."""


def fuse(blocks: Sequence[Block]) -> None:
    """Rewrites the blocks of one function in place."""
    for rewrite in PASSES:
        rewrite(blocks)
