"""The debugger: scripts over modules of several releases, machine code between stops, failures."""

from __future__ import annotations

import io
import os
import signal
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.debug.debugger import Debugger, Stopped, debug_call
from jitree.debug.shell import Shell
from jitree.debug.stepper import Way
from jitree.errors import CancelledError, FailedPreconditionError, InvalidArgumentError, StatusError
from tests.assembler import Assembler
from tests.dispatch.harness import HostFunctions
from tests.pages import commands, require_printed, run, run_snippets
from tests.tools.command import jitree as jitree_command

DATA = Path(__file__).resolve().parents[1] / "data"
RELEASES, PROGRAMS = DATA / "releases", DATA / "programs"
VM = DATA / "vm" / "programs.vmfb"


class Seen(Shell):
    """A shell that keeps its debugger, to be asked after the call."""

    def attach(self, debugger: Debugger) -> None:
        super().attach(debugger)
        self.kept = debugger


def debugged(session: jitree.Session, call: Callable[[], Any], *commands: str) -> tuple[Any, str, Seen]:
    """What a call gives, what the shell prints, and the shell."""
    printed = io.StringIO()
    shell = Seen(io.StringIO("\n".join(commands)), printed)
    try:
        results = debug_call(session, call, shell)
    except StatusError as error:
        results = error
    return results, printed.getvalue(), shell


def script(module: Path, function: str, *commands: str, inputs: Sequence[str] = (), code: int = 0) -> str:
    flags = [f"--function={function}", "--device=local-sync", *(f"--input={text}" for text in inputs)]
    outcome = jitree_command("debug", module, *flags, stdin="\n".join(commands).encode())
    assert outcome.code == code, outcome
    return outcome.stdout


