"""Odd arguments, and too little memory, give a status and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError
from tests.api.programs import ARITHMETIC
from tests.assembler import Assembler
from tests.base.rows import each_row

ODD: tuple[Any, ...] = (
    None, 1.5, -1, "x", b"x", [], [1.5], (1.5,), (-1,), {}, object(), np.zeros(3), np.array(["a"]), 1 << 70,
    float("nan"), "a\0b", "\udcff", np.array(5.0), int, Ellipsis, (1 << 62, 1 << 62), {"a": 1}, iter([0.5]),
)  # fmt: skip
"""What hardly any argument takes."""

CALLS: dict[str, Callable[[Session, Any], object]] = {
    "device": lambda session, odd: Session(odd).close(),
    "parameters": lambda session, odd: Session("local-sync", parameters=odd).close(),
    "flags": lambda session, odd: Session("local-sync", flags=odd).close(),
    "executable_plugins": lambda session, odd: Session("local-sync", executable_plugins=odd).close(),
    "executable_modules": lambda session, odd: Session("local-sync", executable_modules=odd).close(),
    "instance": lambda session, odd: Session("local-sync", instance=odd).close(),
    "builtin_modules": lambda session, odd: Session("local-sync", builtin_modules=odd).close(),
    "tier": lambda session, odd: Session("local-sync", tier=odd).close(),
    "sandbox": lambda session, odd: Session("local-sync", sandbox=odd).close(),
    "limits": lambda session, odd: Session("local-sync", sandbox=True, limits=odd).close(),
    "zero_memory": lambda session, odd: Session("local-sync", zero_memory=odd).close(),
    "guard_pages": lambda session, odd: Session("local-sync", guard_pages=odd).close(),
    "options": lambda session, odd: Session("local-sync", sandbox="process", tier=odd, flags=odd).close(),
    "guard_pages of a process": lambda session, odd: Session(sandbox="process", guard_pages=odd).close(),
    "load": lambda session, odd: session.load(odd),
    "append_module": lambda session, odd: session.append_module(odd),
    "load_native": lambda session, odd: session.load_native(odd),
    "lookup": lambda session, odd: session.lookup(odd),
    "item": lambda session, odd: session[odd],
    "call": lambda session, odd: session.call(odd),
    "call_direct": lambda session, odd: session.call_direct(odd),
    "to_device": lambda session, odd: session.to_device(odd),
    "empty": lambda session, odd: session.empty(odd),
    "size": lambda session, odd: session.empty((1, odd)),
    "dtype": lambda session, odd: session.empty(2, odd),
    "function": lambda session, odd: session.modules["arithmetic"][odd],
    "contains": lambda session, odd: odd in session.modules["arithmetic"],
    "argument": lambda session, odd: session["arithmetic.scale"](odd, odd),
    "out": lambda session, odd: session["arithmetic.add"](np.zeros(4, np.float32), out=odd),
    "donate": lambda session, odd: jitree.donate(odd),
    "Call": lambda session, odd: jitree.Call(odd),
    "VmList": lambda session, odd: jitree.VmList(odd) if isinstance(odd, str) else None,
    "create_device": lambda session, odd: session.instance.create_device(odd),
    "inspect": lambda session, odd: jitree.inspect(odd),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_odd_arguments_give_a_status(session: Session, name: str) -> None:
    session.load(ARITHMETIC)
    refused = 0
    for odd in ODD:
        try:
            CALLS[name](session, odd)
        except StatusError:
            refused += 1
    assert refused >= (name not in ("contains", "to_device"))


@pytest.mark.parametrize(
    ("name", "odd", "expected"),
    [
        ("cache_dir", 3, "cache_dir: expected a path but got 3"),
        ("cache_dir", b"folder", "cache_dir: expected a path but got b'folder'"),
        ("watchdog", "x", "above 0 seconds but got 'x'"),
        ("watchdog", [1], r"above 0 seconds but got \[1\]"),
        ("trace_sink", 3, "trace_sink: expected a function but got 3"),
        ("trace_sink", "stderr", "trace_sink: expected a function but got 'stderr'"),
        ("executable_modules", [1.5], r"executable_modules: expected a list of .* but got \[1.5\]"),
    ],
)
def test_odd_options_are_named(name: str, odd: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        Session("local-sync", **{name: odd})


RELEASED = memoryview(bytearray(16))
RELEASED.release()
HUGE_VIEW = np.broadcast_to(np.int64(1), (1 << 45,))


class NoLength:
    """A sequence of more items than there can be."""

    def __len__(self) -> int:
        return 10**30

    def __getitem__(self, place: int) -> float:
        return 1.0


class NoCapsule:
    """What says that it is an array, and gives none."""

    def __dlpack__(self, **options: Any) -> None:
        return None

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class TextAsArray:
    """What gives a text for an array."""

    def __array__(self) -> str:
        return "text"


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    return deep


STRANGE: dict[str, Any] = {
    "released": RELEASED,
    "backwards": memoryview(b"\xff" * 16)[::-1],
    "structured": np.zeros(4, "i4,f4"),
    "records": np.rec.array([(1,)] * 4),
    "matrix": np.zeros((1, 4)).view(np.matrix),
    "deep": _deep(),
    "huge view": HUGE_VIEW,
    "no length": NoLength(),
    "no capsule": NoCapsule(),
    "no array": TextAsArray(),
}
"""Values that fail in ways of their own where they are looked at."""
OPTIONS = (
    "arithmetic", "builtin_modules", "check_finite", "executable_modules", "executable_plugins", "parameters",
    "prefer", "sandbox", "tier", "cache_dir", "watchdog", "limits", "flags", "instance", "zero_memory",
)  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_strange_options_give_a_status(option: str) -> None:
    def check(value: Any) -> None:
        with pytest.raises(StatusError):
            Session("local-sync", **{option: value}).close()

    each_row(STRANGE, check)


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_strange_values_give_a_status(session: Session, value: Any) -> None:
    function = session.load(ARITHMETIC).add
    good = np.zeros(4, np.float32)
    calls: tuple[Callable[[], object], ...] = (
        lambda: function(value, good),
        lambda: function(good, good, out=value),
        lambda: session.empty(value),
        lambda: session.empty(4, value),
        lambda: session[value],
    )
    for call in calls:
        with pytest.raises(StatusError):
            call()
    if isinstance(value, memoryview):
        with pytest.raises(StatusError):
            session.device.import_file(0, 1, value)
    elif not isinstance(value, np.ndarray):
        with pytest.raises(StatusError):
            session.to_device(value)


class Large(int):
    def __int__(self) -> int:
        return 1 << 200


@pytest.mark.parametrize("value", [Large(3), [Large(3)], [[1], [Large(3)]]])
def test_integers_that_say_otherwise_what_they_are(session: Session, value: Any) -> None:
    """numpy makes an array by what the list has, and asks for the elements then."""
    with pytest.raises(InvalidArgumentError, match="to_device: Python int too large"):
        session.to_device(value)


def test_copies_of_more_elements_than_memory_has(session: Session) -> None:
    array = session.to_device(np.zeros(1 << 21, np.float32))
    for wanted in (np.dtype("V2000000000"), np.dtype("U500000000")):
        for copied in (partial(array.astype, wanted), partial(array.__array__, wanted)):
            with pytest.raises(
                ResourceExhaustedError, match="no memory on the host for the elements of a 20971"
            ):
                copied()


def test_strange_values_give_a_status_in_a_process() -> None:
    good = np.zeros(4, np.float32)
    calls: tuple[Callable[[Any, Any], object], ...] = (
        lambda module, value: module[value],
        lambda module, value: module.add(value, good),
        lambda module, value: module.add(good, good, out=value),
    )
    with Session(sandbox="process") as session:
        module = session.load(ARITHMETIC)
        for value in STRANGE.values():
            assert value not in module
            for call in calls:
                with pytest.raises(StatusError):
                    call(module, value)
        with pytest.raises(ResourceExhaustedError):
            session.to_device(HUGE_VIEW)


def test_odd_shapes_and_types_are_named(session: Session) -> None:
    for shape in ((1.5,), 2.0, "12", None):
        with pytest.raises(InvalidArgumentError, match=r"empty: expected a size or a tuple .* but got"):
            session.empty(shape)  # type: ignore[arg-type]
    for dtype in ("no type", object, [("a", "f4")], "M8[s]"):
        with pytest.raises(InvalidArgumentError, match="empty: no device array can have dtype"):
            session.empty(2, dtype)
    assert session.empty(np.int64(3)).shape == (3,) and session.empty([2, np.int8(3)], "i4").shape == (2, 3)
    assert session.empty(np.array([2, 3])).shape == (2, 3) and session.empty(np.array([], int)).shape == ()
    with pytest.raises(InvalidArgumentError, match="function: expected a function or its name but got 5"):
        session.call_direct(5)  # type: ignore[arg-type]


def test_lists_without_end(session: Session) -> None:
    module = session.load(Assembler("lists").function("f", "0r_v", "return").build())
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for odd in (circle, deep):
        for _ in range(4):
            with pytest.raises(InvalidArgumentError, match="lists in lists that are in a circle"):
                module.f(odd)
    assert module.f([[1], []]) is None


LIMITED = """
import resource, sys
import jitree
from jitree.api.session import Session
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    session = jitree.load(sys.argv[2], device="local-sync", tier="plain")
except jitree.StatusError as error:
    print(error.code.name, error)
else:
    print("OK")
"""


@pytest.mark.parametrize("megabytes", [16, 64])
def test_loading_without_enough_memory(megabytes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(megabytes), str(ARITHMETIC)],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RESOURCE_EXHAUSTED") and "RLIMIT_AS" in done.stdout


def test_an_object_that_says_it_has_any_number_of_items(session: Session) -> None:
    class Long:
        def __len__(self) -> int:
            return 1 << 61

        def __getitem__(self, place: int) -> float:
            return 0.5

    with pytest.raises(ResourceExhaustedError, match="to_device: there is not enough memory"):
        session.to_device(Long())
