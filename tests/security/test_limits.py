"""Limits of a sandbox are met exactly, on every tier, with a status of their own."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.dispatch.plain.counting import CountingEngine
from jitree.errors import InvalidArgumentError, PermissionDeniedError, ResourceExhaustedError, StatusError
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from tests.fuzz.endings import ENDLESS_LATER
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, kernels, load
from tests.security.programs import DIGITS, ENDLESS_INIT, GLOBALS, NATIVE, PROGRAM, VMVX

TIERS = ("plain", "fast", "native", "auto")
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "sandbox.md"
CALLS = 4
"""So that tiers which begin later have begun."""


def sandbox(tier: str = "auto", **limits: Any) -> jitree.Session:
    return jitree.Session("local-sync", sandbox=True, tier=tier, limits=jitree.Limits(**limits))


def attempt(tier: str, name: str, *arguments: object, **limits: Any) -> list[Any]:
    """What calls give under limits: results, or the texts of errors."""
    outcomes: list[Any] = []
    with sandbox(tier, **limits) as session:
        session.load(PROGRAM)
        for _ in range(CALLS):
            try:
                results = session.call_direct(f"hostile.{name}", *arguments)
                outcomes.append([getattr(result, "length", result) for result in results])
                del results
            except StatusError as error:
                outcomes.append(error)
    return outcomes


def least(attempted: Callable[[int], list[Any]], most: int) -> int:
    """The least limit under which all calls succeed; below it all of them fail."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        outcomes = attempted(middle)
        failed = [outcome for outcome in outcomes if isinstance(outcome, StatusError)]
        assert len(failed) in (0, len(outcomes)), "a limit does not depend on what was called before"
        low, high = (middle + 1, high) if failed else (low, middle)
    return low


def error_of(outcomes: list[Any]) -> StatusError:
    assert all(isinstance(outcome, ResourceExhaustedError) for outcome in outcomes), outcomes
    error: StatusError = outcomes[-1]
    return error


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize(
    ("name", "arguments", "needed"),
    [
        ("hoard", (10, 1000), 10 * 1000 + 10 * 16),
        ("clone", (0, 500), 1000),
        ("lists", (100,), 100 * 16),
        ("grow", (100,), 101 * 16),
        ("give", (777,), 777),
    ],
)
def test_memory(tier: str, name: str, arguments: tuple[int, ...], needed: int) -> None:
    needed += 8  # the globals
    assert not any(isinstance(o, StatusError) for o in attempt(tier, name, *arguments, memory=needed))
    text = str(error_of(attempt(tier, name, *arguments, memory=needed - 1)))
    assert f"of {needed - 1} bytes are in use (the limit on memory)" in text


BEYOND: dict[str, tuple[float, Callable[[Any], object]]] = {
    "memory": (1000, lambda session: session.load(PROGRAM) and session.call("hostile.clone", 0, 500)),
    "time": (0.25, lambda session: session.load(PROGRAM) and session.call("hostile.spin")),
    "load_time": (0.25, lambda session: session.load(ENDLESS_INIT)),
    "instructions": (1000, lambda session: session.load(PROGRAM) and session.call("hostile.spin")),
    "recursion": (5, lambda session: session.load(PROGRAM) and session.call("hostile.down", 10)),
    "handles": (30, lambda session: session.load(PROGRAM) and session.call("hostile.hoard", 100, 0)),
    "output": (39, lambda session: session.load(VMVX).classify(np.ones((8, 8), np.float32))),
    "load_size": (100, lambda session: session.load(PROGRAM)),
}
STATUSES = {
    name: code
    for names, code in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([A-Z_]+) \|", GUIDE.read_text(), re.MULTILINE)
    for name in re.findall(r"\w+", names)
}


