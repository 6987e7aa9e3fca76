"""What compilers write of a kernel's operands into its name: their sizes and element types.

``f_dispatch_0_elementwise_4_f32`` has one operation, whose operands all have the types that it names.
``f_dispatch_1_matmul_8x16x32_f32`` has one that sums over the last of its loops (here 32), and maybe others
that are fused with it and compute with its result: these have their operands in no name, but none of them
goes along the last loop. ``_encoding_0_encode_32x16xf32_to_32x16xf32`` lays a tensor out anew.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.types import BY_NAME, ElementType

KERNEL: Final = re.compile(r"((?<!\w)\w+_dispatch_\d+|_encoding_\d+)(?:_(\w+))?", re.ASCII)
"""The names that have to do with one kernel begin alike: that of its executable has no types, and comes
before the kernel's. It begins where a word does: of a long one not each letter is tried."""
_MOST_DIGITS: Final = 18
"""The most digits of a size that can be counted."""
_ELEMENTWISE, _ENCODE = "elementwise", "encode"
_SUMS: Final = {
    "matmul", "matmul_transpose_a", "matmul_transpose_b", "batch_matmul", "batch_matmul_transpose_a",
    "batch_matmul_transpose_b", "matvec", "vecmat", "batch_matvec", "batch_vecmat", "conv", "conv_1d_nwc_wcf",
    "conv_2d_nhwc_hwcf", "conv_2d_nchw_fchw",
}  # fmt: skip
"""Operations whose loops are in a known order, those that they sum over last."""


class RootOperation(NamedTuple):
    """What a kernel's name says of its operands."""

    kind: str
    sizes: tuple[int, ...]
    """Iterations of its loops; 0 for a loop whose size is not known."""
    types: tuple[ElementType, ...]

    def types_of(self, shape: Sequence[int] | None, length: int) -> frozenset[ElementType]:
        """The types that an operand of so many bytes has, and of a shape if one is known; none if that cannot
        be told."""
        if self.kind not in _SUMS:
            count = math.prod(self.sizes)
            return frozenset(row for row in self.types if count * row.bits == 8 * length)
        if shape is None or not self._is_summed(Counter(size for size in shape if size != 1)):
            return frozenset()
        types = frozenset(self.types[:-1] or self.types)  # the last one is that of the sums
        return types if all(math.prod(shape) * row.bits == 8 * length for row in types) else frozenset()

    def _is_summed(self, shape: Counter[int]) -> bool:
        """Whether an operand goes along the last loop, whatever the others are."""
        return shape <= Counter(self.sizes) and not shape <= Counter(self.sizes[:-1])


def words_of(rest: str) -> list[str]:
    return re.split("[_x]", rest)


def operation(words: Sequence[str]) -> RootOperation | None:
    """None for the name of a kernel that says nothing, or less."""
    head = list(itertools.takewhile(lambda word: not is_size(word), words))
    sizes = [0 if word == "D" else int(word) for word in itertools.takewhile(is_size, words[len(head) :])]
    rest = words[len(head) + len(sizes) :]
    kind = "_".join(head)
    if kind == _ENCODE:
        rest = rest[:1]
    elif kind not in _SUMS and kind != _ELEMENTWISE:
        return None
    types = [BY_NAME.get(word) for word in rest]
    if not types or None in types or not sizes or (kind not in _SUMS and 0 in sizes):
        return None
    return RootOperation(kind, tuple(sizes), tuple(row for row in types if row is not None))


def named(name: str) -> RootOperation | None:
    found = KERNEL.fullmatch(name)
    return operation(words_of(found[2] or "")) if found else None


def is_size(word: str) -> bool:
    """Whether it is that of a loop; ``D`` for one that is not known."""
    return (word.isdecimal() and len(word) <= _MOST_DIGITS) or word == "D"
