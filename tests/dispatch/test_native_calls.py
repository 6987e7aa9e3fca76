"""Calls of host functions: every kind of argument and result, spans, overloads, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from jitree.dispatch import sites
from jitree.errors import InternalError, InvalidArgumentError, UnavailableError
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions, Thing, Vm

ONE, TWO = VmBuffer(1), VmBuffer(2)


@pytest.fixture(params=["unprepared", "bound"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each program runs with first calls as they are, and again bound from the first call on."""
    if request.param == "bound":
        monkeypatch.setattr(
            sites, "call_once", lambda machine, site, target: sites.bind(site, target)(machine)
        )
    return str(request.param)


def echo(vm: Vm, cconv: str, function: Any, text: str, entry: str | None = None, **options: Any) -> Vm:
    """A program ``f`` around one import ``n.f``."""
    module = Assembler("m", **options).import_function("n.f", cconv)
    return vm.add(HostFunctions("n", [("f", cconv, function)]), module.function("f", entry or cconv, text))


def test_sites_are_prepared_when_they_are_called_often(
    vm: Vm, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []
    bind = sites.bind

    def note(*arguments: Any) -> Any:
        prepared.append(len(results))
        return bind(*arguments)

    monkeypatch.setattr(sites, "bind", note)
    results: list[object] = []
    echo(vm, "0i_i", lambda number: number + 1, "%i0 = call @n.f [%i0]\nreturn [%i0]")
    for number in range(8):
        results.append(vm.call("f", number))
    assert results == [[number + 1] for number in range(8)]
    assert prepared == ([4] if form == "unprepared" else [0, 1, 2, 3, 4])


def test_every_kind_of_argument_and_result(vm: Vm) -> None:
    seen: list[object] = []

    def function(*arguments: object) -> tuple[object, ...]:
        seen.append(arguments)
        return arguments[::-1]

    text = "[%r2, %r3, %i8:9, %i10, %i12:13, %i14] = call @n.f [%i0, %i2:3, %i4, %i6:7, %r0, %r1]\n"
    echo(vm, "0iIfFrr_rrFfIi", function, text + "return [%r2, %r3, %i8:9, %i10, %i12:13, %i14]")
    arguments = (-5, -(2**40), 0.5, 0.1, ONE, None)
    assert vm.call("f", *arguments) == list(arguments[::-1])
    assert seen == [arguments]
    assert [type(item) for item in seen[0]] == [int, int, float, float, VmBuffer, type(None)]  # type: ignore[attr-defined]


def test_integers_are_signed(vm: Vm) -> None:
    echo(
        vm,
        "0iI_iI",
        lambda a, b: (a & 0xFFFFFFFF, b & (2**64 - 1)),
        "[%i4, %i6:7] = call @n.f [%i0, %i2:3]\nreturn [%i4, %i6:7]",
    )
    assert vm.call("f", -1, -2) == [-1, -2]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("i", True, 1),
        ("i", np.int64(7), 7),
        ("I", np.uint8(7), 7),
        ("f", 3, 3.0),
        ("F", np.float32(0.5), 0.5),
    ],
)
def test_results_that_are_like_numbers(vm: Vm, kind: str, value: object, expected: float) -> None:
    register = "%i0:1" if kind in "IF" else "%i0"
    echo(vm, f"0v_{kind}", lambda: value, f"[{register}] = call @n.f []\nreturn [{register}]")
    assert vm.call("f") == [expected]


@pytest.mark.parametrize(
    ("cconv", "value"),
    [
        ("0v_i", 2**32),
        ("0v_i", 1.5),
        ("0v_I", "x"),
        ("0v_f", None),
        ("0v_i", None),
        ("0v_ii", 1),
        ("0v_ii", (1, 2, 3)),
        ("0v_v", 1),
    ],
)
def test_wrong_results_are_internal_errors(vm: Vm, cconv: str, value: object) -> None:
    registers = {"0v_I": "%i0:1", "0v_ii": "%i0, %i1", "0v_v": ""}.get(cconv, "%i0")
    echo(vm, cconv, lambda: value, f"[{registers}] = call @n.f []\nreturn [{registers}]")
    with pytest.raises(InternalError, match=r"while invoking host function n\.f"):
        vm.call("f")


def test_results_that_are_no_references(vm: Vm) -> None:
    echo(vm, "0v_r", object, "[%r0] = call @n.f []\nreturn [%r0]")
    with pytest.raises(InvalidArgumentError, match="not a registered ref type"):
        vm.call("f")


def test_spans(vm: Vm) -> None:
    seen: list[object] = []
    cconv = "0rCiDiCrIDCrD_v"
    text = """
        call.variadic @n.f [0xFFFF, 3, 0xFFFF, 2, 0] [%r0, %i0, %i1, %i0, %i1, %r1, %i2:3, %R2, %i4:5]
        call.variadic @n.f [0xFFFF, 0, 0xFFFF, 0, 2] [%r0, %i1, %r1, %r2]
        return []
    """
    echo(
        vm, cconv, lambda *arguments: seen.append(arguments), text, "0irIrIri_v".replace("irIrIri", "iiIIrrr")
    )
    vm.call("f", 1, 2, 30, 40, ONE, TWO, None)
    assert seen == [
        (ONE, [1, 2, 1], 2, [(TWO, 30), (None, 40)], []),
        (ONE, [], 2, [], [TWO, None]),
    ]


