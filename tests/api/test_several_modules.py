"""Programs of several modules: any order that resolves, circles, names and signatures that clash."""

from __future__ import annotations

import pickle
from itertools import permutations
from pathlib import Path

import pytest

import jitree.compat.iree_runtime as rt
from jitree import HostExport, HostModule, Session
from jitree.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnimplementedError,
)
from tests.api.programs import LIBRARY, PROGRAM
from tests.assembler import Assembler
from tests.tools.command import jitree as command


def passing_on(name: str, callee: str, cconv: str = "0i_i") -> bytes:
    """A module whose ``f`` returns one more than what a function of another module gives."""
    text = f"[%i1] = call @{callee} [%i0]\n%i2 = const.i32 1\n%i3 = add.i32 %i1, %i2\nreturn [%i3]"
    return Assembler(name).import_function(callee, cconv).function("f", cconv, text).build()


BASE = Assembler("base").function("f", "0i_i", "return [%i0]").build()
MIDDLE = passing_on("middle", "base.f")
TOP = passing_on("top", "middle.f")


@pytest.mark.parametrize("order", list(permutations((0, 1, 2))), ids=str)
def test_any_order_resolves(session: Session, order: tuple[int, ...]) -> None:
    given = [(BASE, MIDDLE, TOP)[index] for index in order]
    modules = session.load(*given)
    assert [module.name for module in modules] == [("base", "middle", "top")[index] for index in order]
    assert session["top.f"](40) == 42


def test_compiled_modules_in_the_other_order(session: Session) -> None:
    program, library = session.load(PROGRAM, LIBRARY)
    assert program.bump_twice(1) == 201 and library.bump(1) == 101


def test_a_module_in_python_may_come_last(plain_session: Session) -> None:
    class Base(HostModule):
        name = "base"

        def exports(self) -> list[HostExport]:
            return [HostExport("f", "0i_i", lambda state, value: 10 * value)]

    middle, _ = plain_session.load(MIDDLE, Base())
    assert middle.f(4) == 41


def test_circles_are_named(plain_session: Session) -> None:
    first, second = passing_on("first", "second.f"), passing_on("second", "first.f")
    with pytest.raises(InvalidArgumentError, match=r"in a circle: first -> second -> first"):
        plain_session.load(first, BASE, second)
    assert plain_session.modules == {}
    assert plain_session.load(BASE).f(1) == 1


def test_two_of_one_name_are_named(plain_session: Session) -> None:
    with pytest.raises(AlreadyExistsError, match="'base'"):
        plain_session.load(MIDDLE, BASE, BASE)
    assert plain_session.modules == {}


def test_signatures_that_differ_are_named(plain_session: Session) -> None:
    other = Assembler("middle").import_function("base.f", "0I_I").function("f", "0v_v", "return").build()
    with pytest.raises(InternalError, match=r"'base\.f'.*'0I_I'.*'0i_i'"):
        plain_session.load(other, BASE)
    with pytest.raises(NotFoundError, match=r"base\.g"):
        plain_session.load(passing_on("middle", "base.g"), BASE)
    assert plain_session.modules == {}


def test_builtin_modules_come_when_they_are_imported(plain_session: Session) -> None:
    registered = [module.name for module in plain_session.context.modules]
    assert registered == ["hal"]
    text = "call @check.expect_true [%i0]\nreturn"
    module = Assembler("m").import_function("check.expect_true", "0i_v", optional=True)
    plain_session.load(module.function("f", "0i_v", text).build()).f(1)
    assert [module.name for module in plain_session.context.modules] == ["hal", "check", "m"]


def test_a_module_of_the_user_takes_the_place_of_a_builtin_one(plain_session: Session) -> None:
    seen: list[int] = []

    class Check(HostModule):
        name = "check"

        def exports(self) -> list[HostExport]:
            return [HostExport("expect_true", "0i_v", lambda state, value: seen.append(value))]

    text = "call @check.expect_true [%i0]\nreturn"
    module = Assembler("m").import_function("check.expect_true", "0i_v")
    plain_session.append_module(Check())
    plain_session.load(module.function("f", "0i_v", text).build()).f(0)
    assert seen == [0]


def adding(number: int, extra: str) -> bytes:
    """A module ``twin`` whose ``f`` adds a number; ``extra`` is a function that others of its name lack."""
    body = f"%i1 = const.i32 {number}\n%i2 = add.i32 %i0, %i1\nreturn [%i2]"
    return Assembler("twin").function("f", "0i_i", body).function(extra, "0v_v", "return").build()


FIRST, SECOND = adding(1, "only_first"), adding(2, "only_second")


