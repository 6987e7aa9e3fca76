"""Lists as arguments and results: machine code gives the elements that Python gives, and leaves to it what it
refuses."""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jitree import Array, Function, Limits, Module, Session, VmBuffer, VmList, donate
from jitree.errors import InvalidArgumentError, StatusError
from tests.api import producers
from tests.api.direct import CALLS, direct, live, needs_machine_code, prepare_calls
from tests.api.programs import ALIASES
from tests.api.test_awaited_calls import Slow
from tests.api.test_large_arrays import COUNT, X, aligned, python_calls
from tests.assembler import Assembler

pytestmark = needs_machine_code

TYPES = ("i8", "i16", "i32", "i64", "f32", "f64", "any")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    prepare_calls()
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


def test_python_makes_the_list_and_machine_code_runs_the_function(session: Session) -> None:
    echo = echo_of(session, "i32")
    second = direct(session["i16.second"], [1, 2])
    for function in (echo, second, echo_of(session, "f64"), echo_of(session, "any")):
        function([1, 2])
    before = live(session)
    assert "unpacked" not in python_calls(echo, [1, 2])
    assert echo([3, -4, 5]) == [3, -4, 5] and echo_of(session, "f64")((2, 0.5)) == [2.0, 0.5]
    mixed = echo_of(session, "any")((2, 0.5, -3))
    assert mixed == [2, 0.5, -3] and list(map(type, mixed)) == [int, float, int]
    assert second([7, -8]) == -8 and second((1, 9, 2)) == 9
    assert live(session) == before, "nothing is kept"


def test_slots_that_are_used_again(session: Session) -> None:
    """Elements of one call are none of the next; what a program keeps is no list of a later call."""
    program = Assembler("kept", ref_global_count=1).function(
        "keep", "0r_v", "global.store.ref 0, !vm.list, %r0\nreturn []",
        attrs={"iree.abi.declaration": "sync func @keep(%x: !util.list<?>) -> ()"},
    ).function(
        "give", "0v_r", "%r0 = global.load.ref 0, !vm.list\nreturn [%R0]",
        attrs={"iree.abi.declaration": "sync func @give() -> (%y: !util.list<?>)"},
    ).function(
        "grow", "0r_r", "%i0 = const.i32 40\nlist.resize %r0, %i0\nreturn [%R0]",
        attrs={"iree.abi.declaration": "sync func @grow(%x: !util.list<?>) -> (%y: !util.list<?>)"},
    )  # fmt: skip
    module = session.load(program.build())
    keep, grow, echo = direct(module.keep, [1]), direct(module.grow, [1]), echo_of(session, "any")
    for count in (3, 0, 32, 33, 1, 40, 2):
        assert echo([0.5] * count) == [0.5] * count
        assert echo([count]) == [count]
        assert grow([1] * count) == [1] * count + [None] * (40 - count)
    for step in range(4):
        keep([step, None])
        assert module.give() == [step, None]
        keep([])
        assert module.give() == []
    array = session.to_device(np.ones(3, np.float32))
    owner = weakref.ref(array)
    echo([array, 1])
    del array
    gc.collect()
    assert owner() is None, "an element goes with its call"


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
    keep([1, 2], given_buffer), drop([1, 2], given_buffer)  # each keeps the list for the next call
    before = live(session)
    for _ in range(20):
        drop([1, 2], given_buffer)
        kept = keep([1, 0.5], given_buffer)
        assert kept[1] == 0.5 and bytes(kept[0]) == b"abc"
        del kept
    assert live(session) == before


# -- arrays in lists -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["local-sync", "local-task"])
def pooled(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session whose machine code has memory for arrays, with the function ``any.echo``."""
    prepare_calls()
    with Session(request.param, tier="fast") as session:
        declared = {"iree.abi.declaration": "sync func @echo(%x: !util.list<?>) -> (%y: !util.list<?>)"}
        session.load(Assembler("any").function("echo", "0r_r", "return [%r0]", attrs=declared).build())
        put_into = session.load(ALIASES).put_into
        put_into(X, session.empty(COUNT))
        yield session


def same(one: Any, other: Any) -> bool:
    """Whether two results are alike, bit by bit and by their types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Array):
        kinds = (one.dtype, one.shape, one.buffer_view.element_type)
        return kinds == (other.dtype, other.shape, other.buffer_view.element_type) and (
            np.asarray(one).tobytes() == np.asarray(other).tobytes()
        )
    return repr(one) == repr(other) if not isinstance(one, memoryview) else bytes(one) == bytes(other)


