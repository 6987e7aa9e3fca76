"""Functions of users in place of imports: on all tiers, checked, undone and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import jitree
from jitree import CustomModule, Session, f32, i32
from jitree.kernels import Kernel
from tests.api.programs import LIBRARY, PROGRAM
from tests.assembler import Assembler

ROOT = Path(__file__).resolve().parents[2]
TIERS = ("plain", "fast", "native", "auto")
X = np.arange(4, dtype=np.float32)


def library() -> CustomModule:
    module = CustomModule("library")
    module.export("double", signature="array -> array")(lambda x: 2 * x)
    module.export("bump", signature="i32 -> i32")(lambda x: x + 1)
    return module


def results(session: Session) -> Any:
    """What the program makes of both of its imports, which it calls twice; the same each time."""
    program = session.modules["program"]
    found = {
        (float(np.asarray(program.quadruple(X))[1]), int(program.bump_twice(1))) for _ in range(6)
    }  # often enough for machine code
    assert len(found) == 1
    return found.pop()


def tenfold(x: np.ndarray) -> np.ndarray:
    return x * np.float32(10)


def ten_more(x: i32) -> i32:
    return x + 10


@pytest.fixture(params=["Python", "bytecode"])
def provider(request: pytest.FixtureRequest) -> Any:
    return library() if request.param == "Python" else LIBRARY


@pytest.mark.parametrize("tier", TIERS)
def test_programs_call_the_function_until_it_is_undone(tier: str, provider: Any) -> None:
    """For a module of bytecode annotations say what the function gets."""
    is_bytecode = provider is LIBRARY
    with Session("local-sync", tier=tier) as session:
        session.load(PROGRAM, provider)
        before = results(session)
        assert before == (4, 201 if is_bytecode else 3)
        first = session.replace("library.double", tenfold if is_bytecode else lambda x: x * 10)
        assert first.names == ("library.double",)
        assert results(session) == (100, before[1])
        with session.replace("*.bump", numba.njit(ten_more)) as second:
            assert results(session) == (100, 21)
            assert session.call("library.bump", 1) == (101 if is_bytecode else 2)  # the module's own
        first.undo()
        first.undo()
        assert results(session) == before
        assert repr(second) == "<replacement of library.bump by ten_more; undone>"


def test_the_first_call_is_checked(provider: Any) -> None:
    """Its results are the original's."""

    def near(x: np.ndarray) -> np.ndarray:
        return 2 * x + np.float32(0.5)

    with Session("local-sync") as session:
        session.load(PROGRAM, provider)
        before = results(session)
        program = session.modules["program"]
        with session.replace("library.bump", numba.njit(ten_more), atol=90):
            found = [program.bump_twice(1) for _ in range(4)]
            assert found == [before[1] // 2 + 11, 21, 21, 21]
        with session.replace("library.double", near, atol=1):
            assert [float(np.asarray(program.quadruple(X))[1]) for _ in range(2)] == [4.5, 5.5]
        refused = pytest.raises(
            jitree.errors.FailedPreconditionError,
            match=r"near and import 'library.double' differ in result 0 at \(0,\): 0.5 and 0.0 .*: atol",
        )
        with session.replace("library.double", near, atol=0.1), refused:
            program.quadruple(X)
        assert results(session) == before


def test_modules_that_are_loaded_later_call_it_too() -> None:
    host = CustomModule("host")
    host.export("f", signature="i32 -> i32")(lambda x: x + 1)

    def program(name: str) -> bytes:
        body = "[%i1] = call @host.f [%i0]\nreturn [%i1]"
        return Assembler(name).import_function("host.f", "0i_i").function("g", "0i_i", body).build()

    with Session("local-sync") as session:
        session.load(program("one"), host)
        with session.replace("host.*", lambda x: -x) as handle:
            session.load(program("two"))
            assert [session.call(f"{name}.g", 5) for name in ("one", "two")] == [-5, -5]
            assert handle.names == ("host.f",)
            with pytest.raises(
                jitree.errors.FailedPreconditionError, match="replaced already, by '<lambda>'"
            ):
                session.replace("host.f", ten_more)
        assert [session.call(f"{name}.g", 5) for name in ("one", "two")] == [6, 6]
    with pytest.raises(jitree.errors.FailedPreconditionError, match="closed"):
        session.replace("host.f", ten_more)
    handle.undo()


def _wide(x: f32) -> i32:
    return int(x)


BUMP = "library.bump"
REFUSED: list[tuple[str, Any, str]] = [
    (BUMP, _wide, f"INVALID_ARGUMENT; replace: _wide has signature '0f_i', but import '{BUMP}' has '0i_i'"),
    (BUMP, lambda: 1, r"INVALID_ARGUMENT; replace: <lambda>\(\) is to take the 1 arguments of import"),
    (BUMP, "a text", f"INVALID_ARGUMENT; replace: '{BUMP}' is an import, in whose place a Python"),
    (BUMP, Kernel(tenfold, ["4xf32"]), f"INVALID_ARGUMENT; replace: '{BUMP}' is an import"),
    ("library.pump", tenfold, f"NOT_FOUND; replace: no dispatch and no import .* near it are: .*{BUMP}"),
    ("hal.device.allocator", tenfold, "UNIMPLEMENTED; replace: 'hal.device.allocator' is a function of jit"),
]


@pytest.mark.parametrize(("name", "function", "said"), REFUSED)
def test_what_cannot_be_called_is_refused_before_it_runs(name: str, function: Any, said: str) -> None:
    with Session("local-sync") as session:
        session.load(PROGRAM, library())
        session.load(ROOT / "examples" / "digits" / "digits.llvm-cpu.vmfb")
        with pytest.raises(jitree.StatusError, match=f"^{said}"):
            session.replace(name, function)
        assert results(session) == (4, 3)


def _raising(x: i32) -> i32:
    raise ValueError("not this number")


def _mixed(x: i32) -> i32:
    return "a"  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        (_raising, ValueError, "not this number"),
        (_mixed, jitree.errors.InternalError, "'a'"),
    ],
)
def test_what_it_raises_or_gives_fails_the_call(function: Any, error: type[Exception], said: str) -> None:
    with Session("local-sync") as session:
        session.load(PROGRAM, library())
        with session.replace("library.bump", function):
            for _ in range(5):
                with pytest.raises(error, match=said) as caught:
                    session.modules["program"].bump_twice(1)
                assert "library.bump" in "".join(
                    map(str, (caught.value, *getattr(caught.value, "__notes__", ())))
                )
        in_use = pytest.raises(jitree.errors.FailedPreconditionError, match="in use by the call")
        undo = [lambda: None]
        with session.replace("library.bump", lambda x: undo[0]()) as handle, in_use:
            undo[0] = handle.undo
            session.modules["program"].bump_twice(1)
        assert results(session) == (4, 3)


def test_buffers_are_the_vm_s_own_and_are_compared() -> None:
    host = CustomModule("host")
    host.export("flip", signature="buffer -> buffer")(lambda data: bytes(data)[::-1])
    body = "[%r1] = call @host.flip [%r0]\nreturn [%r1]"
    program = Assembler("m").import_function("host.flip", "0r_r").function("f", "0r_r", body).build()
    with Session("local-sync") as session:
        session.load(program, host)
        with session.replace("host.flip", lambda data: bytes(data)[::-1], verify=True):
            assert [bytes(session.call("m.f", b"abc")) for _ in range(2)] == [b"cba"] * 2
        refused = pytest.raises(jitree.errors.FailedPreconditionError, match=r"(1,).* of uint8 and")
        with session.replace("host.flip", lambda data: bytes(data)[:1], verify=True), refused:
            session.call("m.f", b"abc")
