"""The primitives of the semantics as native operations: what each function of
:mod:`jitree.dispatch.primitives` is replaced by when Numba compiles a semantics function.

Only the builder and tests import this module.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

JIT_OPTIONS: Final = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""No exceptions of division, and nothing that refers to Python."""


def _unary(name: str, result: Any = None) -> Any:
    """An LLVM intrinsic of one operand, such as ``llvm.round``."""

    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            operand = args[0].type
            called = builder.module.declare_intrinsic(name, [operand])
            return builder.call(called, [args[0]])

        return (result or x)(x), codegen

    return function


def _leading_zeros(kind: Any) -> Any:
    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

        return kind(x), codegen

    return function


def _binary(operation: str) -> Any:
    """An LLVM instruction of two operands of one integer type."""

    @intrinsic
    def function(typingctx: Any, lhs: Any, rhs: Any) -> Any:
        if lhs != rhs:
            raise TypeError(f"{operation} of {lhs} and {rhs}")

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, operation)(*args)

        return lhs(lhs, rhs), codegen

    return function


@njit(**JIT_OPTIONS)
def divide(lhs: Any, rhs: Any) -> Any:
    return lhs / rhs


@njit(**JIT_OPTIONS)
def require_signed_division(lhs: Any, rhs: Any, minimum: Any) -> None:
    """Checked by the loop's handler, which leaves the loop instead."""


@njit(**JIT_OPTIONS)
def require_unsigned_division(rhs: Any) -> None:
    """Checked by the loop's handler, which leaves the loop instead."""


NATIVE: Final[dict[str, Any]] = {
    "i8": types.int8,
    "i16": types.int16,
    "i32": types.int32,
    "i64": types.int64,
    "u32": types.uint32,
    "u64": types.uint64,
    "f32": types.float32,
    "f64": types.float64,
    "f32_from_integer": types.float32,
    "f64_from_integer": types.float64,
    "integer": types.int64,
    "divide": divide,
    "require_signed_division": require_signed_division,
    "require_unsigned_division": require_unsigned_division,
    "signed_quotient": _binary("sdiv"),
    "signed_remainder": _binary("srem"),
    "unsigned_quotient": _binary("udiv"),
    "unsigned_remainder": _binary("urem"),
    "shift_right_logical": _binary("lshr"),
    "leading_zeros_32": _leading_zeros(types.int32),
    "leading_zeros_64": _leading_zeros(types.int64),
    "square_root": _unary("llvm.sqrt"),
    "round_down": _unary("llvm.floor"),
    "round_up": _unary("llvm.ceil"),
    "round_half_away": _unary("llvm.round"),
}
