"""Module check: what passes, what fails and in which words, and how failures reach the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jitree import HostExport, HostModule, Session
from jitree.dispatch.engine import Pending
from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, StatusError
from jitree.hal.buffer import BufferView
from jitree.modules.check import CheckModule
from jitree.types import BY_NAME
from tests.api.programs import PROGRAMS
from tests.assembler import Assembler


class Check:
    """Calls expectations as a program would; ``failures`` collects what they report."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.session = Session("local-sync", tier="plain")
        self.module = CheckModule(self.failures.append)
        self.session.append_module(self.module)

    def __call__(self, name: str, *views: object, cconv: str) -> list[str]:
        """The failures of one expectation about tensors."""
        export = self.module.find(name)[cconv]
        self.failures.clear()
        export.function(self.failures.append, self.session.device, *views)
        return list(self.failures)

    def view(self, values: Any, name: str, shape: Sequence[int] | None = None) -> BufferView:
        """A view of elements of a type by name; integers below 8 bits are given as packed bytes."""
        row = BY_NAME[name]
        data = np.asarray(values, np.uint8 if row.bits % 8 else row.dtype)
        buffer = self.session.device_allocator.allocate(0x30, 0xC03, data.nbytes)
        buffer.host_view()[:] = data.tobytes()
        return BufferView(buffer, tuple(data.shape if shape is None else shape), row.code, 1)

    def equal(self, lhs: BufferView, rhs: BufferView) -> list[str]:
        return self("expect_eq", lhs, rhs, cconv="0rrr_v")

    def near(self, lhs: BufferView, rhs: BufferView, atol: float = 1e-4, rtol: float = 0.0) -> list[str]:
        return self("expect_almost_eq", lhs, rhs, atol, rtol, cconv="0rrrff_v")


@pytest.fixture
def check() -> Check:
    return Check()


def test_scalars(check: Check) -> None:
    for name, value, texts in (
        ("expect_true", -1, []), ("expect_true", 0, ["Expected 0 to be nonzero."]),
        ("expect_false", 0, []), ("expect_false", 3, ["Expected 3 to be zero."]),
    ):  # fmt: skip
        check.failures.clear()
        check.session.call_direct(f"check.{name}", value)
        assert check.failures == texts


@pytest.mark.parametrize("name", ["i1", "i8", "ui16", "i32", "i64", "f16", "bf16", "f32", "f64", "f8E5M2"])
def test_all_true(check: Check, name: str) -> None:
    def failures(values: list[int]) -> list[str]:
        return check("expect_all_true", check.view(values, name, (2, 2)), cconv="0rr_v")

    assert failures([1, 1, 1, 1]) == []
    (failure,) = failures([1, 1, 0, 0])
    assert failure.startswith(
        "Expected all elements to be nonzero; 2 of 4 elements are zero, the first at [1, 0].\n"
        f"  operand:\n    2x2x{name}=["
    )


def test_packed_integers(check: Check) -> None:
    assert check("expect_all_true", check.view([0x21, 0x03], "i4", (3,)), cconv="0rr_v") == []
    (failure,) = check("expect_all_true", check.view([0x01], "i4", (2,)), cconv="0rr_v")
    assert "first at [1]" in failure and "2xi4=1 0" in failure
    (failure,) = check.equal(check.view([0x21], "i4", (2,)), check.view([0x31], "i4", (2,)))
    assert "1 of 2 elements is different, the first at [1]: lhs 2, rhs 3" in failure


def test_equality_in_words(check: Check) -> None:
    lhs = check.view([[1, 2], [3, 4]], "i32")
    assert check.equal(lhs, check.view([[1, 2], [3, 4]], "i32")) == []
    assert check.equal(lhs, check.view([[1, 2], [5, 6]], "i32")) == [
        "Expected equality of these values. Contents does not match. 2 of 4 elements are different, "
        "the first at [1, 0]: lhs 3, rhs 5\n  lhs:\n    2x2xi32=[1 2][3 4]\n  rhs:\n    2x2xi32=[1 2][5 6]"
    ]
    assert check.equal(lhs, check.view([1, 2, 3, 4], "f32")) == [
        "Expected equality of these values. Element types do not match. Shapes do not match.\n"
        "  lhs:\n    2x2xi32=[1 2][3 4]\n  rhs:\n    4xf32=1 2 3 4"
    ]