def test_overloads_are_chosen_by_signature(vm: Vm) -> None:
    rows = [("f", "0i_i", lambda value: value + 1), ("f", "0I_I", lambda value: value + 2)]
    short = (
        Assembler("short")
        .import_function("n.f", "0i_i")
        .function("f", "0i_i", "[%i0] = call @n.f [%i0]\nreturn [%i0]")
    )
    long = (
        Assembler("long")
        .import_function("n.f", "0I_I")
        .function("f", "0I_I", "[%i0:1] = call @n.f [%i0:1]\nreturn [%i0:1]")
    )
    vm.add(HostFunctions("n", rows), short, long)
    assert (vm.call("short:f", 1), vm.call("long:f", 1)) == ([2], [3])


@pytest.mark.parametrize("bytecode", [15, 17])
def test_moved_arguments_are_given_up(vm: Vm, bytecode: int) -> None:
    """In version 15 arguments of imports are borrowed."""
    text = "[%r1] = call @n.f [%R0]\nreturn [%r0, %r1]"
    echo(vm, "0r_r", lambda value: value, text, "0r_rr", bytecode=bytecode)
    assert vm.call("f", ONE) == [ONE if bytecode == 15 else None, ONE]


def test_results_replace_what_their_registers_held(vm: Vm) -> None:
    echo(vm, "0r_r", lambda value: TWO, "[%r0] = call @n.f [%r0]\n[%r0] = call @n.f [%R0]\nreturn [%r0]")
    assert vm.call("f", ONE) == [TWO]


def test_status_errors_pass_with_context(vm: Vm) -> None:
    def function() -> None:
        raise UnavailableError("no device")

    echo(vm, "0v_v", function, "[] = call @n.f []\nreturn []")
    with pytest.raises(UnavailableError) as failure:
        vm.call("f")
    assert str(failure.value) == (
        "UNAVAILABLE; no device; while invoking host function n.f; invoking function 'f'"
    )
    assert failure.value.backtrace == ["m.f+00000001"]


def test_other_exceptions_keep_their_class(vm: Vm) -> None:
    def function() -> None:
        raise KeyError("lost")

    echo(vm, "0v_v", function, "[] = call @n.f []\nreturn []")
    with pytest.raises(KeyError) as failure:
        vm.call("f")
    assert "m.f+00000001" in failure.value.__notes__[0]
    assert "n.f" in failure.value.__notes__[0]


def test_native_functions_called_by_the_host(vm: Vm) -> None:
    vm.add(
        HostFunctions(
            "n", [("f", "0iCiIDr_iI", lambda a, rows, thing: (len(rows), sum(b for _, b in rows) + a))]
        )
    )
    assert vm.call("f", (1.0).__int__(), [(1, 10), (2, 20)], Thing()) == [2, 31]
    with pytest.raises(InvalidArgumentError, match="expected 3 arguments"):
        vm.call("f", 1)
    with pytest.raises(InvalidArgumentError, match="argument 1"):
        vm.call("f", 1, 5, None)
    with pytest.raises(InvalidArgumentError, match="argument 1"):
        vm.call("f", 1, [(1, 2, 3)], None)


@pytest.mark.parametrize(
    ("kind", "value", "expected"), [("i", 2**32 - 1, -1), ("i", True, 1), ("I", 7, 7), ("F", 3, 3.0)]
)
def test_results_to_the_host_are_those_that_programs_get(
    vm: Vm, kind: str, value: object, expected: float
) -> None:
    """Called directly, through a program, and awaited."""
    module = Assembler("m").import_function("n.f", f"0v_{kind}")
    register = "%i0" if kind == "i" else "%i0:1"
    module.function("g", f"0v_{kind}", f"[{register}] = call @n.f\nreturn [{register}]")
    vm.add(HostFunctions("n", [("f", f"0v_{kind}", lambda: value)]), module)
    found = [vm.call("n:f"), vm.call("g"), asyncio.run(vm.context.invoke_async(vm.function("n:f")))]
    assert found == [[expected]] * 3
    assert {type(results[0]) for results in found} == {type(expected)}


def test_wrong_results_to_the_host_are_internal_errors(vm: Vm) -> None:
    vm.add(HostFunctions("n", [("f", "0v_i", lambda: "x"), ("g", "0v_iI", lambda: (1, None))]))
    with pytest.raises(InternalError, match="result 0: expected i32"):
        vm.call("f")
    with pytest.raises(InternalError, match="result 1: expected i64"):
        asyncio.run(vm.context.invoke_async(vm.function("g")))


def test_calls_within_calls(vm: Vm) -> None:
    """A host function may call the program that called it: each call has a stack of its own."""

    def function(depth: int, thing: object) -> int:
        return (
            depth if depth == 0 else int(vm.context.invoke(vm.function("m:f"), [depth - 1, thing])[0]) + depth
        )

    echo(vm, "0ir_i", function, "%r5 = assign.ref %r0\n[%i1] = call @n.f [%i0, %R0]\nreturn [%i1]")
    assert vm.call("f", 10, ONE) == [55]
