"""Branches, calls, failures, stack overflow, backtraces."""

from __future__ import annotations

import pytest

from jitree.errors import (
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StatusCode,
    StatusError,
    UnknownError,
)
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Vm

ONE = VmBuffer(1)


def test_loop(vm: Vm) -> None:
    text = """
        %i1 = const.i32.zero
        %i2 = const.i32 1
        br ^head {%i1->%i3}
        ^head:
        %i4 = cmp.lt.i32.s %i1, %i0
        cond_br %i4, ^body, ^end
        ^body:
        %i3 = add.i32 %i3, %i1
        %i1 = add.i32 %i1, %i2
        br ^head
        ^end:
        return [%i3]
    """
    assert vm.run("0i_i", text, [100]) == [4950]


def test_remaps_run_in_list_order(vm: Vm) -> None:
    """Not at once: the second move reads what the first wrote."""
    text = "br ^next {%i0->%i1, %i1->%i2, %r0->%r1, %R1->%r2}\n^next:\nreturn [%i0, %i1, %i2, %r0, %r1, %r2]"
    assert vm.run("0iiirr_iiirrr", text, [1, 2, 3, ONE, None]) == [1, 1, 1, ONE, None, ONE]


def test_remap_of_pairs(vm: Vm) -> None:
    text = "br ^next {%i0->%i2, %i1->%i3}\n^next:\nreturn [%i0:1, %i2:3]"
    assert vm.run("0II_II", text, [-(2**40), 5]) == [-(2**40), -(2**40)]


@pytest.mark.parametrize(("condition", "expected"), [(0, [1, 2]), (1, [2, 2]), (-1, [2, 2])])
def test_conditional_branches_with_moves(vm: Vm, condition: int, expected: list[int]) -> None:
    text = "cond_br %i0, ^a {%i2->%i1}, ^b {}\n^a:\nreturn [%i1, %i2]\n^b:\nreturn [%i1, %i2]"
    assert vm.run("0iii_ii", text, [condition, 1, 2]) == expected


@pytest.mark.parametrize(("index", "expected"), [(0, 10), (1, 7), (2, 99), (-1, 99), (-(2**31), 99)])
def test_br_table(vm: Vm, index: int, expected: int) -> None:
    text = """
        %i1 = const.i32 7
        %i2 = const.i32 99
        br_table %i0, ^default {%i2->%i1}, [^ten, ^same {}]
        ^ten:
        %i1 = const.i32 10
        br ^same
        ^default:
        br ^same
        ^same:
        return [%i1]
    """
    assert vm.run("0i_i", text, [index]) == [expected]


def test_break_branches(vm: Vm) -> None:
    assert vm.run("0i_i", "break ^next {%i0->%i1}\n^next:\nreturn [%i1]", [3]) == [3]


@pytest.mark.parametrize("code", range(1, 19))
def test_fail_keeps_code_and_message(vm: Vm, code: int) -> None:
    vm.add(Assembler("m").function("f", "0i_v", 'fail %i0, "the reason"'))
    with pytest.raises(StatusError) as failure:
        vm.call("f", code)
    assert failure.value.code == StatusCode(code)
    assert failure.value.message == "the reason"
    assert failure.value.contexts == ["invoking function 'f'"]


def test_fail_with_an_unnamed_code(vm: Vm) -> None:
    vm.add(Assembler("m").function("f", "0i_v", 'fail %i0, "the reason"'))
    with pytest.raises(UnknownError, match="status code 77"):
        vm.call("f", 77)


def test_fail_with_status_ok_goes_on(vm: Vm) -> None:
    text = 'fail %i0, "no"\n^next:\n%i0 = const.i32 5\nreturn [%i0]'
    assert vm.run("0i_i", text, [0]) == [5]
    with pytest.raises(InternalError, match="end of the function"):
        vm.run("0i_v", 'fail %i0, "no"', [0])


