"""Programs of several modules: any order that resolves, circles, names and signatures that clash."""

from __future__ import annotations

from itertools import permutations

import pytest

from jitree import HostExport, HostModule, Session
from jitree.errors import AlreadyExistsError, InternalError, InvalidArgumentError, NotFoundError
from tests.api.programs import LIBRARY, PROGRAM
from tests.assembler import Assembler


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
