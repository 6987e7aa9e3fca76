"""The loop as a function that Numba compiles, and the texts of its image.

Numba cannot say that handlers call each other in place of returning. So they are LLVM IR, which an intrinsic
links into the function ``run`` where that is compiled: by Numba (:mod:`jitree.dispatch.fast.loop`), or by the
builder of the image. Only those and tests import this module.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from jitree.codegen.frontend import compiled, intrinsic, link_texts, signature, signature_of, types
from jitree.codegen.image.generated import Generated, one_unit
from jitree.dispatch import semantics_code
from jitree.dispatch.fast import skeleton
from jitree.regs import fuel

SIGNATURE: Final = signature(types.int64, types.int64)


@intrinsic(SIGNATURE)
def handlers(context: Any, builder: Any, stated: Any, given: Any) -> Any:
    """``handlers(state)`` goes through the handlers, from where the state block says."""
    link_texts(context, [skeleton.generate(), *semantics_code.texts()], "loop")
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(64), [pointer])
    return builder.call(ir.Function(builder.module, kind, "loop"), [builder.inttoptr(given[0], pointer)])


def run(state: int) -> int:
    """Runs bytecode on the state block at an address until Python is needed; why, is the result (EXIT_*)."""
    return handlers(state)  # type: ignore[call-arg,no-any-return]


def generate() -> Generated:
    """The loop's image: the functions ``run`` and ``clock``, what they link, and the rows as notes."""
    made, clock = compiled(run, "run", SIGNATURE), compiled(fuel.clock, "clock", signature_of(fuel.clock))
    return one_unit([made.text, *made.linked, clock.text], ("run", "clock"), semantics_code.rows())