CALLS = Assembler("calls")
CALLS.function("caller", "0iIrfF_FfrIi", """
    [%i8:9, %i10, %r1, %i12:13, %i14] = call @callee [%i0, %i2:3, %R0, %i4, %i6:7]
    return [%i8:9, %i10, %r1, %i12:13, %i14]
""")  # fmt: skip
CALLS.function("callee", "0iIrfF_FfrIi", "return [%i6:7, %i4, %R0, %i2:3, %i0]", exported=False)
CALLS.function("twice", "0r_rr", "[%r1] = call @copy [%r0]\n[%r2] = call @copy [%r0]\nreturn [%r1, %R2]")
CALLS.function("copy", "0r_r", "%r5 = assign.ref %r0\nreturn [%r5]", exported=False)
CALLS.function("over", "0r_r", "[%r0] = call @copy [%r0]\nreturn [%r0]")
CALLS.function("fresh", "0v_i", "[%i0] = call @dirty []\n[%i1] = call @dirty []\nreturn [%i1]")
CALLS.function("dirty", "0v_i", """
    %i1 = cmp.nz.ref %r0
    %i0 = or.i32 %i0, %i1
    %i2 = const.i32 1
    %i3 = const.i64 8
    %i4 = const.i64 8
    cond_br %i0, ^end, ^set
    ^set:
    %i6 = const.i64 8
    %r0 = buffer.alloc %i6, %i2
    br ^end
    ^end:
    return [%i0]
""".replace("%i3 = const.i64 8\n", "").replace("%i4 = const.i64 8\n", ""), exported=False)  # fmt: skip


def test_calls_pass_every_kind(vm: Vm) -> None:
    vm.add(CALLS)
    assert vm.call("caller", 1, -(2**40), ONE, 0.5, 0.1) == [0.1, 0.5, ONE, -(2**40), 1]


def test_references_through_calls(vm: Vm) -> None:
    vm.add(CALLS)
    assert vm.call("twice", ONE) == [ONE, ONE]
    assert vm.call("over", ONE) == [ONE]
    assert vm.call("over", None) == [None]


def test_frames_begin_empty(vm: Vm) -> None:
    vm.add(CALLS)
    assert vm.call("fresh") == [0]


DEEP = Assembler("deep")
DEEP.function("down", "0ir_i", """
    cond_br %i0, ^more, ^end
    ^more:
    %i1 = const.i32 1
    %i2 = sub.i32 %i0, %i1
    [%i3] = call @down [%i2, %r0]
    %i3 = add.i32 %i3, %i1
    return [%i3]
    ^end:
    return [%i0]
""")  # fmt: skip


def test_deep_recursion_and_overflow(vm: Vm) -> None:
    vm.add(DEEP)
    assert vm.call("down", 7000, ONE) == [7000]
    with pytest.raises(ResourceExhaustedError, match="stack overflow") as failure:
        vm.call("down", 10**6, ONE)
    assert 50 < len(failure.value.backtrace) < 200
    assert vm.call("down", 7000, ONE) == [7000], "usable afterwards"


def test_overflow_of_the_value_arena(vm: Vm) -> None:
    text = "%i16380 = const.i32 1\n[%i1] = call @down [%i0]\nreturn [%i1]"
    vm.add(Assembler("wide").function("down", "0i_i", text))
    with pytest.raises(ResourceExhaustedError, match="stack overflow"):
        vm.call("down", 1)
    text = "%r8000 = assign.ref %r0\n[%r1] = call @down [%R0]\nreturn [%r1]"
    vm.add(Assembler("refs").function("down", "0r_r", text))
    with pytest.raises(ResourceExhaustedError, match="stack overflow"):
        vm.call("down", ONE)


def test_native_functions_calling_back_are_bounded(vm: Vm) -> None:
    def again(count: int) -> int:
        return int(vm.context.invoke(vm.function("m:f"), [count + 1])[0])

    vm.add(HostFunctions("host", [("again", "0i_i", again)]))
    module = Assembler("m").import_function("host.again", "0i_i")
    vm.add(module.function("f", "0i_i", "[%i0] = call @host.again [%i0]\nreturn [%i0]"))
    with pytest.raises(ResourceExhaustedError, match="stack overflow"):
        vm.call("f", 0)
    with pytest.raises(ResourceExhaustedError):
        vm.call("f", 0)


