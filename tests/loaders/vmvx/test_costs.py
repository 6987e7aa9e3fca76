"""What a workgroup of a kernel is thought to cost before it has run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf, isfinite

import pytest

from jitree.loaders.vmvx.analysis import KernelCosts, _Reading
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, kernels, recipes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.fuzz.kernels import KernelWriter
from tests.loaders.samples import FOLDER, sample

OUTER, INNER = 7, 5
NEST = f"""
    %i20:21 = const.i64 0
    %i22:23 = const.i64 1
    %i24:25 = const.i64 {OUTER}
    %i26:27 = ext.i32.i64.s %i0
    %i28:29 = const.i64 {{most}}
    %i30:31 = const.i64 {{step}}
    %i32:33 = const.i64 -64
    %i26:27 = fma.i64 %i26:27, %i32:33, %i28:29
    %i32:33 = const.i64 {INNER}
    %i26:27 = min.i64.s %i26:27, %i32:33
    br ^outer {{{{%i20->%i34,%i21->%i35}}}}
    ^outer:
    %i40 = cmp.lt.i64.s %i34:35, %i24:25
    cond_br %i40, ^begin, ^end
    ^begin:
    br ^inner {{{{%i20->%i36,%i21->%i37}}}}
    ^inner:
    %i40 = cmp.lt.i64.s %i36:37, %i26:27
    cond_br %i40, ^body, ^next
    ^body:
    %i36:37 = add.i64 %i36:37, %i30:31
    br ^inner
    ^next:
    %i34:35 = add.i64 %i34:35, %i22:23
    br ^outer
    ^end:
    return []
"""
"""A loop in a loop; the inner one has a bound as that of a tile: the rest of the rows, at most so many."""


def _costs(data: bytes | Assembler) -> list[float]:
    module = BytecodeModule.load(data.build() if isinstance(data, Assembler) else data, "file")
    ordinals = [export.ordinal for export in kernels(module.module)]
    costs = KernelCosts(module.program, ordinals)
    return [costs.of_workgroup(kernel) for kernel in range(len(ordinals))]


def _cost(body: str) -> float:
    (cost,) = _costs(Assembler("costs").function("f", ENTRY_CONVENTION, body))
    return cost


def _nest(most: int, step: int) -> float:
    return _cost(NEST.format(most=most, step=step))


def test_instructions_count_as_often_as_loops_go_round() -> None:
    inner = 4
    around = 2 + 1 + 2  # the condition, the way in, the end of the outer loop
    assert _nest(100, 1) == 12 + OUTER * (around + INNER * inner)


@pytest.mark.parametrize(
    ("most", "step", "count"), [(100, 2, 3), (100, INNER, 1), (3, 1, 3), (-4, 1, 1), (0, 1, 1)]
)
def test_steps_and_short_tiles_are_seen(most: int, step: int, count: int) -> None:
    assert _nest(100, 1) - _nest(most, step) == OUTER * 4 * (INNER - count)


def test_one_workgroup_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading takes as long as some kernels, and most workgroups are as the first one."""
    own, read = _Reading.cost, list[object]()

    def cost(reading: _Reading) -> float:
        read.append(reading)
        return own(reading)

    monkeypatch.setattr(_Reading, "cost", cost)
    _nest(129, 1)
    assert len(read) == 1


def test_bounds_that_nothing_says_count_as_some() -> None:
    read = NEST.replace("min.i64.s %i26:27, %i32:33", "div.i64.s %i26:27, %i20:21")
    assert _cost(read.format(most=100, step=1)) == 12 + OUTER * (5 + 16 * 4)


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("vmvx_*.fb")))
def test_kernels_of_compilers_are_read(name: str) -> None:
    found = _costs(sample(name))
    assert found and all(cost >= 1 for cost in found)


def test_a_product_costs_more_than_an_elementwise_kernel() -> None:
    (product,), (elementwise,) = _costs(sample("vmvx_mm-3.13.0.fb")), _costs(sample("vmvx_mul-3.13.0.fb"))
    assert product > 4 * elementwise


def test_whatever_a_kernel_has_is_read() -> None:
    """Random ones, with constants at the ends of what integers hold."""
    for number in range(40):
        text = KernelWriter(random.Random(f"kernel {number}")).write()
        found = _costs(text.module())
        assert all(isfinite(cost) and cost >= 1 for cost in found), number


def _nested(depth: int) -> str:
    heads = "\n".join(f"br ^loop{number}\n^loop{number}:" for number in range(depth))
    ends = "\n".join(f"cond_br %i20, ^loop{n}, ^end{n}\n^end{n}:" for n in reversed(range(depth)))
    return f"{heads}\n{ends}\nreturn []"


def test_more_loops_in_each_other_than_python_functions_can_be() -> None:
    assert _cost(_nested(1)) < _cost(_nested(2)) < _cost(_nested(2000)) < inf


def test_loops_one_after_the_other_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for the condition of one does not go through those of all before it."""
    looked = [0]

    class Conditions(dict[int, object]):
        def __iter__(self) -> Iterator[int]:
            for key in super().__iter__():
                looked[0] += 1
                yield key

    read = _Reading._read

    def counted(reading: _Reading) -> None:
        reading._bounds = Conditions()  # type: ignore[assignment]
        read(reading)

    monkeypatch.setattr(_Reading, "_read", counted)
    loop = """
        br ^loop{0}
        ^loop{0}:
        %i22 = cmp.lt.i32.s %i20, %i21
        cond_br %i22, ^loop{0}, ^end{0}
        ^end{0}:
    """
    text = "".join(map(loop.format, range(200)))
    assert _cost(f"%i20 = const.i32.zero\n%i21 = const.i32 3\n{text}return []") > 200 * 3
    assert looked[0] <= 2 * 200


def _build_seconds(body: str) -> float:
    module = BytecodeModule.load(Assembler("built").function("f", ENTRY_CONVENTION, body).build(), "file")
    (recipe,) = recipes(module)
    return recipe.seconds


def test_a_function_takes_longer_to_build_than_other_instructions() -> None:
    """To sixteen lanes of sines belong hundreds of instructions."""
    texts = ["%i20 = {0}.f32 %i20\n" * 3 + "return []"] * 3
    plain, sines, exponentials = map(_build_seconds, map(str.format, texts, ("neg", "sin", "exp")))
    assert sines - plain == pytest.approx(3 * 0.07) and exponentials - plain == pytest.approx(3 * 0.013)
