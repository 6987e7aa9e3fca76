"""exp, tanh, erf, log and pow: machine code of vectors agrees with plain Python bit for bit, and both
with the C library within the stated distance."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest

from jitree.dispatch import vector_math_ir
from jitree.dispatch.image.compile import host_target, target_machine
from jitree.dispatch.semantics import SEMANTICS

Array = npt.NDArray[np.float32]

REFERENCE: dict[str, Callable[..., float]] = {
    "exp.f32": math.exp, "tanh.f32": math.tanh, "erf.f32": math.erf, "log.f32": math.log, "pow.f32": math.pow,
}  # fmt: skip
UNITS = {"exp.f32": 1.0, "log.f32": 1.0, "pow.f32": 1.0, "tanh.f32": 6.0, "erf.f32": 7.0}
EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, 1.2e-38, 3e38, -3e38,
     16777215, 16777216, -16777217, 88.72283, 88.72283173, 88.72284, 88.8, -86, -87.4,
     -103.9, -104, -150, 9, 9.1, 3.9, 4],
    np.float32,
)  # fmt: skip
LANES = 16


@functools.cache
def _compiled(mnemonic: str) -> Callable[..., Array]:
    count = len(SEMANTICS[mnemonic].argument_types)
    places = [f"%p{n}" for n in range(count + 1)]
    steps = []
    for n, place in enumerate(places):
        steps.append(f"%q{n} = getelementptr float, ptr {place}, i64 %i")
        if n < count:
            steps.append(f"%x{n} = load <{LANES} x float>, ptr %q{n}, align 4")
    operands = ", ".join(f"<{LANES} x float> %x{n}" for n in range(count))
    text = f"""
{vector_math_ir.function_text(mnemonic, "@function", LANES, "internal")}
define void @run({", ".join(f"ptr {place}" for place in places)}, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  {chr(10).join(steps)}
  %y = call <{LANES} x float> @function({operands})
  store <{LANES} x float> %y, ptr %q{count}, align 4
  %j = add i64 %i, {LANES}
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""
    machine = target_machine(host_target())
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    builder.getModulePassManager().run(module, builder)
    own = llvm.Target.from_triple(machine.triple).create_target_machine(  # an engine keeps what it is given
        cpu=host_target().cpu, features=host_target().features, opt=3, codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(module, own)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (count + 1), ctypes.c_int64)
    function = kind(engine.get_function_address("run"))

    def run(*arguments: Array) -> Array:
        result = np.empty_like(arguments[0])
        function(*(array.ctypes.data for array in (*arguments, result)), len(result))
        return result

    run.engine = engine  # type: ignore[attr-defined]
    return run


def _arguments(mnemonic: str) -> list[Array]:
    """Edge values (pairs of them), random bits, and random values of usual size, whole vectors in all."""
    random = np.random.default_rng(5)
    count = len(SEMANTICS[mnemonic].argument_types)
    edges = [array.ravel() for array in np.meshgrid(*[EDGES] * count)]
    columns = [
        np.concatenate([
            edge,
            random.integers(0, 2**32, 3000, np.uint32).view(np.float32),
            random.normal(0, 6, 3000).astype(np.float32),
            random.integers(-30, 30, 500).astype(np.float32),
        ])
        for edge in edges
    ]  # fmt: skip
    return [np.resize(column, -(-len(column) // LANES) * LANES) for column in columns]


@pytest.mark.parametrize("mnemonic", sorted(vector_math_ir.MNEMONICS))
def test_vectors_equal_plain_python(mnemonic: str) -> None:
    arguments = _arguments(mnemonic)
    vectors = _compiled(mnemonic)(*arguments)
    rows = zip(*(column.tolist() for column in arguments), strict=True)
    plain = np.array([SEMANTICS[mnemonic].function(*row) for row in rows], np.float32)
    same = (vectors.view(np.uint32) == plain.view(np.uint32)) | (np.isnan(vectors) & np.isnan(plain))
    wrong = np.flatnonzero(~same)[:3]
    assert not len(wrong), [(a[wrong], plain[wrong], vectors[wrong]) for a in arguments]


def _reference(mnemonic: str, *row: float) -> float:
    """In binary64, errors as C gives them."""
    try:
        return REFERENCE[mnemonic](*row)
    except OverflowError:
        return math.copysign(math.inf, row[0]) if mnemonic == "pow.f32" and row[1] % 2 == 1 else math.inf
    except ValueError:
        if mnemonic == "log.f32" and row[0] == 0.0:
            return -math.inf
        if mnemonic == "pow.f32" and row[0] == 0.0:
            return math.copysign(math.inf, row[0]) if row[1] % 2 == 1 else math.inf
        return math.nan


@pytest.mark.parametrize("mnemonic", sorted(vector_math_ir.MNEMONICS))
def test_distance_from_the_library(mnemonic: str) -> None:
    arguments = _arguments(mnemonic)
    results = _compiled(mnemonic)(*arguments)
    rows = zip(*(column.tolist() for column in arguments), strict=True)
    exact = np.array([_reference(mnemonic, *row) for row in rows])
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    assert (np.isnan(results) == np.isnan(rounded)).all()
    assert (np.isinf(results) == np.isinf(rounded)).all()
    assert (np.signbit(results) == np.signbit(rounded))[~np.isnan(rounded)].all()
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    distance = np.abs(results[finite].astype(np.float64) - exact[finite]) / unit
    assert distance.max() <= UNITS[mnemonic]


@pytest.mark.parametrize("mnemonic", ["tanh.f32", "erf.f32"])
def test_bounds(mnemonic: str) -> None:
    """No value beyond 1 on the way to the limit, and 1 from there on."""
    x = np.linspace(2.5, 10, 160000, dtype=np.float32)
    y = _compiled(mnemonic)(x)
    assert y.max() == 1.0
    assert (y[x > 9.1] == 1.0).all()
    assert (_compiled(mnemonic)(-x) == -y).all()