def test_python_recursion_is_a_stack_overflow(vm: Vm) -> None:
    def endless(value: int) -> int:
        return endless(value + 1)

    vm.add(HostFunctions("host", [("endless", "0i_i", endless)]))
    module = Assembler("m").import_function("host.endless", "0i_i")
    vm.add(module.function("f", "0i_i", "[%i0] = call @host.endless [%i0]\nreturn [%i0]"))
    with pytest.raises(ResourceExhaustedError, match="stack overflow in Python"):
        vm.call("f", 0)


def test_failures_release_every_frame(vm: Vm) -> None:
    """The fixture's leak check is the assertion."""
    module = Assembler("m", ref_global_count=1)
    module.function("f", "0ri_v", "%r1 = assign.ref %r0\n[] = call @g [%r0, %i0]\nreturn []")
    module.function("g", "0ri_v", 'global.store.ref 0, !vm.buffer, %r0\nfail %i0, "late"', exported=False)
    vm.add(module)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="late"):
            vm.keep("f", VmBuffer(4), 3)
    assert vm.context.table.live_count == 1, "side effects stay: the global holds the last buffer"


def test_backtrace_names_functions_offsets_and_source(vm: Vm) -> None:
    module = Assembler("m", source="model.mlir")
    module.function("outer", "0i_v", "%i1 = const.i32 1\n[] = call @inner [%i0]\nreturn []")
    module.function("inner", "0i_v", 'fail %i0, "no"', exported=False)
    vm.add(module)
    with pytest.raises(InvalidArgumentError) as failure:
        vm.call("outer", 3)
    inner, outer = failure.value.backtrace
    assert inner.startswith("m.inner+00000001 at model.mlir:")
    assert outer.startswith("m.outer+00000008 at model.mlir:2:")


def test_backtrace_through_native_functions(vm: Vm) -> None:
    vm.add(
        HostFunctions(
            "host", [("call", "0i_v", lambda value: vm.context.invoke(vm.function("m:inner"), [value]))]
        )
    )
    module = Assembler("m").import_function("host.call", "0i_v")
    module.function("outer", "0i_v", "[] = call @host.call [%i0]\nreturn []")
    module.function("inner", "0i_v", 'fail %i0, "no"')
    vm.add(module)
    with pytest.raises(InvalidArgumentError) as failure:
        vm.call("outer", 3)
    assert [line.split("+")[0] for line in failure.value.backtrace] == ["m.inner", "m.outer"]
    assert "while invoking host function host.call" in str(failure.value)


def test_calls_of_the_host_are_converted(vm: Vm) -> None:
    vm.add(Assembler("m").function("f", "0iIfF_iIfF", "return [%i0, %i2:3, %i4, %i6:7]"))
    assert vm.call("f", 2**32 + 5, 2**64 - 1, 1, 2) == [5, -1, 1.0, 2.0]
    assert vm.call("f", True, -1, 0.1, 0.1) == [1, -1, 0.10000000149011612, 0.1]
    assert vm.call("f", 0, 0, 1e300, 1e300)[2] == float("inf")
    for wrong in ([1.5, 0, 0, 0], [0, "x", 0, 0], [0, 0, None, 0], [0, 0, 0, "1"], [2**64, 0, 0, 0]):
        with pytest.raises(InvalidArgumentError, match="argument"):
            vm.call("f", *wrong)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments_is_checked(vm: Vm, count: int) -> None:
    vm.add(Assembler("m").function("f", "0ir_v", "return []"))
    with pytest.raises(InvalidArgumentError, match=f"expected 2 arguments but passed {count}"):
        vm.call("f", *[0] * count)


def test_objects_that_are_no_references_are_refused(vm: Vm) -> None:
    vm.add(Assembler("m").function("f", "0rr_v", "return []"))
    with pytest.raises(InvalidArgumentError, match="not a registered ref type"):
        vm.call("f", ONE, object())
