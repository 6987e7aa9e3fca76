"""Tracebacks end at the user's line."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import _RENAMED
from jitree.codegen.image import warn as missing
from tests.api.programs import ASYNCHRONOUS, PROGRAMS
from tests.assembler import Assembler

SEEN = PROGRAMS / "seen.vmfb"


@pytest.fixture(autouse=True)
def folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JITREE_TRACEBACK", raising=False)


@pytest.fixture
def session() -> Iterator[jitree.Session]:
    with jitree.Session(device="local-sync") as session:
        yield session


def lines_of(work: Callable[[], Any]) -> list[tuple[str, str]]:
    """(file, function) from the work on."""
    with pytest.raises(Exception) as caught:
        work()
    shown = traceback.extract_tb(caught.value.__traceback__)
    return [(Path(frame.filename).name, frame.name) for frame in shown[1:]]


HERE = Path(__file__).name
END = [(HERE, "<lambda>")]
"""The line that called."""


def test_every_entry(session: jitree.Session) -> None:
    function = session.load(SEEN).narrow
    adder = session.load(ASYNCHRONOUS).add

    with session.profile() as profile:
        pass
    with session.tap() as taps:
        pass
    chain = PROGRAMS / "chain.vmfb"
    difference = jitree.diff(chain, chain, inputs=[np.ones((4, 8), np.float32)])

    async def awaited() -> None:
        await adder.async_(1)

    for work in (
        lambda: function(1), lambda: function(1, 2, 3), lambda: function(x=1),
        lambda: session.load("missing"), lambda: session["module.missing"], lambda: jitree.load("missing"),
        lambda: jitree.Session("missing"),
        lambda: session.to_device(object()), lambda: session.tap(types={0: "?"}),
        lambda: jitree.diff("a", "b"), lambda: difference.save("a"), lambda: jitree.LoneDispatch.load("a"),
        lambda: profile.table("x"), lambda: profile.save("a/b"), lambda: profile.save(None),  # type: ignore[arg-type]
        lambda: taps.save("a"), lambda: session.tap([]),
        lambda: jitree.reduce("a", "b"), lambda: session.call("module.missing"), lambda: adder.submit(1),
        lambda: function.signature and session.modules["module"].missing,
        lambda: function(np.ones(8, np.float32), timeout=-1),
    ):  # fmt: skip
        assert lines_of(work) == END
    assert lines_of(lambda: asyncio.run(awaited()))[-1] == (HERE, "awaited")


def test_functions_of_the_user_stay(session: jitree.Session) -> None:
    """With what they call of the standard library; errors of their own and causes are folded, too."""

    host = jitree.CustomModule("host")

    @host.export
    def twice(value: jitree.i32) -> jitree.i32:
        return jitree.i32(json.loads("{"))

    program = Assembler("m").import_function("host.twice", "0i_i")
    program.function("f", "0i_i", "[%i1] = call @host.twice [%i0]\nreturn [%i1]")
    session.load(program.build(), host)
    function = session["m.f"]
    found = lines_of(lambda: function(1))
    assert found[:2] == [*END, (HERE, "twice")]
    assert all(file in ("__init__.py", "decoder.py") for file, _ in found[2:]) and found[2:]


@pytest.mark.parametrize("is_handling", [False, True])
def test_what_a_tap_raises_is_all_that_is_told(session: jitree.Session, is_handling: bool) -> None:
    """The error that stands for it on the way is no part of it; what the function itself handled stays."""

    def fail(dispatch: object) -> None:
        if not is_handling:
            raise KeyError("mine")
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("mine")  # noqa: B904 - the context is what is tested

    product = session.load(ASYNCHRONOUS).product
    with pytest.raises(KeyError) as caught, session.tap(keep=fail):
        product(np.ones((256, 256), np.float32))
    text = "".join(traceback.format_exception(caught.value))
    assert "InternalError" not in text and ("ValueError: first" in text) is is_handling


def test_all_of_it(session: jitree.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITREE_TRACEBACK", "full")
    assert ("session.py", "load") in lines_of(lambda: session.load("missing"))


def test_a_warning_is_of_the_user_s_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep the call is that warns, also where Python's import system is in between."""
    renamed = next(iter(_RENAMED))
    monkeypatch.delitem(vars(jitree), renamed, raising=False)
    with pytest.warns(DeprecationWarning) as seen:
        getattr(jitree, renamed)
        monkeypatch.delitem(vars(jitree), renamed, raising=False)
        exec(compile(f"from jitree import {renamed}", __file__, "exec"), {})
    with pytest.warns(RuntimeWarning) as told:
        missing("an image", "a reason of this test")
    assert {warning.filename for warning in (*seen, *told)} == {__file__}
    assert len(seen) == 2


def test_code_that_is_made_has_a_name_that_is_no_user_s() -> None:
    """``<string>`` is what was given on a command line."""
    made = re.compile(r"(?<![.\w])(?:exec|eval)\((?!compile\(|code,)")
    files = Path(jitree.__file__).parent.rglob("*.py")
    assert not [file.name for file in files if made.search(file.read_text(encoding="utf-8"))]


def test_a_call_on_a_thread_of_its_own_has_no_line(session: jitree.Session) -> None:
    """What is left of the stack is Python's own: threading.py."""
    call = session.load(SEEN).normalized
    arguments = np.ones((4, 64), np.float32), np.ones((64, 71), np.float32), np.zeros(71, np.float32)
    with session.tap() as taps:
        thread = threading.Thread(target=call, args=arguments)
        thread.start()
        thread.join()
        call(*arguments)
    sites = [tap.call_site for tap in taps]
    assert sites[:3] == [""] * 3 and all("test_tracebacks.py" in site for site in sites[3:])