def test_modules_of_one_name_call_their_own_functions(session: Session) -> None:
    first, second = session.link(FIRST, SECOND)
    assert (first.f(5), second.f(5), first["twin.f"](5), session["twin.f"](5)) == (6, 7, 6, 7)
    assert first.only_first() is None and second.only_second() is None
    assert session.modules == {"twin": second}
    with pytest.raises(NotFoundError, match="only_first"):
        session.lookup("twin.only_first")
    (third,) = session.link(FIRST)
    assert (first.f(5), second.f(5), third.f(5), session["twin.f"](5)) == (6, 7, 6, 6)


def test_imports_are_of_the_last_module_of_a_name_before(session: Session) -> None:
    user = passing_on("user", "twin.f")
    assert [module.f(5) for module in session.link(FIRST, user, SECOND)] == [6, 7, 7]
    late = passing_on("late", "twin.f")
    assert session.link(late)[0].f(5) == 8


@pytest.mark.parametrize("order", list(permutations((0, 1, 2))), ids=str)
def test_one_of_each_name_comes_before_who_imports_it(plain_session: Session, order: tuple[int, ...]) -> None:
    given = [(FIRST, SECOND, passing_on("user", "twin.f"))[index] for index in order]
    modules = plain_session.link(*given)
    user, place = modules[order.index(2)], order.index(2)
    nearest = order[place - 1] if place else order[1]
    assert user.f(5) == 5 + (1, 2)[nearest] + 1


def test_a_second_module_of_a_name_that_fails_leaves_the_first(plain_session: Session) -> None:
    (first,) = plain_session.link(FIRST)
    with pytest.raises(NotFoundError):
        plain_session.link(SECOND, passing_on("twin", "nowhere.f"))
    assert plain_session.modules == {"twin": first} and plain_session["twin.f"](5) == 6


def test_modules_of_one_name_are_no_program(plain_session: Session) -> None:
    plain_session.link(FIRST, SECOND)
    with pytest.raises(UnimplementedError, match="'twin'"):
        pickle.dumps(plain_session)


def test_a_context_of_another_module_of_the_name_has_no_such_function(plain_session: Session) -> None:
    first, second = plain_session.link(FIRST, SECOND)
    lookup = plain_session.context.function_of
    assert lookup(first.vm_module, "f") is not lookup(second.vm_module, "f")
    with Session("local-sync", tier="plain") as other:
        other.load(FIRST)
        with pytest.raises(NotFoundError, match="not registered in this context"):
            other.context.function_of(first.vm_module, "f")


@pytest.mark.parametrize("flags", [(), ("--sandbox",), ("--sandbox=process",)])
def test_the_command_line_runs_the_last_module_of_a_name(flags: tuple[str, ...], tmp_path: Path) -> None:
    files = []
    for name, data in (("a", FIRST), ("b", MIDDLE), ("c", BASE), ("d", SECOND)):
        files.append(tmp_path / name)
        files[-1].write_bytes(data)
    shared = ("run", "--device=local-sync", *flags, *(f"--module={file}" for file in files))
    outcome = command(*shared, "--function=f", "--input=5")
    assert (outcome.code, outcome.stdout) == (0, "EXEC @f\nresult[0]: i32=7\n")
    outcome = command(*shared, "--function=only_first")
    assert outcome.code == 1 and "NOT_FOUND" in outcome.stderr and "only_second" in outcome.stderr


def called(context: rt.VmContext, module: rt.VmModule) -> object:
    arguments, results = rt.VmVariantList(1), rt.VmVariantList(1)
    arguments.push_int(5)
    context.invoke(module.lookup_function("f"), arguments, results)
    return results.get_variant(0)


def test_contexts_of_iree_runtime_tell_modules_of_one_name_apart() -> None:
    config = rt.Config("local-sync")
    hal = config.default_vm_modules[0]
    first, second = (rt.VmModule.copy_buffer(config.vm_instance, data) for data in (FIRST, SECOND))
    context = rt.VmContext(config.vm_instance, [hal, first, second])
    assert [called(context, module) for module in (first, second)] == [6, 7]
    assert rt.FunctionInvoker(context, config.device, first.lookup_function("f"))(5) == 6
    assert [module.f(5) for module in rt.load_vm_modules(first, second, config=config)] == [7, 7]
    with pytest.raises(ValueError, match=r"Error invoking function.*NOT_FOUND|NOT_FOUND.*Error invoking"):
        called(rt.VmContext(config.vm_instance, [hal, first]), second)
    system = rt.SystemContext(config=config)
    with pytest.raises(ValueError, match="duplicate"):
        system.add_vm_modules([first, second])
    assert "twin" not in system.modules
