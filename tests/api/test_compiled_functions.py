"""Custom functions that Numba compiles: the same results and errors, called from bytecode without Python."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree import CustomModule, Session, f32, f64, i32, i64
from jitree.api.custom_types import parse_signature, thunk_source
from jitree.errors import InvalidArgumentError, UnavailableError
from tests.assembler import Assembler

TIERS = ["plain", "fast", "auto"]
MAXIMUM_NANOSECONDS = 200
"""What a call may cost."""

module = CustomModule("host")


@module.export(jit=True)
def mix(a: i32, b: i64, c: f32, d: f64) -> tuple[i64, f64, i32, f32]:
    return a * b, c / d, a + 1, c


@module.export(jit=True)
def add(a: i32, b: i32) -> i32:
    return a + b


@module.export(jit=True)
def nothing() -> None:
    pass


@module.export(jit=True)
def picky(a: i64) -> f32:
    if a < 0:
        raise ValueError("negative")
    return a / 2


def program() -> bytes:
    assembler = Assembler("m")
    for name, cconv in (("mix", "0iIfF_IFif"), ("add", "0ii_i"), ("nothing", "0v_v"), ("picky", "0I_f")):
        assembler.import_function(f"host.{name}", cconv)
    assembler.function(
        "mix", "0iIfF_IFif",
        "[%i8:9, %i10:11, %i12, %i13] = call @host.mix [%i0, %i2:3, %i4, %i6:7]\n"
        "return [%i8:9, %i10:11, %i12, %i13]",
    )  # fmt: skip
    assembler.function("add", "0ii_i", "[%i2] = call @host.add [%i0, %i1]\nreturn [%i2]")
    assembler.function("picky", "0I_f", "[%i2] = call @host.picky [%i0:1]\nreturn [%i2]")
    assembler.function("count", "0i_i", """
        %i1 = const.i32.zero
        %i2 = const.i32 1
        br ^head
    ^head:
        [%i1] = call @host.add [%i1, %i2]
        call @host.nothing []
        %i0 = sub.i32 %i0, %i2
        cond_br %i0, ^head {}, ^done {}
    ^done:
        return [%i1]
    """)  # fmt: skip
    return assembler.build()


PROGRAM = program()


@pytest.fixture(scope="module", params=TIERS)
def session(request: pytest.FixtureRequest) -> Session:
    session = Session("local-sync", tier=request.param)
    session.load(PROGRAM, module)
    return session


def test_all_kinds_of_numbers(session: Session) -> None:
    for _ in range(3):  # the first call goes another way
        assert session["m.mix"](-3, 1 << 40, 1.5, 4.0) == (-3 << 40, 0.375, -2, 1.5)


@settings(max_examples=30)
@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 31), (1 << 31) - 1))
def test_integers_wrap(session: Session, a: int, b: int) -> None:
    assert session["m.add"](a, b) == (a + b + (1 << 31)) % (1 << 32) - (1 << 31)


def test_exceptions_are_raised_as_they_are(session: Session) -> None:
    for _ in range(2):
        assert session["m.picky"](3) == 1.5
        with pytest.raises(ValueError, match="negative") as caught:
            session["m.picky"](-1)
        assert any("host.picky" in note for note in caught.value.__notes__)
        with pytest.raises(ZeroDivisionError):
            session["m.mix"](1, 1, 1.0, 0.0)


def test_many_calls(session: Session) -> None:
    assert session["m.count"](5000) == 5000


def test_a_call_from_the_fast_tier_is_cheap() -> None:
    count = 200_000
    with Session("local-sync", tier="fast") as session:
        session.load(PROGRAM, module)
        function = session["m.count"]
        function(2)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            function(count)
            times.append(time.perf_counter() - start)
    assert min(times) / (2 * count) * 1e9 < MAXIMUM_NANOSECONDS


def test_the_function_stays_what_it_was() -> None:
    assert add(1, 2) == 3 and picky(5) == 2.5


def test_what_cannot_be_compiled() -> None:
    custom = CustomModule("host")
    with pytest.raises(InvalidArgumentError, match="not all its types are numbers"):
        custom.export(jit=True, signature="array -> array")(abs)
    with pytest.raises(InvalidArgumentError, match="by name"):
        custom.export(jit=True, signature="0i_i")(abs)

    @custom.export("add", jit=True)
    def difficult(a: i32, b: i32) -> i32:
        return {a: str(b)}  # type: ignore[return-value]

    assembler = Assembler("m").import_function("host.add", "0ii_i")
    assembler.function("f", "0ii_i", "[%i2] = call @host.add [%i0, %i1]\nreturn [%i2]")
    refused = pytest.raises(InvalidArgumentError, match=r"'difficult' cannot be compiled by Numba")
    with Session("local-sync", tier="plain") as session, refused:
        session.load(assembler.build(), custom)


def test_without_numba_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    custom = CustomModule("host")
    custom.export("twice", signature="i32 -> i32", jit=True)(lambda x: x + x)
    with Session("local-sync", tier="plain") as session:
        module = session.load(custom)
        with pytest.raises(UnavailableError, match=r"'<lambda>' is to be compiled .* pip install jitree"):
            module.twice(21)


def test_the_thunk_reads_and_writes_the_registers_that_the_call_names() -> None:
    assert thunk_source(parse_signature("i32, f64 -> f64")) == (
        "def thunk(state, values, refs, words):\n"
        "    float64 = carray(values, (268435456,), np.float64)\n"
        "    int32 = carray(values, (268435456,), np.int32)\n"
        "    try:\n"
        "        result = function(int32[words[1]], float64[words[3] >> 1])\n"
        "    except Exception:\n"
        "        return 1\n"
        "    float64[words[5] >> 1] = result\n"
        "    return 0"
    )
