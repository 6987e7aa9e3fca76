"""Bytes that kernels are bound to, from command lists."""

from __future__ import annotations

from jitree.cuda.plan import BoundSizes, CudaCommandList, FixedSizes, KernelSizes, Launch, LaunchPlan
from jitree.hal.command_list import DIRECT, Range
from jitree.hal.enums import WHOLE_BUFFER


class Executable:
    """One function."""

    name = "executable"

    def function_name(self, ordinal: int) -> str:
        return "function"

    def entry_point(self, ordinal: int) -> int:
        return 64

    def local_memory(self, ordinal: int) -> int:
        return 0


def sizes_of(bindings: list[Range], constants: tuple[int, ...] = ()) -> tuple[int, int]:
    commands = CudaCommandList()
    commands.dispatch(Executable(), 0, (1, 1, 1), (), [(DIRECT, 64, 64, 0)])  # the row is not the first
    commands.dispatch(Executable(), 0, (1, 1, 1), constants, bindings)
    *_, row = commands.decoded_rows()
    return BoundSizes(commands).of(row), FixedSizes(commands).of(row)


def test_of_ranges_that_overlap_the_largest_counts() -> None:
    assert sizes_of([(DIRECT, 128, 64, 0), (DIRECT, 1024, 32, 0)]) == (96, 96)
    assert sizes_of([(DIRECT, 128, 64, 0), (DIRECT, 128, 32, 0)]) == (64, 64)
    assert sizes_of([(DIRECT, 128, 32, 0), (DIRECT, 64, 128, 0)]) == (128, 128)


def test_slots_have_the_lengths_that_were_recorded() -> None:
    assert sizes_of([(0, 0, 64, 0), (1, 0, 64, 0), (0, 0, 64, 0), (DIRECT, 0, 64, 0)]) == (192, 192)
    assert sizes_of([(0, 0, 64, 0), (1, 0, WHOLE_BUFFER, 0)]) == (0, 0)


def test_dispatches_with_constants_have_no_fixed_size() -> None:
    assert sizes_of([(DIRECT, 128, 64, 0)], (7,)) == (64, 0)


def test_kernels_of_one_name_and_grid_have_one_size_or_none() -> None:
    sizes = KernelSizes()
    before, gone, *rest = (
        plan_of("k", (1, 1, 1), 8),
        plan_of("l", (1, 1, 1), 9),
        plan_of("k", (2, 1, 1), 16),
    )
    sizes.note(before)
    assert sizes.end() == {}
    sizes.begin()
    sizes.note(gone)
    del gone
    for plan in rest:
        sizes.note(plan)
    assert sizes.end() == {("k", (1, 1, 1)): 8, ("l", (1, 1, 1)): 9, ("k", (2, 1, 1)): 16}
    sizes.begin()
    sizes.note(plan_of("k", (1, 1, 1), 12))
    assert sizes.end() == {("k", (1, 1, 1)): 0, ("k", (2, 1, 1)): 16}


def plan_of(name: str, grid: tuple[int, int, int], size: int) -> LaunchPlan:
    launch = Launch(None, grid, (1, 1, 1), 0, 0, 0, False, name, size)
    return LaunchPlan((launch,), (), 0)