LONG = "9" * 5000
SCRIPTS = [
    (
        RELEASES / "scalars_math-20240129.785.vmfb", "unary", ["3"],
        ["break scalars_math.mlir:5", "continue", "print", "set %i2 = 1.5", "print %i2", "source", "quit"],
        ["> module.unary+0000000D at programs/scalars_math.mlir:5:8", "->  %i3 = vm.log.f32 %i0",
         "%i1 = 1.7320507764816284 : f32", "%i2 = 1.5 : f32", "->    5"],
    ),
    (
        RELEASES / "simple_mul-3.9.0.vmfb", "simple_mul", ["4xf32=1 2 3 4", "4xf32=5"],
        ["break dispatch *mul* if outputs[0].max() > 19", "tap *", "break import hal.fence*", "continue",
         "where", "list", "delete 3", "continue", "print outputs[0]", "print inputs[0].sum()", "continue"],
        ["stopped: breakpoint 3, import hal.fence*", "B ", "-> ", "vm.call @hal.fence.create",
         "stopped: breakpoint 1, dispatch *mul*", "(dispatch 0)", "input 1: 4xf32 (declared)",
         "array([ 5., 10., 15., 20.]", "10.0", "f32 min 5 max 20 mean 12.5", "4xf32=5 10 15 20"],
    ),
    (
        RELEASES / "simple_mul-3.13.0.vmfb", "simple_mul", ["4xf32=1 2 3 4", "4xf32=2"],
        ["next 2", "step", "print %r0", "finish", "quit"],
        ["%r0 = !hal.buffer_view 4xf32=1 2 3 4"],
    ),
    (
        RELEASES / "simple_mul-3.13.0.vmfb", "simple_mul", ["4xf32=1 2 3 4", "4xf32=2"],
        ["break simple_mul.mlir:3", "break dispatch if np.isnan(outputs[0]).any()", "break dispatch zzz",
         "tap * if 1 / 0", "continue", "print outputs[0].sum()", "delete 3", "continue"],
        ["no dispatch is named 'zzz'; names near it: simple_mul_dispatch", "breakpoint 2: dispatch * if np",
         "stopped: breakpoint 1, simple_mul.mlir:3, breakpoint 3, whose condition failed", "20.0"],
    ),
    (
        VM, "count_calls", [],
        ["watch global[0]", "print global[0]", "continue", "print global[0]", "continue"],
        ["breakpoint 1: global[0]", "global[0] = 0", "stopped: watch 1, global[0]: 0 -> 1", "global[0] = 1",
         "i32=1"],
    ),
    (
        VM, "squares", ["3"],
        ["break squares+0 if 1", "b squares if %i0 == 3", "break", "p %i0 * 2", "watch globalref[0]", "c",
         "p"],
        ["squares", "6", "watch", "!vm.list of 3: [0, 1, 4]"],
    ),
    (
        VM, "gcd", ["12", "18"],
        ["# a comment", "b gcd+0", "nonsense", "p %i99", "p %x", "p 1 +", "up", "down", "delete 7", "step x",
         "watch global", "set %r0 = 5", "set %i0", "b import zzz", "b nowhere.mlir:3", "help nothing",
         "list nothing", "set %i0 = 'x'", "set %i0:1 = 1 << 64", "p %i1:0", f"p %i{LONG}",
         f"b x.mlir:{LONG}", f"delete {LONG}", "p 9 ** 5000", "p " + "-" * 100_000 + "1",
         "b gcd if (", "b gcd if foo > 1", "b +FFFF", "c"],
        ["cannot: there is no command 'nonsense'", "has no register %i99", "%x", "outermost", "innermost",
         "there is no breakpoint 7", "'x' is no number", "names no global", "'5' names no register",
         "set what?", "no import that is called", "no instruction is from it", "no function",
         "1616 is no value of type i64", "is no expression", "two that follow", "cannot be shown",
         "9…' is no", "i64=6"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("module", "function", "inputs", "commands", "expected"), SCRIPTS)
def test_scripts(
    module: Path, function: str, inputs: list[str], commands: list[str], expected: list[str]
) -> None:
    printed = script(module, function, *commands, inputs=inputs)
    for text in expected:
        assert text in printed, printed


# -- machine code between stops ----------------------------------------------------------------------

CALLS = Assembler("deep")
CALLS.import_function("host.signal", "0v_v")
CALLS.function(
    "count", "0i_i",
    "%i1 = const.i32 1\n%i2 = const.i32.zero\nbr ^head\n^head:\n%i2 = add.i32 %i2, %i1\n"
    "%i3 = cmp.lt.i32.s %i2, %i0\ncond_br %i3, ^head, ^end\n^end:\nreturn [%i2]",
    exported=False,
)  # fmt: skip
CALLS.function("middle", "0i_i", "[%i1] = call @count [%i0]\n[%i1] = call @count [%i1]\nreturn [%i1]")
CALLS.function("outer", "0i_i", "[%i1] = call @middle [%i0]\n%i1 = add.i32 %i1, %i0\nreturn [%i1]")
CALLS.function("again", "0i_i", "[%i1] = call @outer [%i0]\n[%i1] = call @outer [%i1]\nreturn [%i1]")
CALLS.function("signalled", "0i_i", "call @host.signal []\n%i1 = add.i32 %i0, %i0\nreturn [%i1]")
CALLS.function("divides", "0ii_i", "%i2 = div.i32.s %i0, %i1\nreturn [%i2]")
CALLS.function("quotient", "0ii_i", "[%i2] = call @divides [%i0, %i1]\nreturn [%i2]")
CALLS.function("spins", "0i_i", "call @host.signal []\n[%i1] = call @count [%i0]\nreturn [%i1]")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module", params=["plain", "fast", "auto"])
def deep(request: pytest.FixtureRequest) -> Any:
    with jitree.Session("local-sync", tier=request.param) as session:
        session.append_module(HostFunctions("host", [("signal", "0v_v", interrupt)]))
        session.load(CALLS.build())
        yield session


STEPS = [  # function, argument, commands, stops, result, whether machine code runs
    ("outer", 500, ["next", "next", "continue"], ["outer", "outer", "outer"], 1000, True),
    ("outer", 500, ["step", "finish", "continue"], ["outer", "middle", "outer"], 1000, True),
    ("outer", 5, ["step", "step", "finish", "up", "finish"], ["outer", "middle", "@0", "middle", "outer"],
     10, True),
    ("again", 50, ["b outer if %i0 == 100", "c", "c"], ["again", "outer"], 200, True),
    ("again", 50, ["b @0 if %i0 > 70", "c", "where", "delete 1", "c"], ["again", "@0", "@0"], 200, True),
    ("outer", 50, ["continue"], ["outer"], 100, True),
    ("signalled", 4, ["b signalled if 0", "c", "p %i0", "c"], ["signalled", "signalled"], 8, False),
]  # fmt: skip


@pytest.mark.parametrize(("function", "argument", "commands", "stops", "result", "leaves"), STEPS)
def test_steps(
    deep: jitree.Session, function: str, argument: int, commands: list[str], stops: list[str], result: int,
    leaves: bool,
) -> None:  # fmt: skip
    call = partial(deep.call, f"deep.{function}", argument)
    results, printed, shell = debugged(deep, call, *commands)
    assert results == result, printed
    shown = [line for line in printed.splitlines() if line.startswith("> deep.")]
    assert [line.partition(".")[2].partition("+")[0] for line in shown] == stops, printed
    has_code = deep.tier != "plain"
    assert (shell.kept.stepper.machine_code_runs > 0) == (leaves and has_code)
    if function != "signalled":
        assert call() == result  # the session is as it was


def test_ctrl_c_stops_machine_code(deep: jitree.Session) -> None:
    count = 4000 if deep.tier == "plain" else 400_000
    call = partial(deep.call, "deep.spins", count)
    results, printed, _ = debugged(deep, call, "c", "print", "where", "c")
    assert "stopped: interrupted" in printed
    assert results == count


class Interrupted(Seen):
    """Ctrl-C comes while it finds out that it goes on by itself."""

    def ask(self, stopped: Stopped) -> Way:
        if self._repeat is not None and stopped.stop.reason != "interrupted":
            interrupt()
        return super().ask(stopped)


def test_ctrl_c_between_steps_stops(deep: jitree.Session) -> None:
    printed = io.StringIO()
    shell = Interrupted(io.StringIO("step 1000\nprint\ncontinue"), printed)
    assert debug_call(deep, partial(deep.call, "deep.outer", 50), shell) == 100
    assert "stopped: interrupted" in printed.getvalue()


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_dispatches_stop_in_the_call_that_runs(device: str) -> None:
    """Here one that a host function makes inside of another, and that may wait for a fence."""
    with jitree.Session(device) as session:
        inner: Any = session.load(PROGRAMS / "calls.vmfb")

        def signal() -> None:
            inner.both([1.0] * 4)

        session.append_module(HostFunctions("host", [("signal", "0v_v", signal)]))
        session.load(CALLS.build())
        call = partial(session.call, "deep.signalled", 4)
        results, printed, _ = debugged(session, call, "break dispatch", "c", "p len(%r6)", "c", "c")
    assert results == 8, printed
    assert printed.count("> calls.both+") == 1 and "\n16\n" in printed, printed


def test_a_watch_is_of_the_module_where_it_was_set() -> None:
    """Also when another module's function is in the frame."""
    keeper, user = Assembler("keeper", globals_size=8), Assembler("user", globals_size=8)
    keeper.function("put", "0i_v", "global.store.i32 4, %i0\nreturn")
    user.import_function("keeper.put", "0i_v")
    user.function("inner", "0i_v", "call @keeper.put [%i0]\nreturn", exported=False)
    user.function("outer", "0ii_v", "call @keeper.put [%i0]\ncall @inner [%i1]\nreturn")
    with jitree.Session("local-sync") as session:
        session.load(keeper.build()), session.load(user.build())
        call = partial(session.call, "user.outer", 1, 2)
        results, printed, _ = debugged(
            session, call, "break put", "list outer", "c", "watch global[4]", "delete 1", "c", "c", "c"
        )
    assert results is None, printed
    assert "  B " not in printed, "the breakpoint is of another module"
    assert "watch 2, global[4]: 0 -> 1" in printed
    assert "watch 2, global[4]: 1 -> 2" in printed


def test_what_fails_is_looked_at(deep: jitree.Session) -> None:
    call = partial(deep.call, "deep.quotient", 7, 0)
    error, printed, _ = debugged(deep, call, "continue", "up", "print", "step", "set %i0 = 1", "continue")
    assert isinstance(error, InvalidArgumentError)
    assert "stopped: failed" in printed
    assert "> deep.quotient" in printed
    assert printed.count("cannot: the program has failed") == 2
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    out = io.StringIO()
    jitree.post_mortem(
        raised.value, Shell(io.StringIO("where\nprint\nup\nprint %i0\nset %i0 = 1\nlist"), out)
    )
    assert "%i0 = 7 : i32\n%i1 = 0 : i32" in out.getvalue()
    assert "cannot: the program has failed" in out.getvalue()
    with pytest.raises(InvalidArgumentError, match="no frames of a program"):
        jitree.post_mortem(ValueError("x"))


def test_the_end_of_input_ends_the_call(deep: jitree.Session) -> None:
    for given in ([], ["quit"], ["next"]):
        error, _, _ = debugged(deep, partial(deep.call, "deep.outer", 3), *given)
        assert isinstance(error, CancelledError)
    assert deep.call("deep.outer", 3) == 6


def test_a_session_is_debugged_once(deep: jitree.Session) -> None:
    shell = Seen(io.StringIO("c"), io.StringIO())
    with Debugger(deep, shell).attached(), pytest.raises(FailedPreconditionError):
        deep.debug("deep.outer", 1)


# -- everything gives what it gives without ------------------------------------------------------------

LEFT_OUT = ("endless", "falling", "two_devices", "turns", "sizes")
MODULES = [*sorted(PROGRAMS.glob("*.vmfb")), *sorted(RELEASES.glob("*.vmfb")), VM]


def arguments(function: jitree.Function) -> list[Any] | None:
    """Plain arguments; None for a function that takes others."""
    found: list[Any] = []
    for argument in function.arguments:
        dtype = argument.type
        if dtype.startswith("tensor<"):
            *sizes, element = dtype.removeprefix("tensor<").removesuffix(">").split("x")
            if element not in ("f32", "f64", "i32", "i64"):
                return None
            numpy = {"f": "float", "i": "int"}[element[0]] + element[1:]
            found.append(np.ones([4 if size == "?" else int(size) for size in sizes], numpy))
        elif dtype in ("i32", "i64", "f32", "f64", "index"):
            found.append(3)
        else:
            return None
    return found


def outcomes(module: Path, *commands: str) -> list[str]:
    found = []
    with jitree.Session("local-sync") as session:
        loaded = session.load(module)
        assert isinstance(loaded, jitree.Module)
        for name in loaded:
            values = arguments(loaded[name])
            if values is None:
                continue
            call = partial(loaded[name], *values)
            try:
                results = debugged(session, call, *commands)[0] if commands else call()
            except StatusError as error:
                results = error
            found.append(f"{name}: {plain(results)}")
    return found


def plain(results: Any) -> object:
    """Something to compare."""
    if isinstance(results, tuple | list):
        return [plain(result) for result in results]
    if isinstance(results, jitree.Array | memoryview):
        array = np.asarray(results)
        return str(array.dtype), array.shape, zlib.crc32(array.tobytes())
    return results


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_debugged_calls_give_what_others_give(module: Path) -> None:
    if module.stem.endswith(LEFT_OUT):
        pytest.skip("it does not end, needs more, or gives memory as it is")
    try:
        expected = outcomes(module)
    except StatusError as error:
        pytest.skip(f"it does not load alone: {error.message}")
    assert outcomes(module, "continue") == expected
    assert outcomes(module, "break import * if False", "tap *", "continue") == expected


def test_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(DATA.parents[1])
    monkeypatch.setattr("sys.stdin", io.StringIO("list\ncontinue\nwhere\nprint %i0\n"))
    page = (DATA.parents[1] / "docs" / "debugging.md").read_text(encoding="utf-8")
    run_snippets(page, "debugging.md", tmp_path)
    for command in commands(page):
        require_printed(command.printed, run(command.line, tmp_path))