FOREIGN = producers.new_type()
ARRAYS = np.arange(12, dtype=np.float32).reshape(3, 4)
MAKERS: dict[str, Any] = {
    "none": lambda session: None,
    "number": lambda session: -3,
    "float": lambda session: 0.5,
    "bool": lambda session: True,
    "float64": lambda session: np.float64(2.5),
    "float32": lambda session: np.float32(2.5),
    "int64": lambda session: np.int64(-7),
    "large": lambda session: 1 << 64,
    "array": lambda session: session.to_device(ARRAYS),
    "strided": lambda session: ARRAYS.T[::2],
    "swapped": lambda session: ARRAYS.astype(">i2"),
    "scalar": lambda session: np.array(3, np.int8),
    "foreign": lambda session: FOREIGN(ARRAYS.astype(np.uint16)),
    "list": lambda session: [1, [2.5, None], session.to_device(ARRAYS)],
    "empty": lambda session: [],
    "bytes": lambda session: b"abc",
    "text": lambda session: "text",
    "donated": lambda session: donate(session.to_device(ARRAYS)),
    "masked": lambda session: np.ma.masked_array(ARRAYS),
}


def outcome(call: Any, value: list[Any]) -> Any:
    """The result, or what was said, without addresses of objects."""
    try:
        return call(value)
    except StatusError as error:
        return [re.sub("0x[0-9a-f]+", "", str(error))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.sampled_from(sorted(MAKERS)), max_size=4))
@example(names=["array", "strided", "none", "foreign", "number"])
def test_anything_in_a_list(pooled: Session, names: list[str]) -> None:
    echo = echo_of(pooled, "any")
    for _ in range(2):  # the first one of a kind is Python's
        value = [MAKERS[name](pooled) for name in names]
        slowly = [MAKERS[name](pooled) for name in names]
        assert same(outcome(echo, value), outcome(lambda given: echo.call_slowly((given,), {}), slowly)), (
            names
        )


def test_calls_with_arrays_in_lists_are_not_left_to_python(pooled: Session) -> None:
    echo = echo_of(pooled, "any")
    array = pooled.to_device(ARRAYS)
    value = [array, ARRAYS, None, 2, 0.5, True, FOREIGN(ARRAYS)]
    for _ in range(2):
        echo(value)
    before = live(pooled)
    echo(value)
    assert "unpacked" not in python_calls(echo, value)
    given, copy, null, *numbers, foreign = echo(value)
    assert null is None and numbers == [2, 0.5, 1]
    assert np.shares_memory(np.asarray(given), np.asarray(array)), "an array of the device is passed as it is"
    for other in (copy, foreign):
        assert np.array_equal(other, ARRAYS) and not np.shares_memory(np.asarray(other), ARRAYS)
    del given, copy, foreign, other
    assert live(pooled) == before, "nothing is kept"


def test_a_list_that_changes_while_it_is_passed(pooled: Session) -> None:
    """What Python runs for an element may change the list."""
    echo = echo_of(pooled, "any")
    changing: list[Any] = []

    class Changing(producers.Tensor):
        def __dlpack__(self, **options: Any) -> Any:
            changing.clear()
            return super().__dlpack__(**options)

    for _ in range(4):
        changing[:] = [1, Changing(np.ones(1000)), np.ones(3), np.ones(3)]
        assert isinstance(echo(changing), list) and echo([1, 2]) == [1, 2]


TAKES = {"iree.abi.declaration": "sync func @f(%x: !util.list<?>) -> ()"}
GIVES = {"iree.abi.declaration": "sync func @f() -> (%y: !util.list<?>)"}
ECHOES = {"iree.abi.declaration": "sync func @f(%x: !util.list<?>) -> (%y: !util.list<?>)"}
NUMBERED = {"iree.abi.declaration": "sync func @f(%x: !util.list<?>, %n: i32) -> (%y: i32)"}
FAILING = 'cond_br %i0, ^bad {}, ^good {}\n^bad:\nfail %i0, "no"\n^good:\nreturn [%i0]'


@pytest.fixture(scope="module")
def keeping(pooled: Session) -> Module:
    """Keeps a list in a variable and gives it; ``fail`` fails unless its number is 0."""
    program = Assembler("keeping", ref_global_count=1)
    program.function("keep", "0r_v", "global.store.ref 0, !vm.list, %r0\nreturn []", attrs=TAKES)
    program.function("give", "0v_r", "%r0 = global.load.ref 0, !vm.list\nreturn [%R0]", attrs=GIVES)
    module = pooled.load(program.function("fail", "0ri_i", FAILING, attrs=NUMBERED).build())
    direct(module.keep, [1]), direct(module.give), direct(module.fail, [1], 0)
    return module


def numbers(*values: int) -> VmList:
    made = VmList("i32")
    for value in values:
        made.append(value)
    return made


def test_a_call_that_fails_lets_go_of_its_elements(pooled: Session, keeping: Module) -> None:
    inner = numbers(5)
    for _ in range(3):
        with pytest.raises(StatusError, match="no"):
            keeping.fail([inner, 1], 1)
        keeping.keep([inner, 1])
        for other in (numbers(100), numbers(101)):
            keeping.fail([other, other], 0)
        assert keeping.give() == [[5], 1]


