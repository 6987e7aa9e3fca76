"""The fast tier's dispatch loop as a function of Numba's.

    from jitree.dispatch.fast.loop import run

``run(address of a state block)`` runs bytecode, without the GIL, until the call is complete or an instruction
must be left to Python. Programs do not import this module: it takes seconds to compile. They map the image of
the same function (:data:`jitree.dispatch.fast.LOOP`), so a process runs bytecode without numba.
"""

from __future__ import annotations

from llvmlite import binding
from numba import njit

from jitree.dispatch.fast import loop_texts

binding.set_option("", "-enable-tail-merge=false")  # each way out of a handler ends in its jump

run = njit("int64(int64)", nogil=True, error_model="numpy", no_cfunc_wrapper=True)(loop_texts.run)
