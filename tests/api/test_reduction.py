"""From a call that fails to the one dispatch that does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree import CustomModule, Function, LoneDispatch, Session
from jitree.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from tests.api.programs import PROGRAMS

FALLING = PROGRAMS / "falling.vmfb"
CHAIN = PROGRAMS / "chain.vmfb"
THREE = np.full(8, 3, np.int32)
DIVISION = "divide_dispatch_0_elementwise_8_i32"


@pytest.fixture(params=[("local-sync", "fast"), ("local-task", "plain"), ("local-sync", "native")])
def divide(request: pytest.FixtureRequest) -> Iterator[Function]:
    """Its host takes quotients that are not 50, and answers 1."""
    device, tier = request.param
    host = CustomModule("host")

    @host.export
    def check(quotient: jitree.i32) -> jitree.i32:
        if quotient == 50:
            raise LookupError("half of it")
        return 1

    with Session(device, tier=tier) as session:
        session.append_module(host)
        yield session.load(FALLING).divide


def test_a_dispatch_that_fails_in_a_loop(divide: Function, tmp_path: Path) -> None:
    one = np.full(8, 1, np.int32)
    text = jitree.reduce(divide, tmp_path, inputs=[one, 4])
    assert "division by zero" in text and DIVISION in text
    alone = LoneDispatch.load(tmp_path / "a")
    assert alone.name == DIVISION and not alone.bindings[0].any(), "in the second turn"
    script = subprocess.run(
        [sys.executable, tmp_path / "run.py"], capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "JITREE_TRACEBACK"},
    )  # fmt: skip
    assert script.returncode == 1 and "integer division by zero" in script.stderr
    assert script.stderr.count("\n  File ") <= 2, "the tracebacks end at the script"


def test_an_import_that_fails_is_named(divide: Function, tmp_path: Path) -> None:
    match = rf"the call fails in no dispatch, after {DIVISION} \(dispatch 2\): LookupError: half of it"
    with pytest.raises(FailedPreconditionError, match=match):
        jitree.reduce(divide, tmp_path, inputs=[THREE, 4])
    with pytest.raises(FailedPreconditionError, match="in no dispatch: INVALID_ARGUMENT; expected 2 arg"):
        jitree.reduce(divide, tmp_path, inputs=[THREE])


def test_a_call_that_fails_after_the_dispatch(divide: Function) -> None:
    first = LoneDispatch.of_call(divide, [THREE, 4], 0)
    assert (first.expected()[0] == 33).all() and (first.run("local-task")[0] == 33).all()


def test_what_cannot_be_run_or_read(tmp_path: Path) -> None:
    jitree.reduce((CHAIN, "local-sync"), tmp_path, inputs=[np.full((4, 8), 3e38, np.float32)])
    alone = LoneDispatch.load(tmp_path / "a")
    with pytest.raises(UnimplementedError, match="null:// computes nothing"):
        alone.run("null")
    facts = tmp_path / "a" / "dispatch.json"
    text = facts.read_text()
    facts.write_text(json.dumps(json.loads(text) | {"bindings": [[7, 0, 4]]}))
    with pytest.raises(InvalidArgumentError, match=r"is damaged: dispatch\.json names memory that"):
        LoneDispatch.load(tmp_path / "a")
    facts.write_text(text)
    memory = tmp_path / "a" / "memory.npz"
    memory.write_bytes(memory.read_bytes()[:-9])
    with pytest.raises(InvalidArgumentError, match="is damaged"):
        LoneDispatch.load(tmp_path / "a")
    with zipfile.ZipFile(memory, "w") as file:
        file.writestr("other.txt", "x")
    with pytest.raises(InvalidArgumentError, match="is damaged"):
        LoneDispatch.load(tmp_path / "a")
    for wrong in (None, 5):
        with pytest.raises(InvalidArgumentError, match="folder: expected"):
            LoneDispatch.load(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="folder: expected"):
            jitree.reduce(CHAIN, wrong)  # type: ignore[arg-type]