def test_an_awaited_call_that_is_set_aside_gives_its_list_up(pooled: Session, keeping: Module) -> None:
    slow = Slow()
    pooled.append_module(slow)
    attrs = {"iree.abi.declaration": "sync func @f(%x: !util.list<?>) -> (%y: !util.list<?>)"}
    text = "%i0 = const.i32 1\n%i1 = call @slow.answer [%i0]\nreturn [%R0]"
    program = (
        Assembler("waiting").import_function("slow.answer", "0i_i").function("f", "0r_r", text, attrs=attrs)
    )
    function = direct(pooled.load(program.build()).f, [1])
    slow.waits = True

    async def call() -> Any:
        awaited = asyncio.ensure_future(function.async_([numbers(1), 2]))
        await slow.reached(1)
        slow.open()
        return await awaited

    assert asyncio.run(call()) == [[1], 2]
    slow.waits = False
    inner = numbers(7)
    for _ in range(3):
        assert function([inner, 3]) == [[7], 3]
        keeping.keep([inner, 4])
        assert keeping.give() == [[7], 4]


MAKING = """
    %i0 = const.i32 1
    %r0 = list.alloc i32, %i0
    list.resize %r0, %i0
    %i1 = const.i32 0
    %i2 = const.i32 7
    list.set.i32 %r0, %i1, %i2
    global.store.ref 0, !vm.list, %r0
    return []"""


def test_an_interrupt_where_python_makes_the_list(pooled: Session, keeping: Module) -> None:
    """The elements are the list's as long as the program has it."""
    program = Assembler("making", ref_global_count=1).function("make", "0v_v", MAKING)
    text = "%r0 = global.load.ref 0, !vm.list\nreturn [%R0]"
    making = pooled.load(program.function("give", "0v_r", text, attrs=GIVES).build())
    assert pooled.context.table.supply_lists()
    making.make()

    def interrupt(frame: FrameType, event: str, value: object) -> None:
        if event == "return" and frame.f_code.co_name == "over":
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            making.give.call_slowly((), {})
    finally:
        sys.setprofile(None)
    gc.collect()
    for _ in range(2):
        assert making.give() == [7]
        keeping.fail([numbers(6)], 0)


@pytest.mark.parametrize("place", ["unpack_reference", "object"])
def test_an_interrupt_where_an_element_is_made(pooled: Session, place: str) -> None:
    """It is that, and no error of the interpreter's."""
    program = Assembler(f"echo_{place}").function("f", "0r_r", "return [%R0]", attrs=ECHOES)
    echo = direct(pooled.load(program.build()).f, [1])
    value = [VmBuffer.alias(b"abc"), [VmList("i32")]]

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == place:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            echo(value)
    finally:
        sys.setprofile(None)
    assert bytes(echo(value)[0]) == b"abc"


def test_idle_lists_are_no_handles_of_a_limit() -> None:
    program = Assembler("m")
    for index in range(4):
        program.function(f"f{index}", "0r_r", "return [%r0]", attrs=ECHOES)
    with Session("local-sync", tier="fast", sandbox=True, limits=Limits(handles=2)) as session:
        module = session.load(program.build())
        for _ in range(CALLS + 2):
            assert [module[f"f{index}"]([1, index]) for index in range(4)] == [
                [1, index] for index in range(4)
            ]


def test_results_in_lists_are_not_the_callers_memory(pooled: Session) -> None:
    """As arrays that are returned by themselves."""
    program = Assembler("keeper").function(
        "listed", "0r_r",
        "%i0 = const.i32 1\n%r1 = list.alloc !vm.opaque, %i0\nlist.resize %r1, %i0\n%i1 = const.i32.zero\n"
        "list.set.ref %r1, %i1, %r0\nreturn [%R1]",
        attrs={"iree.abi.declaration": "sync func @listed(%x: tensor<?xf32>) -> (%y: !util.list<?>)"},
    )  # fmt: skip
    listed = pooled.load(program.build()).listed
    for step in range(8):
        array = aligned()
        (result,) = listed(array)
        array[:] = -1
        assert np.asarray(result)[step + 1] == step + 1


def test_an_array_without_a_pool() -> None:
    """A program without imports has no memory that machine code gives to arrays."""
    declared = {"iree.abi.declaration": "sync func @f(%x: !hal.buffer_view) -> (%y: !hal.buffer_view)"}
    with Session("local-sync", tier="fast") as session:
        echo = session.load(Assembler("m").function("f", "0r_r", "return [%R0]", attrs=declared).build()).f
        array = session.to_device(ARRAYS)
        direct(echo, array)
        for _ in range(3):
            assert np.array_equal(echo(array), ARRAYS) and np.array_equal(echo(ARRAYS), ARRAYS)
