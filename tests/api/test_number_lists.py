"""Lists of numbers as lists of the VM: machine code gives the elements that Python gives, and leaves to it
what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitree import Function, Session, VmBuffer
from jitree.api.calls import list_packing
from jitree.errors import InvalidArgumentError
from tests.api.direct import direct, live, needs_machine_code
from tests.assembler import Assembler

pytestmark = needs_machine_code

TYPES = ("i8", "i16", "i32", "i64", "f32", "f64", "any")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        for name in TYPES:
            declared = f"!util.list<{'?' if name == 'any' else name}>"
            attrs = {"iree.abi.declaration": f"sync func @echo(%x: {declared}) -> (%y: {declared})"}
            program = Assembler(name).function("echo", "0r_r", "return [%r0]", attrs=attrs)
            program.function(
                "second", "0r_I", "%i2 = const.i32 1\n%i0:1 = list.get.i64 %r0, %i2\nreturn [%i0:1]",
                attrs={"iree.abi.declaration": f"sync func @second(%x: {declared}) -> (%y: i64)"},
            )  # fmt: skip
            put = "list.set.ref %r0, %i0, %R1"
            for kind, result, cconv in (("keep", declared, "r"), ("drop", "", "v")):
                text = (
                    f"sync func @{kind}(%x: {declared}, %y: !vm.buffer) -> ({'%z: ' * bool(result)}{result})"
                )
                code = f"{put}\nreturn [{'%r0' if result else ''}]"
                if name == "any":
                    program.function(kind, f"0rr_{cconv}", code, attrs={"iree.abi.declaration": text})
            session.load(program.build())
        yield session


def echo_of(session: Session, name: str) -> Function:
    function = session[f"{name}.echo"]
    return function if function.is_direct else direct(function, [1, 2])


def attempt(call: Any, *arguments: Any) -> str:
    """The result, NaN and -0.0 too, or what was said against the arguments."""
    try:
        return repr(call(*arguments))
    except InvalidArgumentError as error:
        return str(error)


integers = st.sampled_from(
    [sign * (1 << power) + step for power in (0, 7, 8, 15, 16, 24, 31, 32, 53, 63, 64, 80) for sign in (1, -1)
     for step in (-1, 0, 1)]
)  # fmt: skip
others = st.sampled_from(
    [None, "1", True, [1], 1j, np.int32(-7), np.float32(1.5), np.uint8(200), np.array(3)]
)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(TYPES),
    values=st.lists(integers | st.floats() | st.integers(-128, 127) | others, max_size=5),
    paired=st.booleans(),
)
@example(name="i8", values=[127, -128], paired=False)
@example(name="i32", values=[-1, 2**32 - 1], paired=True)
@example(name="f32", values=[-0.0, float("nan"), float("inf"), 1e39, -2.5], paired=False)
@example(name="f64", values=[-2.5, 2**53, 2**53 + 1], paired=False)
@example(name="any", values=[-2.5, 2**53, -0.0, -(2**63)], paired=True)
@example(name="any", values=[1, 2**63], paired=False)
def test_elements(session: Session, name: str, values: list[Any], paired: bool) -> None:
    echo = echo_of(session, name)
    given_values: Any = tuple(values) if paired else values
    assert attempt(echo, given_values) == attempt(echo.call_slowly, (given_values,), {})


def test_numbers_do_not_reach_python(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    echo = echo_of(session, "i32")
    second = direct(session["i16.second"], [1, 2])
    before = live(session)
    monkeypatch.setattr(list_packing, "_packed", lambda *_: pytest.fail("Python packed them"))
    assert echo([3, -4, 5]) == [3, -4, 5] and echo_of(session, "f64")((2, 0.5)) == [2.0, 0.5]
    mixed = echo_of(session, "any")((2, 0.5, -3))
    assert mixed == [2, 0.5, -3] and list(map(type, mixed)) == [int, float, int]
    assert second([7, -8]) == -8 and second((1, 9, 2)) == 9
    assert live(session) == before, "nothing is kept"


def test_refused_lists_leave_nothing(session: Session) -> None:
    echo = echo_of(session, "i32")
    before = live(session)
    for _ in range(20):
        with pytest.raises(InvalidArgumentError, match=r"element 2 of the list for x"):
            echo([1, 2, "x"])
    assert live(session) == before


def test_references_that_a_program_puts_into_a_list(session: Session) -> None:
    """Lists of anything that machine code has made give them back when nothing refers to the list."""
    keep, drop = (direct(session[f"any.{name}"], [1, 2], VmBuffer(1)) for name in ("keep", "drop"))
    given_buffer = VmBuffer.alias(b"abc")
    before = live(session)
    for _ in range(20):
        drop([1, 2], given_buffer)
        kept = keep([1, 0.5], given_buffer)
        assert kept[1] == 0.5 and bytes(kept[0]) == b"abc"
        del kept
    assert live(session) == before
