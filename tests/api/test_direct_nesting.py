"""Calls by machine code inside others, beside them, and interrupted."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import jitree
from jitree import CustomModule, Function, Session, i32
from jitree.codegen.record import words_of
from jitree.errors import DataLossError
from jitree.regs.layout import GateRecord
from tests.api.direct import ARRAY_TO_ARRAY, NUMBER_TO_NUMBER, X, direct, needs_machine_code, through
from tests.api.programs import ARITHMETIC
from tests.assembler import Assembler
from tests.base.interruption import interruptions

_GATE: Final = words_of(GateRecord)

pytestmark = needs_machine_code


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


# -- inside and around -----------------------------------------------------------------------------------


def test_calls_inside_calls(session: Session) -> None:
    """A host function calls the program that called it."""
    custom = CustomModule("host")

    @custom.export
    def g(value: i32) -> i32:
        return 0 if value == 0 else int(session["m.f"](value - 1)) + 1

    count = direct(through(session, custom, "0i_i", NUMBER_TO_NUMBER), 1)
    assert [count(depth) for depth in (0, 1, 5, 30)] == [0, 1, 5, 30]
    assert session.context.invoker.gate[_GATE.nesting] == 0


def test_failures_inside(session: Session) -> None:
    custom = CustomModule("host")

    @custom.export
    def g(value: i32) -> i32:
        if value < 0:
            raise DataLossError("gone")
        return value

    function = through(session, custom, "0i_i", NUMBER_TO_NUMBER)
    texts = []
    for called in (function, direct(function, 1)):
        with pytest.raises(DataLossError, match="gone") as failure:
            called(-1)
        texts.append("\n".join([str(failure.value), *failure.value.backtrace]))
        assert function(7) == 7
    assert texts[0] == texts[1] and "m.f+" in texts[0] and "`sync func @f(" in texts[0]


def test_calls_that_wait(session: Session) -> None:
    """A call that yields lets others in, also through the same function."""
    program = Assembler("m").function("f", "0i_i", """
        %i1 = const.i32 1
        yield ^next
        ^next:
        %i0 = add.i32 %i0, %i1
        return [%i0]
    """, attrs=NUMBER_TO_NUMBER)  # fmt: skip
    session.load(program.build())
    function = direct(session["m.f"], 1)
    assert [function(value) for value in (1, 2, 3)] == [2, 3, 4]


def test_many_threads(session: Session) -> None:
    module = session.load(ARITHMETIC)
    scale, add = direct(module.scale, np.ones(8, np.float32), 1.0), direct(module.add, X, X)
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(150):
            factor = float(number * 1000 + turn)
            scaled = np.asarray(scale(np.ones(8, np.float32), factor))
            summed = add(add(X, X), X)
            if not (np.all(scaled == factor) and np.array_equal(summed, 3 * X)):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_interrupt_anywhere_leaves_the_session_usable() -> None:
    """In the Python part of a call that leaves machine code, wherever Python looks for signals."""
    custom = CustomModule("host")

    @custom.export
    def g(value: Any) -> Any:
        return value

    with Session("local-sync", tier="fast") as session:
        echo = direct(through(session, custom, "0r_r", ARRAY_TO_ARRAY), X)
        places, results = 0, []
        for interruption in interruptions(0):
            interruption.during(lambda: results.append(echo(X)))
            assert np.array_equal(echo(X), X), f"interrupted at place {interruption.place}"
            places += 1
        assert np.array_equal(results[-1], X) and places > 20


def test_the_interpreter_ends_while_a_call_runs() -> None:
    """Python ends the thread when it comes back from machine code."""
    program = """
import threading, time
from jitree import Session
from tests.assembler import Assembler
text = '''
    %i1 = const.i32 1
    br ^loop
    ^loop:
    %i0 = sub.i32 %i0, %i1
    %i2 = cmp.nz.i32 %i0
    cond_br %i2, ^loop, ^done
    ^done:
    return [%i0]
'''
session = Session("local-sync", tier="fast")
session.load(Assembler("m").function("f", "0i_i", text).build())
function = session["m.f"]
while not function.is_direct:
    function(1)
class Late:
    def __del__(self, wait=time.sleep):
        wait(0.6)
        print("done", flush=True)
late = Late()
threading.Thread(target=function, args=(1 << 26,), daemon=True).start()
time.sleep(0.1)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_prepared_functions_are_the_functions(session: Session) -> None:
    module = session.load(ARITHMETIC)
    assert session.prepare("arithmetic.add") is module.add is session.lookup("arithmetic.add")
    assert repr(direct(module.add, X, X)).startswith("<jitree.Function arithmetic.add: ")
    assert jitree.Function is Function