def test_equality_is_of_bytes(check: Check) -> None:
    def differ(left: float, right: float) -> bool:
        return bool(check.equal(check.view([left], "f32"), check.view([right], "f32")))

    assert differ(0.0, -0.0) and not differ(np.nan, np.nan)
    assert check.equal(check.view([], "f32"), check.view([], "f32")) == []
    wide = check.view([1 << 40], "i64")
    assert (
        check.equal(wide, check.view([1 << 40], "i64"))
        == []
        != check.equal(wide, check.view([1 << 41], "i64"))
    )


@pytest.mark.parametrize(
    ("left", "right", "atol", "rtol", "passes"),
    [
        (1.0, 1.0001, 1.1e-4, 0, True),
        (1.0, 1.0002, 1.1e-4, 0, False),
        (100.0, 101.0, 0, 0.01, True),
        (101.0, 100.0, 0, 0.0099, False),
        (np.nan, np.nan, 0, 0, True),
        (np.nan, 1.0, 9, 9, False),
        (np.inf, np.inf, 0, 0, True),
        (np.inf, -np.inf, 9, 9, False),
        (np.inf, 3.0, 9, 9, False),
        (3.0, np.inf, 9, 9, False),
        (0.0, -0.0, 0, 0, True),
    ],
)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_near_equality(
    check: Check, name: str, left: float, right: float, atol: float, rtol: float, passes: bool
) -> None:
    failures = check.near(check.view([left], name), check.view([right], name), atol, rtol)
    assert (not failures) == passes


def test_near_equality_in_words(check: Check) -> None:
    assert check.near(check.view([1, 2, 3], "f32"), check.view([1, 2.5, 4], "f32"), 0.25, 0.0) == [
        "Expected near equality of these values. Contents does not match to tolerance parameters atol=0.25, "
        "rtol=0. The first failure occurs at index 1 as the lhs value 2 differs from the rhs value 2.5 by "
        "5.000e-01.\n"
        "  lhs:\n    3xf32=1 2 3\n  rhs:\n    3xf32=1 2.5 4"
    ]


@pytest.mark.parametrize("name", ["f16", "bf16", "f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ"])
def test_small_types(check: Check, name: str) -> None:
    a = check.view([1.0, 2.0], name)
    assert check.near(a, check.view([1.0, 2.0], name)) == []
    assert len(check.near(a, check.view([1.0, 4.0], name))) == 1
    assert check.near(a, check.view([1.0, 4.0], name), 0.0, 0.5) == []


@pytest.mark.parametrize(
    ("name", "offset", "passes"),
    [
        ("f32", 9e-5, True),
        ("f32", 2e-4, False),
        ("f64", 2e-4, False),
        ("f16", 9e-4, True),
        ("f16", 3e-3, False),
    ],
)
def test_tolerances_of_releases_that_state_none(check: Check, name: str, offset: float, passes: bool) -> None:
    lhs, rhs = check.view([1.0], name), check.view([1.0 + offset], name)
    assert (not check("expect_almost_eq", lhs, rhs, cconv="0rrr_v")) == passes
    assert bool(check("expect_almost_eq", lhs, rhs, 1e-6, cconv="0rrrf_v"))
    assert not check("expect_almost_eq", lhs, rhs, 1e-2, cconv="0rrrf_v")


def test_what_cannot_be_compared(check: Check) -> None:
    integers = check.view([1], "i32")
    with pytest.raises(InvalidArgumentError, match="expect_almost_eq of elements of type i32"):
        check.near(integers, integers)
    opaque = BufferView(integers.buffer, (1,), 0x20, 1)
    with pytest.raises(InvalidArgumentError, match="expect_all_true"):
        check("expect_all_true", opaque, cconv="0rr_v")
    with pytest.raises(OutOfRangeError, match="8 bytes in a buffer of 4"):
        check.equal(BufferView(integers.buffer, (2,), integers.element_type, 0), integers)
    with pytest.raises(InvalidArgumentError, match=r"null; check\.expect_eq needs a hal\.buffer_view as lhs"):
        check.equal(None, integers)  # type: ignore[arg-type]


# -- how failures reach the caller -----------------------------------------------------------------------


def expecting(body: str) -> bytes:
    """A module ``m`` whose ``f`` runs a body that may call ``check`` and ``host``."""
    module = Assembler("m")
    for name in ("expect_true", "expect_false"):
        module.import_function(f"check.{name}", "0i_v", optional=True)
    for name in ("call", "wait"):
        module.import_function(f"host.{name}", "0i_v", optional=True)
    return module.function("f", "0i_i", body).build()


