"""References: moves and copies, type checks, ref globals."""

from __future__ import annotations

import pytest

from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.dispatch.harness import Thing, Vm

ONE, TWO = VmBuffer(1), VmBuffer(2)


def test_copy_and_move(vm: Vm) -> None:
    text = """
        %r1 = assign.ref %r0
        %r2 = assign.ref %R0
        return [%r0, %r1, %R2]
    """
    assert vm.run("0r_rrr", text, [ONE]) == [None, ONE, ONE]


def test_moving_onto_itself_keeps_the_reference(vm: Vm) -> None:
    assert vm.run("0r_r", "br ^next {%R0->%r0}\n^next:\nreturn [%r0]", [ONE]) == [ONE]
    assert vm.run("0r_r", "%r0 = assign.ref %R0\nreturn [%r0]", [ONE]) == [ONE]


def test_discard_takes_all_that_it_names(vm: Vm) -> None:
    """As IREE's runtime does, which does not look at the flag; compilers leave it out of some."""
    assert vm.run("0rrr_rrr", "discard.refs [%r0, %R1]\nreturn [%r0, %r1, %r2]", [ONE, TWO, ONE]) == [
        None,
        None,
        ONE,
    ]


@pytest.mark.parametrize(("condition", "chosen"), [(1, ONE), (7, ONE), (0, TWO)])
def test_select_consumes_both(vm: Vm, condition: int, chosen: VmBuffer) -> None:
    text = "%r2 = select.ref %i0, !vm.buffer, %R0, %R1\nreturn [%r0, %r1, %r2]"
    assert vm.run("0irr_rrr", text, [condition, ONE, TWO]) == [None, None, chosen]
    text = "%r2 = select.ref %i0, !vm.buffer, %r0, %r1\nreturn [%r0, %r1, %r2]"
    assert vm.run("0irr_rrr", text, [condition, ONE, TWO]) == [ONE, TWO, chosen]
    text = "%r0 = select.ref %i0, !vm.buffer, %R0, %R1\nreturn [%r0, %r1]"
    assert vm.run("0irr_rr", text, [condition, ONE, TWO]) == [chosen, None]


@pytest.mark.parametrize(
    ("index", "expected"),
    [(0, (None, TWO, ONE)), (1, (ONE, None, TWO)), (2, (ONE, TWO, None)), (-1, (ONE, TWO, None))],
)
def test_switch_consumes_the_chosen_one(
    vm: Vm, index: int, expected: tuple[VmBuffer | None, VmBuffer | None, VmBuffer | None]
) -> None:
    text = "%r2 = switch.ref %i0, !vm.buffer, %R2, [%R0, %R1]\nreturn [%r0, %r1, %r2]"
    assert vm.run("0irr_rrr", text, [index, ONE, TWO]) == list(expected)


@pytest.mark.parametrize(
    "text",
    [
        "%r1 = cast.any.ref %r0, {}\nreturn [%r1]",
        "%r1 = select.ref %i0, {}, %r0, %r0\nreturn [%r1]",
        "%r1 = switch.ref %i0, {}, %r0, []\nreturn [%r1]",
        "global.store.ref 0, {}, %r0\nreturn [%r0]",
        "%i0 = const.i32 1\nglobal.store.indirect.ref %i0, {}, %r0\nreturn [%r0]",
    ],
)
def test_types_are_checked(vm: Vm, text: str) -> None:
    module = Assembler("t", ref_global_count=2)
    for name, kind in (("buffer", "!vm.buffer"), ("thing", "!test.thing"), ("opaque", "!vm.opaque")):
        module.function(name, "0ri_r", text.format(kind))
    vm.add(module)
    assert vm.call("buffer", None, 0) == [None]
    with pytest.raises(InvalidArgumentError, match=r"expected test\.thing but have vm\.buffer"):
        vm.call("thing", ONE, 0)
    with pytest.raises(InvalidArgumentError, match=r"vm\.opaque"):
        vm.call("opaque", ONE, 0)
    assert vm.keep("buffer", ONE, 0) == [ONE]


