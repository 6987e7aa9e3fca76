"""How kernels round what they multiply and add.

Compilers write ``fma.f32`` where a product is added to something. The C interpreter rounds the product
first, on most processors (``strict``). Compiled libraries, as those that people compare with, do not
(``fused``), and are twice as fast: so kernels run ``fma.f32.fused`` instead, unless they are to be strict.
What is decided is decided while a module is decoded, so that all tiers compute the same bits.
"""

from __future__ import annotations

from typing import Final

from jitree.vmfb.words import OPCODE

FUSED: Final = "fused"
"""Products are not rounded before they are added: of kernels."""
STRICT: Final = "strict"
"""Each operation rounds: of programs, and of kernels that are asked to."""

ARITHMETICS: Final = (FUSED, STRICT)
MULTIPLY_ADD: Final = {FUSED: OPCODE["fma.f32.fused"], STRICT: OPCODE["fma.f32"]}
"""The opcode word that ``fma.f32`` becomes."""
