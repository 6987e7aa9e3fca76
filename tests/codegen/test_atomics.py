"""Fields of all widths, words that several threads change, what only processors can do: as machine code and
in Python."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

from jitree.codegen import functions, processor_texts
from jitree.codegen.image.compile import (
    Target,
    compile_object,
    host_target,
    optimized_module,
    target_machine,
    target_of,
)
from jitree.codegen.image.flat import Image, map_image
from jitree.codegen.image.link import link
from jitree.codegen.primitives import (
    apart,
    call,
    call_int,
    call_kernel,
    flush_denormals,
    greater,
    lesser,
    load64,
    pause,
    quotient,
    remainder,
    restore_denormals,
    stack_address,
    ticks,
)
from jitree.codegen.record import (
    Atomic,
    MemoryRecord,
    atomic_add,
    atomic_load,
    atomic_replace,
    atomic_store,
    layout_of,
    place_of,
    size_of,
    words_of,
)
from jitree.cuda.submission import is_done
from jitree.errors import InternalError
from jitree.hal.local.executor.rows import begin_log

if TYPE_CHECKING:
    from jitree.codegen.record import i32, line, u8, u16, u32


class Mixed(MemoryRecord):
    a: u8
    b: u8
    c: u16
    d: u32
    e: i32
    f: u32
    word: Atomic
    shared: line
    other: line


def fields(mixed: Mixed, value: int) -> int:
    """Unsigned fields have no sign, whatever is stored."""
    total = mixed.a + mixed.b + mixed.c + mixed.d + mixed.e
    mixed.a = value
    mixed.b = value + 1
    mixed.c = -value
    mixed.d = value * 3
    mixed.e = value
    atomic_store(mixed.other, total)
    return total


def words(mixed: Mixed, value: int) -> int:
    before = atomic_add(mixed.word, value)
    atomic_store(mixed.shared, before)
    first = atomic_replace(mixed.shared, before, 5)
    second = atomic_replace(mixed.shared, before + 6, 7)
    near = place_of(mixed.shared) - place_of(mixed)
    return atomic_load(mixed.shared) + 100 * first + 1000 * second + near * atomic_load(mixed.word)


def numbers(mixed: Mixed, value: int) -> int:
    least = lesser(value, 1000)
    most = greater(value, -3)
    positive = value & 0xFFFF
    return rarely(least, most) + 7 * quotient(positive, 10) + remainder(positive, 10)


@apart
def rarely(least: int, most: int) -> int:
    return 3 * least - most


def calls(mixed: Mixed, function: int) -> int:
    """Of ``abs``, of which only 32 bits are its result."""
    return call_int(function, -5) + 10 * call_kernel(function, -7, 0, 0) + 100 * (call(function, 3) & 0xFFFF)


def waits(mixed: Mixed, turns: int) -> int:
    start = ticks()
    mode = flush_denormals()
    for _ in range(turns):
        pause()
    restore_denormals(mode)
    return (ticks() > start) + 2 * (stack_address() > 0)


FUNCTIONS: tuple[Callable[[Mixed, int], int], ...] = (fields, words, numbers, calls, waits)
ABS = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0


@cache
def texts() -> list[str]:
    return functions.texts(FUNCTIONS)


@cache
def image() -> Image:
    names = [function.__name__ for function in FUNCTIONS]
    return map_image(link([compile_object(texts(), names, host_target())], names))


def outcome(run: Callable[[int, int], int], value: int) -> tuple[int, bytes]:
    memory = (ctypes.c_uint64 * (size_of(Mixed) // 8 + 16))()
    place = (ctypes.addressof(memory) + 127) & -128
    ctypes.memset(place, 0xE9, size_of(Mixed))
    return run(place, value), ctypes.string_at(place, size_of(Mixed))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("value", [0, 1, 77, -1, 255, 65536, -(1 << 31), (1 << 33) + 9])
def test_machine_code_does_what_python_does(function: Callable[[Mixed, int], int], value: int) -> None:
    value = ABS if function is calls else 5 if function is waits else value
    kinds = [ctypes.c_int64] * 3
    code = ctypes.CFUNCTYPE(*kinds)(image().addresses[function.__name__])
    expected = outcome(lambda place, value: function(Mixed(place), value), value)
    expected = (ctypes.c_int64(expected[0]).value, expected[1])
    assert outcome(code, value) == expected
    assert function is not waits or expected[0] == 3


def test_layout_of_lines() -> None:
    assert (layout_of(Mixed)["shared"], layout_of(Mixed)["other"], size_of(Mixed)) == (128, 256, 384)
    assert words_of(Mixed).shared == 16


def test_functions_that_stay_apart() -> None:
    (text,) = (text for text in texts() if 'define i64 @"rarely"' in text)
    assert "noinline" in text.partition("{")[0]


def orders(function: Callable[..., object], features: str) -> list[str]:
    """The instructions of its machine code for AArch64 that order others."""
    code = assembly(function, target_of("aarch64", "generic", features))
    names = (line.split()[0] for line in code.partition(".cfi_endproc")[0].splitlines() if line.strip())
    return [name for name in names if name.startswith(("ld", "st", "cas")) and name.rstrip("bh") in _ORDER]


_ORDER = {"ldar", "ldapr", "stlr", "ldaxr", "stlxr", "ldxr", "stxr", "cas", "casal", "ldadd", "ldaddal"}


def announces(mixed: Mixed, value: int) -> int:
    atomic_add(mixed.word, value)
    return atomic_load(mixed.shared)


def locks(mixed: Mixed, value: int) -> int:
    if atomic_replace(mixed.shared, 0, 1):
        mixed.a = value
        atomic_store(mixed.shared, 0)
        return 1
    return 0


@pytest.mark.parametrize(
    ("function", "features", "instructions"),
    [
        (announces, "", ["ldaxr", "stlxr", "ldar"]),
        (announces, "+lse,+rcpc", ["ldaddal", "ldar"]),
        (locks, "", ["ldaxr", "stlxr", "stlr"]),
        (locks, "+lse,+rcpc", ["casal", "stlr"]),
    ],
)
def test_order_on_aarch64(function: Callable[..., object], features: str, instructions: list[str]) -> None:
    """What is announced is seen before what is looked at then: STLXR and LDAR stay in order, STLXR and LDR or
    LDAPR do not."""
    assert orders(function, features) == instructions


def crowded(mixed: Mixed, value: int) -> int:
    """More numbers at a time than there are registers."""
    place = place_of(mixed)
    n0, n1, n2, n3 = load64(place + 0), load64(place + 8), load64(place + 16), load64(place + 24)
    n4, n5, n6, n7 = load64(place + 32), load64(place + 40), load64(place + 48), load64(place + 56)
    n8, n9, n10, n11 = load64(place + 64), load64(place + 72), load64(place + 80), load64(place + 88)
    n12, n13, n14, n15 = load64(place + 96), load64(place + 104), load64(place + 112), load64(place + 120)
    n16, n17, n18, n19 = load64(place + 128), load64(place + 136), load64(place + 144), load64(place + 152)
    n20, n21, n22, n23 = load64(place + 160), load64(place + 168), load64(place + 176), load64(place + 184)
    n24, n25, n26, n27 = load64(place + 192), load64(place + 200), load64(place + 208), load64(place + 216)
    for _ in range(value):
        n0, n1, n2, n3 = n1 + n0, n2 + n1, n3 + n2, n4 + n3
        n4, n5, n6, n7 = n5 + n4, n6 + n5, n7 + n6, n8 + n7
        n8, n9, n10, n11 = n9 + n8, n10 + n9, n11 + n10, n12 + n11
        n12, n13, n14, n15 = n13 + n12, n14 + n13, n15 + n14, n16 + n15
        n16, n17, n18, n19 = n17 + n16, n18 + n17, n19 + n18, n20 + n19
        n20, n21, n22, n23 = n21 + n20, n22 + n21, n23 + n22, n24 + n23
        n24, n25, n26, n27 = n25 + n24, n26 + n25, n27 + n26, n0 + n27
    return (
        n0
        ^ n1
        ^ n2
        ^ n3
        ^ n4
        ^ n5
        ^ n6
        ^ n7
        ^ n8
        ^ n9
        ^ n10
        ^ n11
        ^ n12
        ^ n13
        ^ n14
        ^ n15
        ^ n16
        ^ n17
        ^ n18
        ^ n19
        ^ n20
        ^ n21
        ^ n22
        ^ n23
        ^ n24
        ^ n25
        ^ n26
        ^ n27
    )


def assembly(function: Callable[..., object], target: Target) -> str:
    module = optimized_module(functions.texts([function]), [function.__name__], target)
    return str(target_machine(target).emit_assembly(module)).partition(f"{function.__name__}:\n")[2]


def test_no_code_for_aarch64_uses_x18() -> None:
    """Which macOS changes at any time; without being told so, LLVM takes it."""
    target = target_of("aarch64", "generic")
    used = [
        re.findall(r"\b[xw]18\b", assembly(crowded, each)) for each in (target, target._replace(features=""))
    ]
    assert not used[0] and used[1]


@pytest.mark.parametrize("function", [begin_log, is_done])
def test_who_counts_itself_looks_afterwards(function: Callable[..., object]) -> None:
    """By a load that no processor does before the count is seen."""
    assert "ldaxr stlxr ldar" in " ".join(orders(function, ""))


def test_texts_do_not_depend_on_the_machine() -> None:
    """The compiler adds what the processor does; nothing where nothing is used."""
    for machine in ("x86_64", "aarch64", "riscv64"):
        triple = f"{machine}-unknown-linux-gnu"
        assert len(processor_texts.needed(texts(), triple)) == 1
        module = optimized_module(texts(), ["waits"], Target(triple, "", ""))
        assert not [item.name for item in module.functions if item.name.startswith(processor_texts.PREFIX)]
    assert processor_texts.needed(["define void @nothing() { ret void }"], "sparc-linux") == []


def sets_a_word(mixed: Mixed) -> None:
    mixed.word = 5  # type: ignore[assignment]


def adds_to_a_number(mixed: Mixed) -> int:
    return atomic_add(mixed.a, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [sets_a_word, adds_to_a_number])
def test_words_are_no_numbers(function: Callable[..., object]) -> None:
    with pytest.raises(InternalError, match=rf"^INTERNAL; {function.__name__}: "):
        functions.texts([function])
