"""Small random programs of tensors, with odd shapes and types, which iree-compile compiles here: kernels of
VMVX and of the processor give what numpy gives, and the same bits on all tiers and devices.

Where the compiler is not installed there is no case. Compiling takes most of the time: a case is a module of
several programs, and each of them alone where the compiler refuses one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

import jitree
from tests.fuzz.campaign import CASES, Campaign, Result

TARGETS: Final = ("vmvx", "llvm-cpu")
DEVICES: Final = ("local-sync", "local-task://?threads=2")
TIERS: Final = ("plain", "fast", "auto")
CALLS: Final = 2
PROGRAMS: Final = 16
"""Of a module: compiling one takes 0.5 s of a processor, sixteen 4 s."""
_SIZES: Final = (1, 2, 3, 5, 7, 8, 16, 17, 33)
_TYPES: Final[dict[str, npt.DTypeLike]] = {
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "f32": np.float32,
}  # fmt: skip
"""No f64: the compiler makes it f32 for VMVX."""
_INTEGERS: Final[dict[str, Any]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.xori": np.bitwise_xor,
    "arith.andi": np.bitwise_and,
}  # fmt: skip
_ORDERED: Final[dict[str, Any]] = {"arith.minsi": np.minimum, "arith.maxsi": np.maximum}
"""Not of narrow numbers: what the compiler makes for VMVX compares a product before it is made narrow, and
iree.runtime gives the same."""
_FLOATS: Final[dict[str, Any]] = {"arith.addf": np.add, "arith.subf": np.subtract}
"""No product: with a sum it is rounded once by some processors."""

Array = npt.NDArray[Any]


class Program(NamedTuple):
    type: str
    shape: tuple[int, ...]
    operations: tuple[tuple[str, int, int], ...]
    """Names, each with the numbers of two values: those of the arguments, 0 and 1, or earlier results."""
    reduced: int
    """The dimension that is added up in the end; -1: none."""
    seed: tuple[int, int]
    """The numbers of the case and of the program in it: what arguments are made of."""


Case = tuple[Program, ...]


def generate(number: int) -> Case:
    return tuple(_program(number, place) for place in range(PROGRAMS))


def _program(number: int, place: int) -> Program:
    chance = random.Random(f"tensors {number} {place}")
    kind = chance.choice(list(_TYPES))
    shape = tuple(chance.choice(_SIZES) for _ in range(chance.randint(1, 3)))
    names = list(_FLOATS if kind.startswith("f") else _INTEGERS)
    if kind in ("i32", "i64"):
        names += _ORDERED
    operations = [
        (chance.choice(names), chance.randrange(2 + done), chance.randrange(2 + done))
        for done in range(chance.randint(1, 6))
    ]
    is_exact = kind.startswith("i")  # sums of floats are added in any order
    reduced = chance.randrange(len(shape)) if is_exact and chance.random() < 0.5 else -1
    return Program(kind, shape, tuple(operations), reduced, (number, place))


def smaller(case: Case) -> Iterator[Case]:
    if len(case) > 1:
        middle = len(case) // 2
        yield case[:middle]
        yield case[middle:]
        return
    (program,) = case
    if program.reduced >= 0:
        yield (program._replace(reduced=-1),)
    if len(program.operations) > 1:
        yield (program._replace(operations=program.operations[:-1]),)
    yield from (
        (program._replace(shape=(*program.shape[:place], 1, *program.shape[place + 1 :])),)
        for place, size in enumerate(program.shape)
        if size > 1
    )


def text(case: Case) -> str:
    """A module in MLIR with a function for each program: `f0`, `f1` and so on."""
    functions = "\n".join(_function(f"f{place}", program) for place, program in enumerate(case))
    return f"module @m {{\n{functions}\n}}\n"


def _tensor(program: Program, shape: tuple[int, ...]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{program.type}>"


def _function(name: str, program: Program) -> str:
    tensor = _tensor(program, program.shape)
    lines = [
        f"%v{place + 2} = {operation} %v{left}, %v{right} : {tensor}"
        for place, (operation, left, right) in enumerate(program.operations)
    ]
    last, result = f"%v{len(program.operations) + 1}", tensor
    if program.reduced >= 0:
        result = _tensor(program, program.shape[: program.reduced] + program.shape[program.reduced + 1 :])
        lines += [
            f"%zero = arith.constant 0 : {program.type}",
            f"%empty = tensor.empty() : {result}",
            f"%start = linalg.fill ins(%zero : {program.type}) outs(%empty : {result}) -> {result}",
            f"%sum = linalg.reduce {{ arith.addi }} ins({last} : {tensor}) outs(%start : {result})"
            f" dimensions = [{program.reduced}]",
        ]
        last = "%sum"
    body = "\n".join([*lines, f"return {last} : {result}"])
    return f"func.func @{name}(%v0: {tensor}, %v1: {tensor}) -> {result} {{\n{body}\n}}"


def expected(program: Program, given: list[Array]) -> Array:
    values = list(given)
    known = _INTEGERS | _ORDERED | _FLOATS
    for name, left, right in program.operations:
        values.append(known[name](values[left], values[right]))
    last = values[-1]
    return last if program.reduced < 0 else last.sum(axis=program.reduced, dtype=last.dtype)


def arguments(program: Program, call: int) -> list[Array]:
    source = np.random.default_rng((*program.seed, call))
    dtype = np.dtype(_TYPES[program.type])
    if dtype.kind == "f":
        return [source.standard_normal(program.shape).astype(dtype) for _ in range(2)]
    ends = np.iinfo(_TYPES[program.type])
    return [source.integers(ends.min, ends.max, program.shape, dtype, endpoint=True) for _ in range(2)]


def compiled(case: Case, target: str) -> bytes | None:
    """A module, None where there is no compiler, or it takes no such program."""
    if find_spec("iree") is None or find_spec("iree.compiler") is None:
        return None
    from iree.compiler import compile_str
    from iree.compiler.tools import CompilerToolError

    options = ["--iree-llvmcpu-target-cpu=generic"] if target == "llvm-cpu" else []
    try:
        made: bytes = compile_str(text(case), target_backends=[target], extra_args=options)
    except CompilerToolError:
        return None
    return made


def run(case: Case) -> Result:
    found: list[str] = []
    counts: Counter[str] = Counter()
    modules = {target: compiled(case, target) for target in TARGETS}
    if len(case) > 1 and None in modules.values():
        for program in case:
            fewer, numbers = run((program,))
            found += fewer
            counts += numbers
        return found, counts
    for target, module in modules.items():
        if module is None:
            counts[f"{target}: not compiled"] += 1
            continue
        counts[CASES] = len(case)
        first: dict[tuple[int, int], Array] = {}
        for device, tier in ((device, tier) for device in DEVICES for tier in TIERS):
            with jitree.Session(device, tier=tier) as session:
                loaded = session.load(module)
                for place, call in ((place, call) for place in range(len(case)) for call in range(CALLS)):
                    given = arguments(case[place], call)
                    result = np.asarray(loaded[f"f{place}"](*given))
                    like = first.setdefault((place, call), result)
                    counts["calls"] += 1
                    if not is_right(result, expected(case[place], given), like):
                        where = f"call {call} of program {case[place].seed[1]} on {target}, {device}, {tier}"
                        found.append(f"{where}: {result}, at first {like}")
    return found, counts


def is_right(result: Array, right: Array, like: Array) -> bool:
    """Whether a result is that of numpy, and of another tier or device. What the compiler makes for VMVX adds
    floats in another order than the program, ``(a - b) + b`` is ``a``, and iree.runtime gives the same."""
    if result.dtype != right.dtype or result.tobytes() != like.tobytes():
        return False
    return (
        np.allclose(result, right, rtol=1e-4, atol=1e-4)
        if right.dtype.kind == "f"
        else np.array_equal(result, right)
    )


CAMPAIGN: Final = Campaign(
    "programs of tensors",
    generate,
    run,
    smaller,
    lambda case: text(case).encode(),
    seconds=300,
    prepare=lambda: None,
)