TWICE = """
    call @check.expect_true [%i0]
    call @check.expect_false [%i0]
    call @check.expect_true [%i0]
    return [%i0]
"""


@pytest.fixture
def plain() -> Session:
    return Session("local-sync", tier="plain")


def test_one_error_lists_every_failure(plain: Session) -> None:
    module = plain.load(expecting(TWICE))
    with pytest.raises(FailedPreconditionError) as caught:
        module.f(0)
    assert caught.value.message == (
        "2 expectations of the program failed:\nExpected 0 to be nonzero.\nExpected 0 to be nonzero."
    )
    with pytest.raises(
        FailedPreconditionError, match="an expectation of the program failed:\nExpected 1 to be"
    ):
        module.f(1)


def test_nothing_is_left_for_the_next_call(plain: Session) -> None:
    body = "call @check.expect_true [%i0]\n%i1 = const.i32 1\n%i2 = div.i32.s %i1, %i0\nreturn [%i2]"
    module = plain.load(expecting(body))
    with pytest.raises(StatusError, match="division") as caught:
        module.f(0)
    assert "before that an expectation of the program failed:\nExpected 0 to be nonzero." in str(caught.value)
    assert module.f(1) == 1


class Host(HostModule):
    """``call`` calls a function of the session, ``wait`` waits."""

    name = "host"

    def __init__(self, session: Session) -> None:
        self.session = session

    def exports(self) -> list[HostExport]:
        return [HostExport("call", "0i_v", self.call), HostExport("wait", "0i_v", self.wait)]

    def call(self, state: object, value: int) -> None:
        self.session.call("m.inner", value)

    def wait(self, state: object, value: int) -> Pending:
        def other_call(timeout: float | None) -> bool:
            if value:
                self.session.call("m.f", 0)
            return True

        return Pending(other_call, lambda: None)


def test_only_the_outermost_call_fails(plain: Session) -> None:
    module = Assembler("m").import_function("check.expect_true", "0i_v").import_function("host.call", "0i_v")
    module.function("inner", "0i_v", "call @check.expect_true [%i0]\nreturn")
    module.function("f", "0i_v", "call @host.call [%i0]\ncall @check.expect_true [%i0]\nreturn")
    plain.append_module(Host(plain))
    loaded = plain.load(module.build())
    with pytest.raises(FailedPreconditionError, match="2 expectations"):
        loaded.f(0)


def test_failures_belong_to_their_own_call(plain: Session) -> None:
    """While a call waits, another one of the context ends without its failures."""
    plain.append_module(Host(plain))
    body = "call @check.expect_false [%i0]\ncall @host.wait [%i0]\nreturn [%i0]"
    module = plain.load(expecting(body))
    with pytest.raises(FailedPreconditionError, match="an expectation"):
        module.f(1)
    assert module.f(0) == 0


def test_asynchronous_calls(plain: Session) -> None:
    plain.append_module(Host(plain))
    body = (
        "call @check.expect_false [%i0]\ncall @host.wait [%i0]\ncall @check.expect_false [%i0]\nreturn [%i0]"
    )
    module = plain.load(expecting(body))

    async def both() -> list[Any]:
        return list(await asyncio.gather(module.f.async_(1), module.f.async_(0), return_exceptions=True))

    failed, passed = asyncio.run(both())
    assert isinstance(failed, FailedPreconditionError) and "2 expectations" in str(failed)
    assert passed == 0


def test_initialisers(plain: Session) -> None:
    body = "%i0 = const.i32.zero\ncall @check.expect_true [%i0]\nreturn"
    module = Assembler("m").import_function("check.expect_true", "0i_v").function("__init", "0v_v", body)
    with pytest.raises(FailedPreconditionError, match="Expected 0 to be nonzero"):
        plain.load(module.build())
    assert plain.modules == {}


@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_compiled_program(tier: str, device: str) -> None:
    with Session(device, tier=tier) as session:
        module = session.load(PROGRAMS / "checks.vmfb")
        module.passes()
        with pytest.raises(FailedPreconditionError, match="2 expectations") as caught:
            module.fails_twice()
        assert "lhs:\n    2x2xi32=[1 2][3 4]\n  rhs:\n    2x2xi32=[1 2][0 4]" in str(caught.value)