def _globals() -> Assembler:
    module = Assembler("g", ref_global_count=2)
    module.function("store", "0r_v", "global.store.ref 1, !vm.buffer, %r0\nreturn []")
    module.function("move", "0r_r", "global.store.ref 1, !vm.buffer, %R0\nreturn [%r0]")
    module.function("load", "0v_r", "%r0 = global.load.ref 1, !vm.buffer\nreturn [%R0]")
    module.function("load_thing", "0v_r", "%r0 = global.load.ref 1, !test.thing\nreturn [%R0]")
    module.function("put", "0ir_v", "global.store.indirect.ref %i0, !vm.buffer, %R0\nreturn []")
    module.function("get", "0i_r", "%r0 = global.load.indirect.ref %i0, !vm.buffer\nreturn [%R0]")
    return module


def test_ref_globals_hold_references(vm: Vm) -> None:
    vm.add(_globals())
    assert vm.call("load") == [None]
    vm.keep("store", ONE)
    assert vm.call("load") == [ONE]
    assert vm.call("move", TWO) == [None]
    assert vm.call("load") == [TWO]
    assert vm.call("get", 1) == [TWO]
    with pytest.raises(InvalidArgumentError):
        vm.call("load_thing")
    assert vm.context.table.live_count == 1
    vm.keep("move", None)
    assert vm.context.table.live_count == 0


@pytest.mark.parametrize("slot", [2, -1, 2**31 - 1])
def test_indirect_ref_globals_are_checked(vm: Vm, slot: int) -> None:
    vm.add(_globals())
    with pytest.raises(OutOfRangeError):
        vm.call("put", slot, ONE)
    with pytest.raises(OutOfRangeError):
        vm.call("get", slot)


def test_comparison_is_identity(vm: Vm) -> None:
    text = (
        "%i0 = cmp.eq.ref %r0, %r1\n%i1 = cmp.ne.ref %r0, %r1\n%i2 = cmp.nz.ref %r0\nreturn [%i0, %i1, %i2]"
    )
    vm.add(Assembler("c").function("f", "0rr_iii", text))
    assert vm.call("f", ONE, ONE) == [1, 0, 1]
    assert vm.call("f", ONE, VmBuffer(1)) == [0, 1, 1]
    assert vm.call("f", None, None) == [1, 0, 0]
    assert vm.call("f", None, ONE) == [0, 1, 0]


def test_objects_go_when_their_last_reference_does(vm: Vm) -> None:
    import weakref

    vm.add(_globals())
    buffer = VmBuffer(8)
    alive = weakref.ref(buffer)
    vm.keep("store", buffer)
    del buffer
    assert alive() is not None
    vm.keep("store", None)
    assert alive() is None


@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_move_flags_by_bytecode_version(vm: Vm, bytecode: int) -> None:
    """In version 15 only calls, returns and messages honour them."""
    text = "%r1 = cast.any.ref %R0, !vm.buffer\nbr ^next {%R1->%r2}\n^next:\nreturn [%r0, %r1, %r2]"
    expected = [ONE, ONE, ONE] if bytecode == 15 else [None, None, ONE]
    assert vm.run("0r_rrr", text, [ONE], bytecode=bytecode) == expected


def test_messages_drop_what_they_are_given(vm: Vm) -> None:
    text = 'trace "t" [%R0, %i0]\nprint "p" [%r1, %R2]\nreturn [%r0, %r1, %r2]'
    assert vm.run("0irrr_rrr", text, [1, ONE, TWO, Thing()]) == [None, TWO, None]


def test_calls_of_different_functions_find_no_handles_of_each_other(vm: Vm) -> None:
    """The frame of ``f`` lies where the result of ``g`` will be."""
    module = Assembler("m", ref_global_count=1).function(
        "f", "0v_v", "%r0 = const.ref.rodata 0\nglobal.store.ref 0, !vm.buffer, %r0\nreturn"
    )
    module.rodata(b"constant")
    module.function("g", "0v_r", "%r0 = const.ref.zero\nreturn [%r0]")
    module.function("get", "0v_r", "%r0 = global.load.ref 0, !vm.buffer\nreturn [%r0]")
    vm.add(module)
    vm.keep("f")
    for _ in range(3):
        assert vm.call("g") == [None]
        assert bytes(vm.call("get")[0]) == b"constant"
