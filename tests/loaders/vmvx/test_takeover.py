"""VMVX kernels on the default tier with nothing in the cache: the fast loop runs them from the beginning, and
machine code takes over what is running."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jitree.codegen import image
from jitree.codegen.image.flat import map_image
from jitree.dispatch import grid_call
from jitree.dispatch.fast.engine import FastEngine
from jitree.dispatch.native.engine import AutoEngine, go_up
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.loaders.vmvx import native as vmvx_native
from jitree.loaders.vmvx import worker as vmvx_worker
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.assembler import Assembler
from tests.codegen.images import built
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, NUMBER, load

TURNS = 8000
COUNTING = f"""{NUMBER}
    %i20 = const.i64 0
    %i22 = const.i64 {TURNS}
    %i24 = const.i64 1
    %i15 = const.i32 1
    br ^head
    ^head:
    %i26 = cmp.lt.i64.s %i20, %i22
    cond_br %i26, ^body, ^end
    ^body:
    %i14 = buffer.load.i32 %r3, %i12:13
    %i14 = add.i32 %i14, %i15
    buffer.store.i32 %r3, %i12:13, %i14
    %i20 = add.i64 %i20, %i24
    br ^head
    ^end:
    return []
"""
"""Adds 1 to the workgroup's element many times."""
GROUPS = (5, 4, 3)


@pytest.fixture
def executable(monkeypatch: pytest.MonkeyPatch) -> VmvxExecutable:
    """Its images are never built; tests put them where they are looked for."""
    monkeypatch.setattr(image.Provider, "_look", lambda provider, niceness: None)
    monkeypatch.setattr(grid_call, "FIRST_TIME", 0)
    monkeypatch.setattr(vmvx_worker, "FIRST_TIME", 0)
    return load(Assembler("counting").function("f", ENTRY_CONVENTION, COUNTING), "auto")


def _compiled(executable: VmvxExecutable) -> vmvx_native.CompiledKernels:
    assert executable._compiled is not None
    return executable._compiled


def _build(provider: image.Provider) -> None:
    provider.image = map_image(built(provider.recipe))


def _run(
    executable: VmvxExecutable, count: tuple[int, int, int] = (1, 1, 1), function: int = 0
) -> np.ndarray:
    block = aligned(np.zeros(count[0] * count[1] * count[2], np.int32))
    commands = CommandList()
    commands.dispatch(executable, function, count, [], [whole(block)])
    executor.require_native_executor().execute(commands, *commands.bind(()))
    return block


@pytest.mark.parametrize("tier", ["fast", "auto"])
def test_going_from_one_workgroup_to_the_next_takes_no_python(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[object] = []
    for engine in (FastEngine, AutoEngine):

        def counted(self: Any, machine: Any, run: Any = engine.run) -> None:
            runs.append(self)
            run(self, machine)

        monkeypatch.setattr(engine, "run", counted)
    text = f"{NUMBER}\n%i15 = const.i32 1\nbuffer.store.i32 %r3, %i12:13, %i15\nreturn []"
    executable = load(Assembler("many").function("f", ENTRY_CONVENTION, text), tier)
    runs.clear()
    assert (_run(executable, (7, 11, 13)) == 1).all()
    assert len(runs) == 1


def test_a_long_workgroup_goes_on_in_machine_code(
    executable: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []

    def note(machine: Any, *arguments: Any) -> None:
        go_up(machine, *arguments)
        entered.append(machine.sought == 0)

    monkeypatch.setattr(vmvx_worker, "go_up", note)
    _build(_compiled(executable).hot(0).provider)
    assert _run(executable).tolist() == [TURNS]
    assert any(entered) and len(entered) < 10


def test_a_long_workgroup_goes_on_where_there_is_no_machine_code(executable: VmvxExecutable) -> None:
    provider = _compiled(executable).hot(0).provider
    assert _run(executable).tolist() == [TURNS]
    provider.failure = "not to be had"
    assert _run(executable, GROUPS).tolist() == [TURNS] * 60


def test_the_rest_of_a_span_is_taken_over_at_the_next_workgroup(
    executable: VmvxExecutable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one in progress ends where it is: each of them runs once."""
    compiled = _compiled(executable)
    monkeypatch.setattr(vmvx_native, "INTERPRETED_FIRST", 0)
    monkeypatch.setattr(vmvx_worker, "_LONG", 1000)
    asked: list[int] = []

    def get(provider: image.Provider) -> image.Image | None:
        asked.append(1)
        if len(asked) == 20:
            _build(provider)
        return provider.image

    monkeypatch.setattr(image.Provider, "get", get)
    rests: list[int] = []
    go_on = compiled.go_on

    def note(*arguments: Any) -> int:
        rests.append(go_on(*arguments))
        return rests[-1]

    monkeypatch.setattr(compiled, "go_on", note)
    assert _run(executable, GROUPS).tolist() == [TURNS] * 60
    assert compiled.ready and rests == [0]
    assert _run(executable, GROUPS).tolist() == [TURNS] * 60
    assert rests == [0]


def test_machine_code_of_one_kernel_does_not_wait_for_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others go on in the meantime."""
    monkeypatch.setattr(image.Provider, "_look", lambda provider, niceness: None)
    monkeypatch.setattr(vmvx_native, "INTERPRETED_FIRST", 0)
    module = Assembler("two").function("f", ENTRY_CONVENTION, COUNT).function("g", ENTRY_CONVENTION, COUNTING)
    executable = load(module, "auto")
    compiled = _compiled(executable)
    _build(compiled._batch.providers[1])
    assert _run(executable, GROUPS, 1).tolist() == [TURNS] * 60
    assert compiled.has_left(1) and not compiled.has_left(0) and not compiled.ready
    assert _run(executable, GROUPS, 0).tolist() == [1] * 60
    assert not compiled.has_left(0)
    _build(compiled._batch.providers[0])
    assert _run(executable, GROUPS, 0).tolist() == [1] * 60
    assert compiled.ready
