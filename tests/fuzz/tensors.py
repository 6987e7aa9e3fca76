"""Small random programs of tensors, with odd shapes and types, which iree-compile compiles here: kernels of
VMVX and of the processor, on all tiers, give what numpy gives.

Where the compiler is not installed, or refuses a program, there is no case. Compiling takes most of the time.
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


class Case(NamedTuple):
    type: str
    shape: tuple[int, ...]
    operations: tuple[tuple[str, int, int], ...]
    """Names, each with the numbers of two values: those of the arguments, 0 and 1, or earlier results."""
    reduced: int
    """The dimension that is added up in the end; -1: none."""
    number: int


def generate(number: int) -> Case:
    chance = random.Random(f"tensors {number}")
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
    return Case(kind, shape, tuple(operations), reduced, number)


def smaller(case: Case) -> Iterator[Case]:
    if case.reduced >= 0:
        yield case._replace(reduced=-1)
    if len(case.operations) > 1:
        yield case._replace(operations=case.operations[:-1])
    yield from (
        case._replace(shape=(*case.shape[:place], 1, *case.shape[place + 1 :]))
        for place, size in enumerate(case.shape)
        if size > 1
    )


def _tensor(case: Case, shape: tuple[int, ...]) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{case.type}>"


def text(case: Case) -> str:
    """The program in MLIR."""
    tensor = _tensor(case, case.shape)
    lines = [
        f"%v{place + 2} = {name} %v{left}, %v{right} : {tensor}"
        for place, (name, left, right) in enumerate(case.operations)
    ]
    last, result = f"%v{len(case.operations) + 1}", tensor
    if case.reduced >= 0:
        result = _tensor(case, case.shape[: case.reduced] + case.shape[case.reduced + 1 :])
        lines += [
            f"%zero = arith.constant 0 : {case.type}",
            f"%empty = tensor.empty() : {result}",
            f"%start = linalg.fill ins(%zero : {case.type}) outs(%empty : {result}) -> {result}",
            f"%sum = linalg.reduce {{ arith.addi }} ins({last} : {tensor}) outs(%start : {result})"
            f" dimensions = [{case.reduced}]",
        ]
        last = "%sum"
    body = "\n".join([*lines, f"return {last} : {result}"])
    return f"module @m {{ func.func @f(%v0: {tensor}, %v1: {tensor}) -> {result} {{\n{body}\n}} }}\n"


def expected(case: Case, given: list[Array]) -> Array:
    values = list(given)
    known = _INTEGERS | _ORDERED | _FLOATS
    for name, left, right in case.operations:
        values.append(known[name](values[left], values[right]))
    last = values[-1]
    return last if case.reduced < 0 else last.sum(axis=case.reduced, dtype=last.dtype)


def arguments(case: Case, call: int) -> list[Array]:
    source = np.random.default_rng((case.number, call))
    dtype = np.dtype(_TYPES[case.type])
    if dtype.kind == "f":
        return [source.standard_normal(case.shape).astype(dtype) for _ in range(2)]
    ends = np.iinfo(_TYPES[case.type])
    return [source.integers(ends.min, ends.max, case.shape, dtype, endpoint=True) for _ in range(2)]


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
    for target in TARGETS:
        module = compiled(case, target)
        if module is None:
            counts[f"{target}: not compiled"] += 1
            continue
        counts[CASES] = 1
        for device, tier in ((device, tier) for device in DEVICES for tier in TIERS):
            with jitree.Session(device, tier=tier) as session:
                function = session.load(module).f
                for call in range(CALLS):
                    given = arguments(case, call)
                    counts["calls"] += 1
                    result, right = np.asarray(function(*given)), expected(case, given)
                    if result.dtype != right.dtype or not np.array_equal(result, right):
                        found.append(f"call {call} on {target}, {device}, {tier}: {result}, not {right}")
    return found, counts


CAMPAIGN: Final = Campaign(
    "programs of tensors",
    generate,
    run,
    smaller,
    lambda case: text(case).encode(),
    seconds=300,
    prepare=lambda: None,
)
