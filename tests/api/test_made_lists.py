"""Lists that programs make, grow and fill: machine code does what Python does, and frees all of them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jitree import Session
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from tests.api.direct import CALLS, direct, live, needs_machine_code, prepare_calls
from tests.api.test_large_arrays import python_calls
from tests.assembler import Assembler

pytestmark = [needs_machine_code, pytest.mark.usefixtures("images_are_built_here")]

KINDS = ("i8", "i32", "i64", "f32", "f64", "!vm.opaque", "!vm.list<i8>")
LISTS = ("%r0", "%r1", "%r2")
_numbers = itertools.count()

Step = tuple[Any, ...]


@pytest.fixture(scope="module")
def sessions() -> Iterator[list[Session]]:
    prepare_calls()
    made = [Session("local-sync", tier=tier) for tier in ("plain", "fast", "native")]
    for session in made[1:]:
        assert session.context.table.supply_lists()
    yield made
    for session in made:
        session.close()


def line(step: Step) -> list[str]:
    """The code of a step. Lists hold only lists with a smaller number: there are no circles."""
    name, place, *values = step
    target = LISTS[place]
    if name == "alloc":
        return [f"%i2 = const.i32 {values[0]}", f"{target} = list.alloc {KINDS[values[1]]}, %i2"]
    if name in ("reserve", "resize"):
        return [f"%i2 = const.i32 {values[0]}", f"list.{name} {target}, %i2"]
    if name == "size":
        return [f"%i2 = list.size {target}", "%i0 = add.i32 %i0, %i2"]
    index = f"%i3 = const.i32 {values[0]}"
    if name == "set":
        kind = KINDS[values[1]]
        register = "%i4:5" if kind[1:] == "64" else "%i4"
        return [index, f"{register} = const.{kind} 7", f"list.set.{kind} {target}, %i3, {register}"]
    if name == "get":
        return [index, f"%i4 = list.get.i32 {target}, %i3", "%i0 = add.i32 %i0, %i4"]
    if name == "put":
        return [index, f"list.set.ref {target}, %i3, {LISTS[values[1] % place]}"] if place else []
    return [index, f"%r3 = list.get.ref {target}, %i3, !vm.list<i8>", "%r3 = const.ref.zero"]


sizes = st.sampled_from([0, 1, 2, 3, 31, 32, 33, 40])
places = st.sampled_from([0, 1, 2])
indices = st.sampled_from([0, 0, 1, 2, 31, -1])
steps = st.one_of(
    st.tuples(st.just("alloc"), places, sizes, st.integers(0, len(KINDS) - 1)),
    st.tuples(st.sampled_from(["reserve", "resize", "resize"]), places, sizes),
    st.tuples(st.just("size"), places),
    st.tuples(st.just("set"), places, indices, st.sampled_from([1, 2, 3, 4])),
    st.tuples(st.just("get"), places, indices),
    st.tuples(st.sampled_from(["put", "put", "take"]), places, indices, places),
)


def held(session: Session) -> int:
    """References that are held, after those of dead lists are dropped. The next collection looks at what is
    made after this one."""
    gc.collect()
    gc.freeze()
    with session.context.invoker.lock:
        session.context.table.drain_deferred()
    return live(session)


def outcome(session: Session, name: str) -> list[Any]:
    function = session[f"{name}.f"]
    before = held(session)
    told = []
    for _ in range(CALLS + 2):
        try:
            told.append(repr(function()))
        except StatusError as error:
            told.append(f"{type(error).__name__}: {error.message}")
        assert held(session) == before
    return told


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, max_size=14))
@example([("resize", 1, 32), ("put", 1, 31, 0), ("resize", 2, 1), ("put", 2, 0, 1), ("size", 2)])
@example([("resize", 1, 2), ("put", 1, 0, 0), ("put", 1, 1, 0), ("resize", 1, 40), ("resize", 1, 0)])
def test_programs_do_the_same_in_the_loop(sessions: list[Session], program: list[Step]) -> None:
    compare(sessions[:2], program)


@settings(max_examples=5, deadline=None)
@given(st.lists(steps, min_size=6, max_size=14))
@example(
    [("resize", 1, 32), ("put", 1, 31, 0), ("resize", 2, 1), ("put", 2, 0, 1), ("size", 2), ("take", 2, 0, 0)]
)
@example([("resize", 1, 2), ("put", 1, 0, 0), ("put", 1, 1, 0), ("resize", 1, 40), ("resize", 1, 0)])
@example(
    [
        ("alloc", 0, 3, 1),
        ("resize", 0, 3),
        ("set", 0, 1, 1),
        ("get", 0, 1),
        ("reserve", 0, 33),
        ("set", 0, 0, 4),
    ]
)
def test_programs_do_the_same_compiled(sessions: list[Session], program: list[Step]) -> None:
    compare([sessions[0], sessions[2]], program)


def compare(sessions: list[Session], program: list[Step]) -> None:
    text = ["%i0 = const.i32 0"]
    for place, _ in enumerate(LISTS):
        text += line(("alloc", place, 2, KINDS.index("!vm.opaque")))
    for step in program:
        text += line(step)
    declared = ", ".join(f"%y{index}: !util.list<?>" for index in range(3))
    attrs = {"iree.abi.declaration": f"sync func @f() -> (%n: i32, {declared})"}
    name = f"m{next(_numbers)}"
    module = Assembler(name).function(
        "f", "0v_irrr", "\n".join([*text, "return [%i0, %R0, %R1, %R2]"]), attrs=attrs
    )
    image = module.build()
    told = []
    for session in sessions:
        session.load(image)
        told.append(outcome(session, name))
    assert told[1] == told[0]


PAIR = """
    %i1 = const.i32 3
    %i2 = const.i32 1
    %i3 = const.i32 2
    %r1 = list.alloc !vm.opaque, %i1
    list.resize %r1, %i1
    %r2 = list.alloc i32, %i1
    list.resize %r2, %i1
    list.set.i32 %r2, %i2, %i0
    list.set.ref %r1, %i2, %R2
    list.set.ref %r1, %i3, %R0
    return [%R1]"""
PAIR_ATTRS = {"iree.abi.declaration": "sync func @f(%n: i32, %x: !hal.buffer_view) -> (%y: !util.list<?>)"}


def test_calls_that_make_lists_are_not_left_to_python(sessions: list[Session]) -> None:
    session = sessions[1]
    module = session.load(Assembler("direct").function("f", "0ir_r", PAIR, attrs=PAIR_ATTRS).build())
    array = session.to_device(np.ones(2, np.float32))
    function = direct(module.f, 5, array)
    function(5, array)  # the first one by machine code asks Python for lists
    before = held(session)
    assert "call_slowly" not in python_calls(function, 5, array)
    for number in range(50):  # more than machine code has at a time
        empty, inner, (one, two) = function(number, array)
        assert (empty, inner, one, two) == (None, [0, number, 0], 1, 1)
    assert held(session) == before


def putting(name: str) -> bytes:
    """A program that puts a list of a list into a list of the caller's."""
    text = """
        %i1 = const.i32 1
        %i2 = const.i32 0
        %r1 = list.alloc !vm.opaque, %i1
        list.resize %r1, %i1
        %r2 = list.alloc i32, %i1
        list.resize %r2, %i1
        list.set.ref %r1, %i2, %R2
        list.set.ref %r0, %i2, %R1
        return []"""
    attrs = {"iree.abi.declaration": "sync func @f(%x: !util.list<?>) -> ()"}
    return Assembler(name).function("f", "0r_v", text, attrs=attrs).build()


