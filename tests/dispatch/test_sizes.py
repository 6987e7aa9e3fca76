"""Sizes that programs compute are exact or refused, on all tiers; other arithmetic wraps around."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import image
from jitree.errors import OutOfRangeError
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES
from tests.assembler import Assembler
from tests.dispatch.harness import TIERS, HostFunctions, Vm, load, start_here

DISPATCH = "hal.command_buffer.dispatch"
LARGEST = 2**63 - 1


class Device(HostFunctions):
    """Takes sizes in the place of the HAL."""

    def __init__(self) -> None:
        self.taken: list[object] = []
        rows: list[tuple[str, str, Callable[..., object]]] = [
            ("buffer.take", "0I_v", self._take),
            ("command_buffer.dispatch", "0rriiii_v", self._take),
        ]
        super().__init__("hal", rows)

    def _take(self, *sizes: object) -> None:
        self.taken.append(sizes[-1])


def program(
    *functions: tuple[str, str, str], importing: str = "hal.buffer.take", globals_size: int = 0
) -> Assembler:
    """Functions by name, convention and text; ``@take`` stands for the import."""
    module = Assembler("m", globals_size=globals_size)
    module.import_function(importing, "0I_v")
    module.import_function(DISPATCH, "0rriiii_v")
    for name, cconv, text in functions:
        module.function(name, cconv, text.replace("@take", f"@{importing}"))
    return module


def exact(text: str, cconv: str = "0IIII_v", importing: str = "hal.buffer.take") -> list[str]:
    """The instructions of a function that are exact."""
    code = load(program(("f", cconv, text), importing=importing)).program
    names = (OPCODE_NAMES[BASE_OPCODE[code.words[word]]] for word in code.instruction_words)
    return [name.removesuffix(".exact") for name in names if name.endswith(".exact")]


# -- which instructions --------------------------------------------------------------------------------------

ALIGNED = """
    %i8 = const.i64 63
    %i10 = const.i64 {mask}
    %i0 = mul.i64 %i0, %i2
    %i0 = add.i64 %i0, %i8
    br ^next
    ^next:
    %i0 = and.i64 %i0, %i10
    call @take [%i0:1]
    return []
"""
CHOSEN = """
    %i0 = add.i64 %i0, %i2
    %i2 = mul.i64 %i2, %i4
    %i0 = select.i64 %i6, %i0, %i2
    %i0 = sub.i64 %i0, %i4
    call @take [%i0:1]
    return []
"""
NARROW = """
    %i2 = mul.i32 %i0, %i1
    %i3 = const.i32 2
    %i2 = shl.i32 %i2, %i3
    %i4 = ext.i32.i64.s %i2
    call @take [%i4:5]
    return []
"""
LOOP = """
    %i8 = const.i64 1
    br ^head
    ^head:
    %i10 = cmp.lt.i64.s %i4, %i2
    cond_br %i10, ^body, ^end {%i0->%i12, %i1->%i13}
    ^body:
    %i0 = mul.i64 %i0, %i0
    %i4 = add.i64 %i4, %i8
    br ^head
    ^end:
    call @take [%i12:13]
    return []
"""


HASH = """
    %i8 = const.i64 -7046029254386353131
    %i10 = const.i32 {amount}
    %i0 = mul.i64 %i0, %i8
    %i0 = add.i64 %i0, %i8
    br ^next
    ^next:
    %i0 = shr.i64.u %i0, %i10
    call @take [%i0:1]
    return []
"""


@pytest.mark.parametrize(("amount", "found"), [(60, []), (32, []), (31, ["mul.i64", "add.i64"])])
def test_the_upper_half_is_what_hashes_are_made_of(amount: int, found: list[str]) -> None:
    assert exact(HASH.format(amount=amount)) == found


@pytest.mark.parametrize("other", ["%i6->%i10", "%i9->%i10"])
def test_a_shift_that_leaves_the_upper_half_now_and_then(other: str) -> None:
    """Where it is by one bit, or by an argument, the product is a size."""
    text = HASH.format(amount=32).replace(
        "br ^next\n", f"%i9 = const.i32 1\ncond_br %i4, ^next, ^next {{{other}}}\n"
    )
    assert exact(text) == ["mul.i64", "add.i64"]


def test_alignment() -> None:
    assert exact(ALIGNED.format(mask=-64)) == ["mul.i64", "add.i64"]


@pytest.mark.parametrize("mask", [0, 1023, -3, 63])
def test_masks_make_numbers_of_any_bits(mask: int) -> None:
    assert exact(ALIGNED.format(mask=mask)) == []


def test_a_mask_that_is_no_constant() -> None:
    assert (
        exact(ALIGNED.format(mask=-64).replace("%i10 = const.i64 -64", "br ^b {%i4->%i10, %i5->%i11}\n^b:"))
        != []
    )


def test_of_sums_one_may_be_chosen() -> None:
    assert exact(CHOSEN) == ["mul.i64", "sub.i64"]


def test_loops() -> None:
    assert exact(LOOP) == ["mul.i64"]


STORED = """
    %i0 = mul.i64 %i0, %i2
    %i4 = add.i64 %i0, %i2
    global.store.i64 {place}, %i0
    return []
