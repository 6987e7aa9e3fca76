"""Arithmetic, comparisons and conversions as LLVM IR, one row or rule an instruction.

The meaning is that of the functions in :mod:`jitree.dispatch.semantics`; tests compare all tiers on edge
values. Conditions under which an instruction fails are checked by the caller before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jitree.dispatch import vector_math_ir
from jitree.dispatch.native.module_text import LLVM_TYPES, ModuleText
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs.layout import MATH_FUNCTIONS

Let = Callable[[str], str]
"""Adds an instruction and returns the name of its result."""

_BINARY: Final = {
    **{f"{name}.{width}": name for name in ("add", "sub", "mul", "and", "or", "xor")
       for width in ("i32", "i64")},
    **{f"div.{width}.s": "sdiv" for width in ("i32", "i64")},
    **{f"div.{width}.u": "udiv" for width in ("i32", "i64")},
    **{f"rem.{width}.s": "srem" for width in ("i32", "i64")},
    **{f"rem.{width}.u": "urem" for width in ("i32", "i64")},
    **{f"{name}.{width}": f"f{name}" for name in ("add", "sub", "mul", "div") for width in ("f32", "f64")},
}  # fmt: skip
_INTRINSICS: Final = {
    **{f"{name}.{width}.{sign}": f"{sign}{name}" for name in ("min", "max")
       for width in ("i32", "i64") for sign in "su"},
    **{f"{name}.{width}": name for name in ("ceil", "floor", "round", "sqrt") for width in ("f32", "f64")},
    **{f"abs.{width}": "fabs" for width in ("f32", "f64")},
}  # fmt: skip
_CONDITIONS: Final = {
    **{f"cmp.{name}.{width}": f"icmp {name}" for name in ("eq", "ne") for width in ("i32", "i64")},
    **{f"cmp.lt.{width}.{sign}": f"icmp {sign}lt" for width in ("i32", "i64") for sign in "su"},
    **{f"cmp.{name}.{width}.{kind}": f"fcmp {condition}" for width in ("f32", "f64")
       for name, kind, condition in (
           ("eq", "o", "oeq"), ("eq", "u", "ueq"), ("ne", "o", "une"), ("ne", "u", "une"), ("lt", "o", "olt"),
           ("lt", "u", "ult"), ("lte", "o", "ole"), ("lte", "u", "ule"),
       )},
}  # fmt: skip
_CASTS: Final = {
    "trunc.i64.i32": "trunc", "ext.i32.i64.s": "sext", "ext.i32.i64.u": "zext", "trunc.f64.f32": "fptrunc",
    "ext.f32.f64": "fpext", "cast.si32.f32": "sitofp", "cast.ui32.f32": "uitofp", "cast.si64.f32": "sitofp",
    "cast.ui64.f32": "uitofp", "cast.si64.f64": "sitofp", "cast.ui64.f64": "uitofp",
    "bitcast.i32.f32": "bitcast", "bitcast.f32.i32": "bitcast", "bitcast.i64.f64": "bitcast",
    "bitcast.f64.i64": "bitcast",
}  # fmt: skip
_EXTENSIONS: Final = {
    "ext.i8.i32.s": ("i8", "sext"), "ext.i8.i32.u": ("i8", "zext"), "trunc.i32.i8": ("i8", "zext"),
    "ext.i16.i32.s": ("i16", "sext"), "ext.i16.i32.u": ("i16", "zext"), "trunc.i32.i16": ("i16", "zext"),
}  # fmt: skip
_SHIFTS: Final = {"shl": "shl", "shr.s": "ashr", "shr.u": "lshr"}
_INT64_MIN: Final = -(2**63)


def can_emit(mnemonic: str) -> bool:
    """Whether there is IR for an instruction."""
    return mnemonic in SEMANTICS and (mnemonic not in _UNKNOWN)


def condition(let: Let, mnemonic: str, arguments: Sequence[str]) -> str | None:
    """The i1 of a comparison; None for other instructions. References are compared elsewhere."""
    kind = _type(mnemonic)
    text = _CONDITIONS.get(mnemonic)
    if text is not None:
        return let(f"{text} {kind} {arguments[0]}, {arguments[1]}")
    if mnemonic.startswith("cmp.nz.i"):
        return let(f"icmp ne {kind} {arguments[0]}, 0")
    if mnemonic.startswith("cmp.nan."):
        return let(f"fcmp uno {kind} {arguments[0]}, {arguments[0]}")
    return None


def _type(mnemonic: str) -> str:
    """The LLVM type of the first operand."""
    kind = SEMANTICS[mnemonic].argument_types[0]
    return LLVM_TYPES[kind]


def emit(
    let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str], math: Callable[[str], str]
) -> str:
    """The result of an instruction that is no comparison. ``math(name)`` is the address of a C function."""
    name, _, rest = mnemonic.partition(".")
    width = rest.split(".")[0]
    llvm = LLVM_TYPES.get(width, "")
    semantic = SEMANTICS[mnemonic]
    if mnemonic in _BINARY:
        return let(f"{_BINARY[mnemonic]} {llvm} {arguments[0]}, {arguments[1]}")
    if mnemonic in _INTRINSICS:
        operands = [llvm] * len(arguments)
        function = module.intrinsic(f"llvm.{_INTRINSICS[mnemonic]}.{width}", llvm, operands)
        return _call(let, function, llvm, operands, arguments)
    if mnemonic in _CASTS:
        kinds = mnemonic.split(".")
        return let(f"{_CASTS[mnemonic]} {_cast_type(kinds[1])} {arguments[0]} to {_cast_type(kinds[2])}")
    if mnemonic in _EXTENSIONS:
        narrow, extension = _EXTENSIONS[mnemonic]
        return let(f"{extension} {narrow} {let(f'trunc i32 {arguments[0]} to {narrow}')} to i32")
    if mnemonic in vector_math_ir.MNEMONICS:
        symbol = f'@"math.{mnemonic}"'
        module.define(vector_math_ir.function_text(mnemonic, symbol, 1, "internal"))
        return _call(let, symbol, llvm, [llvm] * len(arguments), arguments)
    if semantic.math_function is not None:
        called = math(semantic.math_function)
        return f"{_call(let, called, llvm, [llvm] * len(arguments), arguments, ' #4')}"
    return _RULES[name if name != "cast" else _cast_rule(mnemonic)](let, module, mnemonic, arguments)


def _cast_type(kind: str) -> str:
    return LLVM_TYPES[kind.replace("si", "i").replace("ui", "i")]


def _call(
    let: Let, function: str, result: str, kinds: Sequence[str], arguments: Sequence[str], attributes: str = ""
) -> str:
    typed = ", ".join(f"{kind} {argument}" for kind, argument in zip(kinds, arguments, strict=True))
    return let(f"call {result} {function}({typed}){attributes}")


def math_index(name: str) -> int:
    """Position of a C function in the table of STATE.math."""
    return MATH_FUNCTIONS.index(name)


# -- rules of instructions that take more than one ----------------------------------------------------------


def _fma(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    """Rounded twice."""
    prefix, llvm = ("f" if mnemonic[4] == "f" else ""), _type(mnemonic)
    product = let(f"{prefix}mul {llvm} {arguments[0]}, {arguments[1]}")
    return let(f"{prefix}add {llvm} {product}, {arguments[2]}")


def _not(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    return let(f"xor {_type(mnemonic)} {arguments[0]}, -1")


def _neg(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    width = mnemonic.split(".")[1]
    return fenced(let, module, width, let(f"fneg {LLVM_TYPES[width]} {arguments[0]}"))


def _shift(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    name, kind, *sign = mnemonic.split(".")
    operation = _SHIFTS[".".join([name, *sign])]
    amount = let(f"and i32 {arguments[1]}, {31 if kind == 'i32' else 63}")
    if kind == "i64":
        amount = let(f"zext i32 {amount} to i64")
    return let(f"{operation} {kind} {arguments[0]}, {amount}")


def _ctlz(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    kind = _type(mnemonic)
    function = module.intrinsic(f"llvm.ctlz.{kind}", kind, (kind, "i1"))
    return let(f"call {kind} {function}({kind} {arguments[0]}, i1 false)")


def _abs(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    kind = _type(mnemonic)
    function = module.intrinsic(f"llvm.abs.{kind}", kind, (kind, "i1"))
    return let(f"call {kind} {function}({kind} {arguments[0]}, i1 false)")


def _select(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    width = mnemonic.split(".")[1]
    kind, (_, first, second) = LLVM_TYPES[width], arguments
    if width.startswith("f"):
        first, second = fenced(let, module, width, first), fenced(let, module, width, second)
    chosen = let(f"icmp ne i32 {arguments[0]}, 0")
    return let(f"select i1 {chosen}, {kind} {first}, {kind} {second}")


def fenced(let: Let, module: ModuleText, width: str, value: str) -> str:
    """A float of which LLVM knows nothing. It would make a minimum of a choice between compared values, which
    flushes subnormal ones in kernels; fold negations into additions, and leave out multiplications by one,
    where a NaN would then have other bits."""
    kind = LLVM_TYPES[width]
    function = module.intrinsic(f"llvm.arithmetic.fence.{width}", kind, (kind,))
    return let(f"call {kind} {function}({kind} {value})")


def _minimum(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    kind, (lhs, rhs) = _type(mnemonic), arguments
    test = let(
        f"fcmp olt {kind} {rhs}, {lhs}" if mnemonic.startswith("min") else f"fcmp olt {kind} {lhs}, {rhs}"
    )
    return let(f"select i1 {test}, {kind} {rhs}, {kind} {lhs}")


def _rsqrt(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    kind, width = _type(mnemonic), mnemonic.split(".")[1]
    function = module.intrinsic(f"llvm.sqrt.{width}", kind, (kind,))
    return let(f"fdiv {kind} 1.0, {let(f'call {kind} {function}({kind} {arguments[0]})')}")


def _round(let: Let, module: ModuleText, kind: str, x: str) -> str:
    width = "f32" if kind == "float" else "f64"
    return let(f"call {kind} {module.intrinsic(f'llvm.round.{width}', kind, (kind,))}({kind} {x})")


def _round_even(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    """Corrects ties that were rounded away from zero to an odd value; so -0.5 becomes +0."""
    kind, width, x = _type(mnemonic), mnemonic.split(".")[1], arguments[0]
    rounded = _round(let, module, kind, x)
    distance = let(f"fsub {kind} {x}, {rounded}")
    function = module.intrinsic(f"llvm.fabs.{width}", kind, (kind,))
    is_tie = let(f"fcmp oeq {kind} {let(f'call {kind} {function}({kind} {distance})')}, 0.5")
    is_odd = let(f"trunc i64 {let(f'fptosi {kind} {rounded} to i64')} to i1")
    corrected = let(f"select i1 {is_tie}, i1 {is_odd}, i1 false")
    step = let(f"select i1 {let(f'fcmp ogt {kind} {rounded}, 0.0')}, {kind} -1.0, {kind} 1.0")
    return let(f"select i1 {corrected}, {kind} {let(f'fadd {kind} {rounded}, {step}')}, {kind} {rounded}")


def _to_i64(let: Let, kind: str, rounded: str) -> str:
    """Of an integral value; what does not fit, NaN too, becomes the smallest integer."""
    inside = let(f"fcmp oge {kind} {rounded}, 0xC3E0000000000000")
    below = let(f"fcmp olt {kind} {rounded}, 0x43E0000000000000")
    fits = let(f"and i1 {inside}, {below}")
    safe = let(f"select i1 {fits}, {kind} {rounded}, {kind} 0.0")
    return let(f"select i1 {fits}, i64 {let(f'fptosi {kind} {safe} to i64')}, i64 {_INT64_MIN}")


def _to_integer(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    _, source, target = mnemonic.split(".")
    kind, x = LLVM_TYPES[source], arguments[0]
    if source == "f64" and target.endswith("32"):  # through binary32, as the reference runtime does
        kind, x = "float", let(f"fptrunc double {x} to float")
    rounded = _round(let, module, kind, x)
    result = _to_i64(let, kind, rounded)
    if target.endswith("32"):
        return let(f"trunc i64 {result} to i32")
    if mnemonic != "cast.f32.ui64":
        return result
    high = let(f"fcmp oge {kind} {rounded}, 0x43E0000000000000")
    fits = let(f"and i1 {high}, {let(f'fcmp olt {kind} {rounded}, 0x43F0000000000000')}")
    lowered = let(f"fsub {kind} {rounded}, 0x43E0000000000000")
    safe = let(f"select i1 {fits}, {kind} {lowered}, {kind} 0.0")
    upper = let(f"add i64 {let(f'fptosi {kind} {safe} to i64')}, {_INT64_MIN}")
    return let(f"select i1 {fits}, i64 {upper}, i64 {result}")


def _through_f32(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    """32-bit integer to f64, as the reference runtime does it."""
    operation = "sitofp" if ".si32." in mnemonic else "uitofp"
    return let(f"fpext float {let(f'{operation} i32 {arguments[0]} to float')} to double")


def _fpowi(let: Let, module: ModuleText, mnemonic: str, arguments: Sequence[str]) -> str:
    """By repeated squaring; only the low 32 bits of the exponent count."""
    width = mnemonic.split(".")[1]
    kind = LLVM_TYPES[width]
    fence = module.intrinsic(f"llvm.arithmetic.fence.{width}", kind, (kind,))
    module.define(_POWER.format(kind=kind, mnemonic=mnemonic, fence=fence))
    return let(f'call {kind} @"math.{mnemonic}"({kind} {arguments[0]}, i64 {arguments[1]})')


_POWER: Final = """define internal {kind} @"math.{mnemonic}"({kind} %base, i64 %wide) {{
entry:
  %exponent = trunc i64 %wide to i32
  %negative = icmp slt i32 %exponent, 0
  %opposite = sub i32 0, %exponent
  %magnitude = select i1 %negative, i32 %opposite, i32 %exponent
  %one = call {kind} {fence}({kind} 1.0)
  br label %head
head:
  %steps = phi i32 [ %magnitude, %entry ], [ %fewer, %more ]
  %power = phi {kind} [ %one, %entry ], [ %next, %more ]
  %factor = phi {kind} [ %base, %entry ], [ %square, %more ]
  %done = icmp eq i32 %steps, 0
  br i1 %done, label %end, label %more
more:
  %odd = trunc i32 %steps to i1
  %product = fmul {kind} %power, %factor
  %next = select i1 %odd, {kind} %product, {kind} %power
  %fewer = lshr i32 %steps, 1
  %square = fmul {kind} %factor, %factor
  br label %head
end:
  %inverse = fdiv {kind} 1.0, %power
  %result = select i1 %negative, {kind} %inverse, {kind} %power
  ret {kind} %result
}}"""

Rule = Callable[[Let, ModuleText, str, Sequence[str]], str]
_RULES: Final[dict[str, Rule]] = {
    "fma": _fma, "not": _not, "neg": _neg, "shl": _shift, "shr": _shift, "ctlz": _ctlz, "abs": _abs,
    "select": _select, "min": _minimum, "max": _minimum, "fpowi": _fpowi, "rsqrt": _rsqrt, "round":
    _round_even, "to integer": _to_integer, "through f32": _through_f32,
}  # fmt: skip


def _cast_rule(mnemonic: str) -> str:
    return "to integer" if mnemonic.split(".")[1].startswith("f") else "through f32"


_KNOWN_NAMES: Final = frozenset(_RULES) | {"cast"}
_UNKNOWN: Final = frozenset(
    mnemonic
    for mnemonic, semantic in SEMANTICS.items()
    if not (
        mnemonic in _BINARY
        or mnemonic in _INTRINSICS
        or mnemonic in _CONDITIONS
        or mnemonic in _CASTS
        or mnemonic in _EXTENSIONS
        or mnemonic in vector_math_ir.MNEMONICS
        or semantic.math_function is not None
        or mnemonic.startswith("cmp.n")
        or mnemonic.partition(".")[0] in _KNOWN_NAMES
    )
)