def test_lists_outlive_their_session() -> None:
    session = Session("local-sync", tier="fast")
    assert session.context.table.supply_lists()
    put = session.load(putting("m")).f
    outers = [VmList(capacity=1) for _ in range(3)]
    for outer in outers:
        outer.append(None)
        put(outer)
    session.close()
    inners: list[Any] = [outer[0] for outer in outers]
    del outer, outers, put, session
    gc.collect()
    for inner in inners:
        assert [list(element) for element in inner] == [[0]]
    del inner, inners
    gc.collect()


def test_forks_share_what_the_first_context_has() -> None:
    with Session("local-sync", tier="fast") as session:
        put = session.load(putting("m")).f
        fork = session.context.fork()
        outer = VmList(capacity=1)
        outer.append(None)
        put(outer)
        pool = session.context.table.handle_pool
        assert pool is not None and pool.supply_lists()
        fork.close()
        put(outer)
        assert pool.supply_lists() and list(outer[0][0]) == [0]  # type: ignore[index]


def test_idle_lists_leave_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that machine code has for lists go back where others need them."""
    with Session("local-sync", tier="fast") as session:
        table = session.context.table
        assert table.supply_lists()
        monkeypatch.setattr(table, "capacity", table.capacity - table.room)
        handles = [table.wrap(VmBuffer.alias(b"x")) for _ in range(16)]
        assert len(set(handles)) == 16
        table.release_all(handles)
        assert table.supply_lists()


def test_deep_lists_go_without_the_stack(sessions: list[Session]) -> None:
    """A list in a list, twenty thousand deep, is dropped at once."""
    text = """
        %i1 = const.i32 1
        %i2 = const.i32 0
        br ^more {}
        ^more:
        %r0 = list.alloc !vm.opaque, %i1
        list.resize %r0, %i1
        list.set.ref %r0, %i2, %R1
        %r1 = assign.ref %R0
        %i0 = sub.i32 %i0, %i1
        cond_br %i0, ^more {}, ^end {}
        ^end:
        return [%i0]"""
    attrs = {"iree.abi.declaration": "sync func @f(%n: i32) -> (%y: i32)"}
    for session in sessions:
        module = session.load(Assembler("deep").function("f", "0i_i", text, attrs=attrs).build())
        before = held(session)
        for _ in range(3):
            assert module.f(20_000) == 0
        assert held(session) == before