@pytest.mark.parametrize("kind", [True, "process"])
@pytest.mark.parametrize("name", jitree.Limits._fields)
def test_each_limit_has_the_status_that_the_guide_says(name: str, kind: Any) -> None:
    """And a message that says which limit it is, and its value."""
    most, exceed = BEYOND[name]
    if (name, kind) == ("instructions", "process"):
        pytest.skip("instructions of native code are not counted")
    limits = jitree.Limits(**{name: most})  # type: ignore[arg-type]
    with jitree.Session("local-sync", sandbox=kind, limits=limits) as session:
        with pytest.raises(StatusError, match=f"the limit on {name.replace('_', ' ')}") as caught:
            exceed(session)
        assert caught.value.code.name == STATUSES[name] and str(most) in caught.value.message


def test_memory_of_globals_is_the_modules() -> None:
    with sandbox(memory=(1 << 20) - 1) as session, pytest.raises(ResourceExhaustedError, match="memory"):
        session.load(GLOBALS)
    with sandbox(memory=1 << 20) as session:
        session.load(GLOBALS)


@pytest.mark.parametrize("tier", TIERS)
def test_handles(tier: str) -> None:
    def hoard(count: int) -> Callable[[int], list[Any]]:
        return lambda limit: attempt(tier, "hoard", count, 0, handles=limit)

    few = least(hoard(3), 100)
    assert least(hoard(40), 100) == few + 37
    assert "(the limit on handles)" in str(error_of(hoard(3)(few - 1)))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("depth", [1, 10, 1000])
def test_recursion(tier: str, depth: int) -> None:
    assert attempt(tier, "down", depth - 1, recursion=depth) == [[depth - 1]] * CALLS
    assert f"recursion is {depth}" in str(error_of(attempt(tier, "down", depth, recursion=depth)))


@pytest.mark.parametrize("tier", TIERS)
def test_instructions(tier: str) -> None:
    needed = least(lambda limit: attempt(tier, "count", 100, instructions=limit), 10_000)
    assert least(lambda limit: attempt(tier, "count", 200, instructions=limit), 10_000) == needed + 100 * 3
    text = str(error_of(attempt(tier, "count", 100, instructions=needed - 1)))
    assert f"{needed - 1} instructions were executed" in text
    assert "(the limit on instructions)" in str(error_of(attempt(tier, "spin", instructions=5000)))


def test_instructions_of_kernels_count() -> None:
    """The number does not depend on threads, nor on what was called before."""
    image = np.ones((8, 8), np.float32)

    def executed(device: str, limit: int) -> int | None:
        limits = jitree.Limits(instructions=limit)
        with jitree.Session(device, sandbox=True, limits=limits) as session:
            session.load(VMVX).classify(image)
            assert session.sandbox is not None
            return session.sandbox.executed

    count = executed("local-sync", 10**7)
    assert count is not None and count > 2000
    assert executed("local-task://?threads=3", count) == count
    with pytest.raises(ResourceExhaustedError, match="the limit on instructions"):
        executed("local-task://?threads=3", count - 1)


@pytest.mark.parametrize("tier", TIERS)
def test_output(tier: str) -> None:
    assert not any(isinstance(o, StatusError) for o in attempt(tier, "give", 1000, output=1000))
    text = str(error_of(attempt(tier, "give", 1001, output=1000)))
    assert "1001 bytes, 1000 are allowed (the limit on output)" in text


def test_output_of_submitted_calls() -> None:
    with sandbox(output=1000) as session:
        function = session.load(ENDLESS_LATER).f
        for call in (function, function.submit):
            with pytest.raises(ResourceExhaustedError, match="1000 are allowed"):
                call(np.zeros(4096, np.int32), np.int32(0))


@pytest.mark.parametrize("how", ["path", "bytes", "file"])
def test_load_size(how: str) -> None:
    size = VMVX.stat().st_size

    def load(session: jitree.Session) -> None:
        with VMVX.open("rb") as file:
            sources: dict[str, Any] = {"path": VMVX, "bytes": VMVX.read_bytes(), "file": file}
            session.load(sources[how])

    with sandbox(load_size=size) as session:
        load(session)
        with pytest.raises(ResourceExhaustedError, match=f"{size} of {size} bytes are loaded"):
            session.load(PROGRAM)
    with sandbox(load_size=size - 1) as session:
        with pytest.raises(ResourceExhaustedError, match="the limit on load size"):
            load(session)
        session.load(PROGRAM)


