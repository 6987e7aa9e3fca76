"""Functions of vector math as machine code that runs over whole arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from jitree.codegen.image.compile import Target, host_target, target_machine
from jitree.codegen.vector_math import pairs
from jitree.codegen.vector_math.ir import function_texts
from jitree.dispatch.native.nests.operations import vector_functions
from jitree.dispatch.semantics import SEMANTICS

Array = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]
LANES = 16


def plain_target() -> Target:
    """This machine without its extensions: short vectors, no fused multiply-add, no gathers."""
    return Target(llvm.get_process_triple(), "", "")


def avx2_target() -> Target:
    """Any processor with AVX2."""
    return Target(llvm.get_process_triple(), "x86-64-v3", "")


@functools.cache
def compiled(mnemonic: str, target: Target | None = None) -> Callable[..., Any]:
    """``f(*arguments, out=None)`` over arrays whose length is a multiple of LANES; as nests have it, or for
    another processor."""
    functions: Mapping[str, Callable[..., float]] = vector_functions(LANES)
    if target is not None:
        functions = pairs.FUNCTIONS if target == avx2_target() else {}
    target = target or host_target()
    count = len(SEMANTICS[mnemonic].argument_types)
    element = {"f32": "float", "f64": "double"}[SEMANTICS[mnemonic].result_type]
    places = [f"%p{n}" for n in range(count + 1)]
    steps = []
    for n, place in enumerate(places):
        steps.append(f"%q{n} = getelementptr {element}, ptr {place}, i64 %i")
        if n < count:
            steps.append(f"%x{n} = load <{LANES} x {element}>, ptr %q{n}, align 1")
    operands = ", ".join(f"<{LANES} x {element}> %x{n}" for n in range(count))
    newline = "\n"
    texts = function_texts(mnemonic, "@function", LANES, "internal", functions.get(mnemonic))
    text = f"""
{newline.join(dict.fromkeys(texts))}
define void @run({", ".join(f"ptr {place}" for place in places)}, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  {newline.join(steps)}
  %y = call <{LANES} x {element}> @function({operands})
  store <{LANES} x {element}> %y, ptr %q{count}, align 1
  %j = add i64 %i, {LANES}
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
    machine = target_machine(target)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    own = llvm.Target.from_triple(machine.triple).create_target_machine(  # an engine keeps what it is given
        cpu=target.cpu, features=target.features, opt=3, codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(module, own)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (count + 1), ctypes.c_int64)
    function = kind(engine.get_function_address("run"))

    def run(*arguments: Any, out: Any = None) -> Any:
        result = np.empty_like(arguments[0]) if out is None else out
        function(*(array.ctypes.data for array in (*arguments, result)), len(result))
        return result

    run.engine = engine  # type: ignore[attr-defined]
    return run
