"""Processes that build machine code for a sandbox take what its limits leave them, and end with it."""

from __future__ import annotations

import os
import resource
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import jitree
from jitree.base import cancel_scopes
from jitree.codegen import image
from jitree.codegen.image import builder as starting
from jitree.errors import CancelledError, UnavailableError
from tests.assembler import Assembler
from tests.security.programs import VMVX

LONG = 600
FUNCTIONS = 400
"""That take a builder many times as long as these tests look at it."""


def unbuilt(count: int) -> bytes:
    """A module whose machine code is in no cache."""
    module, number = Assembler("unbuilt"), int.from_bytes(os.urandom(3))
    for index in range(count):
        module.function(f"f{index}", "0i_i", f"""
            %i1 = const.i32 1
            %i2 = const.i32 0
            %i4 = const.i32 {number}
            br ^again
            ^again:
            %i2 = add.i32 %i2, %i1
            %i4 = add.i32 %i4, %i2
            %i3 = cmp.lt.i32.s %i2, %i0
            cond_br %i3, ^again, ^end
            ^end:
            return [%i2]
        """)  # fmt: skip
    return module.build()


def sandbox(tier: str, **limits: Any) -> jitree.Session:
    return jitree.Session("local-sync", sandbox=True, tier=tier, limits=jitree.Limits(**limits))


def begun(before: set[Any]) -> Any:
    """The builder of a module that has been started, if it has."""
    started = starting._running - before
    return next((item for item in started if item._log.name.startswith("native")), None)


def require_killed(builder: starting.Builder) -> None:
    while not builder.has_ended():
        time.sleep(0.01)
    assert builder._code == -signal.SIGKILL


def limits_of(process: int) -> dict[int, int]:
    """That are set."""
    kinds = resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_CORE
    rows = {kind: resource.prlimit(process, kind)[0] for kind in kinds}
    return {kind: most for kind, most in rows.items() if most != resource.RLIM_INFINITY}


def test_a_builder_is_limited_and_ends_with_the_load() -> None:
    before, scope = set(starting._running), cancel_scopes.Scope()

    def load() -> None:
        with scope:
            session.load(unbuilt(FUNCTIONS))

    with sandbox("native", load_time=LONG, memory=1 << 26) as session, ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        while (builder := begun(before)) is None or resource.RLIMIT_AS not in limits_of(builder._process):
            assert not loading.done()
            time.sleep(0.01)
        found = limits_of(builder._process)
        scope.end(CancelledError("as a deadline does"))
        with pytest.raises(CancelledError):
            loading.result()
        require_killed(builder)
        assert len(session.load(unbuilt(1)).names) == 1
    assert found == {
        resource.RLIMIT_CPU: LONG + starting.SPARE_SECONDS,
        resource.RLIMIT_AS: (1 << 26) + starting.SPARE_MEMORY,
        resource.RLIMIT_CORE: 0,
    }


def test_a_builder_ends_with_the_session() -> None:
    before = set(starting._running)
    with sandbox("auto", load_time=LONG) as session:
        count = session.load(unbuilt(FUNCTIONS)).f0
        while (builder := begun(before)) is None:
            assert count(100_000) == 100_000
    require_killed(builder)


@pytest.mark.parametrize("tier", ["auto", "native"])
@pytest.mark.parametrize("limit", ["load_time", "memory"])
def test_what_cannot_be_built_within_the_limits(
    tier: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs by the interpreter, or is UNAVAILABLE where machine code was asked for."""
    monkeypatch.setattr(starting, "SPARE_SECONDS", 1 - LONG)
    monkeypatch.setattr(starting, "SPARE_MEMORY", 0)
    limits = {"load_time": LONG} if limit == "load_time" else {"memory": 1 << 26}
    with sandbox(tier, **limits) as session:
        if tier == "native":
            with pytest.raises(UnavailableError, match="the limits of its session on load time and memory"):
                session.load(unbuilt(FUNCTIONS))
            return
        count, text = session.load(unbuilt(FUNCTIONS)).f0, ""
        while "within the limits of its session" not in text:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert count(100_000) == 100_000
            text += "".join(str(item.message) for item in caught)


def test_kernels_are_built_within_the_limits() -> None:
    with sandbox("auto", load_time=LONG) as session:
        session.load(VMVX)
        assert session.sandbox is not None
        names = [key[0] for key in image._providers if session.sandbox._builds in key]
        assert "vmvx_kernels" in names