def test_a_stream_without_end_is_read_as_far_as_the_limit() -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert 0 <= size <= 1001
            return bytes(size)

    with sandbox(load_size=1000) as session, pytest.raises(ResourceExhaustedError, match="load size"):
        session.load(Endless())  # type: ignore[call-overload]


@pytest.mark.parametrize("limits", [{"memory": -1}, {"handles": 1.5}, {"time": "1"}, {"output": True}])
def test_what_is_no_limit_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"limits: {next(iter(limits))} is"):
        sandbox(**limits)


def test_limits_are_a_sandbox_s() -> None:
    with pytest.raises(InvalidArgumentError, match="sandbox=True"):
        jitree.Session(limits=jitree.Limits(memory=1))
    for wrong in (5, "yes"):
        with pytest.raises(InvalidArgumentError, match=r"limits|sandbox"):
            jitree.Session(sandbox=wrong if wrong == "yes" else True, limits=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.ones(3), np.array(["process"] * 2), {}, 0, None, "", b"process"])
def test_what_is_no_choice_of_a_sandbox_is_never_taken_for_none(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="sandbox: expected True, False or 'process'"):
        jitree.Session(sandbox=value)


def test_programs_for_vmvx_run_as_they_do_elsewhere() -> None:
    image = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    with jitree.Session("local-sync") as free, sandbox(memory=1 << 24) as confined:
        expected = np.asarray(free.load(VMVX).classify(image))
        classify = confined.load(VMVX).classify
        for _ in range(CALLS):
            assert (np.asarray(classify(image)) == expected).all()


def test_native_code_is_refused_with_what_to_do() -> None:
    with sandbox() as session:
        with pytest.raises(PermissionDeniedError, match=r"'module' has executables of embedded-elf-.*vmvx"):
            session.load(NATIVE)
        session.load(VMVX)


@pytest.mark.parametrize(
    "options",
    [
        {"device": "cuda"},
        {"device": "null"},
        {"parameters": "weights.irpa"},
        {"parameters": ["scope=weights.irpa"]},
        {"parameters": {"scope": "weights.irpa"}},
        {"parameters": iter(["weights.irpa"])},
        {"parameters": {"weights.irpa"}},
        {"parameters": {"scope": {"key": Path("weights.irpa")}}},
        {"executable_plugins": ["plugin.so"]},
    ],
)
def test_what_runs_or_opens_anything_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PermissionDeniedError):
        jitree.Session(**{"device": "local-sync", **options}, sandbox=True)


def test_devices_of_others_are_refused() -> None:
    device = jitree.Instance().create_device("local-sync")
    with pytest.raises(PermissionDeniedError, match="separate devices"):
        jitree.Session(device, sandbox=True)


def test_files_that_make_modules_are_refused() -> None:
    with sandbox() as session:
        for load in (session.load, session.load_native):
            with pytest.raises(PermissionDeniedError, match="running code of the file"):
                load(f"{DIGITS}/classify.py@create")


@pytest.mark.parametrize("spans", [(24,), (12, 12), (1, 3, 20)])
def test_instructions_are_those_of_kernels_however_threads_share_them(spans: tuple[int, ...]) -> None:
    engine = CountingEngine(10_000)
    executable, visits = load(kernels(), engine), aligned(np.zeros(24, np.int32))
    with engine.counted():
        for count in spans:
            commands = CommandList()
            commands.dispatch(executable, 0, (count, 1, 1), [], [whole(visits)])
            executor.require_native_executor().execute(commands, *commands.bind(()))
    assert visits.sum() == 24
    assert engine.executed == 24 * len([line for line in COUNT.splitlines() if line.strip()])


def test_instructions_of_initialisers_are_those_of_the_first_thread() -> None:
    """Others have what it has before they take part in a kernel, and take as many for themselves."""
    engine = CountingEngine(100)
    module = kernels().function("__init", "0v_v", "%i0 = const.i32 1\n" * 50 + "return []")
    with engine.counted():
        executable = load(module, engine)
        begun = engine.executed
        worker = executable._workers._create()
    assert begun == engine.executed == 51
    assert worker.context.invoker.engine is worker.engine