"""
LOADED = """
    %i0 = global.load.i64 0
    call @take [%i0:1]
    return []
"""


@pytest.mark.parametrize("first", ["store", "load"])
@pytest.mark.parametrize(("place", "found"), [(0, ["mul.i64"]), (8, [])])
def test_sizes_that_are_stored_in_globals(first: str, place: int, found: list[str]) -> None:
    """Another function takes them, before or after the one that computes them."""
    functions = [("store", "0II_v", STORED.format(place=place)), ("load", "0v_v", LOADED)]
    functions.sort(key=lambda function: function[0] != first)
    code = load(program(*functions, globals_size=16)).program
    names = (OPCODE_NAMES[BASE_OPCODE[code.words[word]]] for word in code.instruction_words)
    assert [name.removesuffix(".exact") for name in names if name.endswith(".exact")] == found


@pytest.mark.parametrize("importing", ["other.take", "halo.take", "vmvx.take"])
def test_modules_that_take_no_sizes(importing: str) -> None:
    assert exact("%i0 = mul.i64 %i0, %i2\ncall @take [%i0:1]\nreturn []", importing=importing) == []


def test_a_register_that_is_written_again() -> None:
    assert exact("%i0 = mul.i64 %i0, %i2\n%i0 = const.i64 4\ncall @take [%i0:1]\nreturn []") == []


@pytest.mark.parametrize("operation", ["rem.i64.u", "rem.i64.s", "xor.i64", "or.i64"])
def test_what_makes_numbers_of_bits(operation: str) -> None:
    text = f"%i0 = mul.i64 %i0, %i2\n%i0 = {operation} %i0, %i4\ncall @take [%i0:1]\nreturn []"
    assert exact(text) == []


# -- all tiers -----------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.i64": operator.add,
    "sub.i64": operator.sub,
    "mul.i64": operator.mul,
    "min.i64.s": min,
    "max.i64.s": max,
}
CHAINS = [
    [(random.Random(seed + 97 * step).choice(list(OPERATIONS)), seed % 3 * step) for step in range(5)]
    for seed in range(6)
]
"""Each step: an instruction, and which two of the values so far, from the last one back, it takes."""
INTEGERS = st.one_of(
    st.integers(-9, 9),
    st.integers(-(2**63), LARGEST),
    st.integers(-5, 5).flatmap(lambda near: st.integers(0, 62).map(lambda power: 2**power + near)),
)


def chain_text(chain: Sequence[tuple[str, int]]) -> str:
    lines = []
    for step, (name, back) in enumerate(chain):
        count = 4 + step
        lines.append(f"%i{2 * count} = {name} %i{2 * count - 2}, %i{2 * (back % count)}")
    last = 2 * (3 + len(chain))
    return "\n".join([*lines, f"call @take [%i{last}:{last + 1}]", f"return [%i{last}:{last + 1}]"])


def chain_values(chain: Sequence[tuple[str, int]], arguments: Sequence[int]) -> list[int]:
    """All values of a chain, in exact arithmetic."""
    values = list(arguments)
    for name, back in chain:
        values.append(OPERATIONS[name](values[-1], values[back % len(values)]))
    return values


@pytest.fixture(scope="module", params=TIERS)
def sizes(request: pytest.FixtureRequest) -> Iterator[tuple[Vm, Device]]:
    """A context with all programs, and what has taken sizes there."""
    device, vm = Device(), Vm(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image.Provider, "_start", start_here)
        chains = [(f"chain{number}", "0IIII_I", chain_text(chain)) for number, chain in enumerate(CHAINS)]
        yield vm.add(device, program(*chains, *PROGRAMS)), device
        vm.context.close()


@given(st.sampled_from(range(len(CHAINS))), st.tuples(*[INTEGERS] * 4))
def test_exact_or_refused(sizes: tuple[Vm, Device], number: int, arguments: tuple[int, ...]) -> None:
    vm, device = sizes
    values = chain_values(CHAINS[number], arguments)
    device.taken.clear()
    try:
        results = vm.call(f"chain{number}", *arguments)
    except OutOfRangeError:
        assert any(not -(2**63) <= value <= LARGEST for value in values)
        assert device.taken == []
    else:
        assert results == device.taken == [values[-1]]


PROGRAMS = [
    ("product", "0II_v", "%i4 = mul.i64 %i0, %i2\ncall @take [%i4:5]\nreturn []"),
    ("fused", "0III_v", "%i6 = fma.i64 %i0, %i2, %i4\ncall @take [%i6:7]\nreturn []"),
    ("shifted", "0Ii_v", "%i4 = shl.i64 %i0, %i2\ncall @take [%i4:5]\nreturn []"),
    ("aligned", "0IIII_v", ALIGNED.format(mask=-64)),
    ("chosen", "0IIIi_v", CHOSEN),
    ("power", "0III_v", LOOP),
    (
        "hash",
        "0III_v",
        "%i0 = fma.i64 %i0, %i0, %i2\n%i0 = rem.i64.u %i0, %i4\ncall @take [%i0:1]\nreturn []",
    ),
    ("count", "0I_v", f"%i2 = trunc.i64.i32 %i0\ncall @{DISPATCH} [%r0, %r0, %i3, %i3, %i3, %i2]\nreturn []"),
    (
        "constant",
        "0I_v",
        f"%i2 = trunc.i64.i32 %i0\ncall @{DISPATCH} [%r0, %r0, %i2, %i3, %i3, %i3]\nreturn []",
    ),
    ("narrow", "0ii_v", NARROW),
    ("extended", "0I_v", "%i2 = trunc.i64.i32 %i0\n%i4 = ext.i32.i64.s %i2\ncall @take [%i4:5]\nreturn []"),
    ("callee", "0I_v", "call @take [%i0:1]\nreturn []"),
    ("caller", "0II_v", "%i0 = mul.i64 %i0, %i2\ncall @callee [%i0:1]\nreturn []"),
    ("result", "0II_I", "%i0 = mul.i64 %i0, %i2\nreturn [%i0:1]"),
    ("user", "0II_v", "[%i0:1] = call @result [%i0:1, %i2:3]\ncall @take [%i0:1]\nreturn []"),
    ("none", "0v_r", "return [%r0]"),
    ("called", "0II_v", "%i0 = mul.i64 %i0, %i2\n[%r0] = call @none []\ncall @take [%i0:1]\nreturn []"),
    ("moved", "0II_v", "%i0 = mul.i64 %i0, %i2\nbr ^b {%r1->%r0}\n^b:\ncall @take [%i0:1]\nreturn []"),
]


@pytest.mark.parametrize(
    ("name", "arguments", "taken"),
    [
        ("product", (2**62, 4), None),
        ("product", (-(2**63), -1), None),
        ("product", (-(2**63), 1), -(2**63)),
        ("product", (2**61, 3), 3 * 2**61),
        ("fused", (2**62, 2, -1), LARGEST),
        ("fused", (2**62, 2, 0), None),
        ("shifted", (1, 62), 2**62),
        ("shifted", (1, 63), None),
        ("shifted", (-1, 63), -(2**63)),
        ("shifted", (3, 64), 3),
        ("shifted", (0, 63), 0),
        ("aligned", (5, 7, 0, 0), 64),
        ("aligned", (2**32, 2**32, 0, 0), None),
        ("chosen", (LARGEST, 10, 3, 0), 27),
        ("chosen", (4, 10, 3, 1), 11),
        ("chosen", (4, LARGEST, 3, 1), None),
        ("power", (3, 3, 0), 3**8),
        ("power", (3, 6, 0), None),
        ("hash", (2**62, 1, 1000), 1),
        ("count", (2**32 - 1,), -1),
        ("count", (2**32,), None),
        ("count", (-1,), None),
        ("constant", (-1,), 0),
        ("narrow", (2**15, 2**13), 2**30),
        ("narrow", (2**15, 2**14), None),
        ("narrow", (2**16, 2**16), None),
        ("extended", (2**32 + 7,), 7),
        ("caller", (2**62, 4), None),
        ("caller", (3, 4), 12),
        ("user", (2**62, 4), None),
        ("user", (3, 4), 12),
        ("called", (2**62, 4), None),  # a ref register of the same number changes
        ("moved", (2**62, 4), None),
    ],
)
def test_programs(sizes: tuple[Vm, Device], name: str, arguments: tuple[int, ...], taken: int | None) -> None:
    vm, device = sizes
    device.taken.clear()
    if taken is None:
        with pytest.raises(OutOfRangeError, match=r"(64|32) bits|workgroups") as failure:
            vm.call(name, *arguments)
        assert failure.value.backtrace
    else:
        vm.call(name, *arguments)
    assert device.taken == ([] if taken is None else [taken])
