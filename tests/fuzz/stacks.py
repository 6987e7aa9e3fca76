"""Actions on threads with little stack: ``python -m tests.fuzz.stacks [BYTES]`` does each on one of its own.

Without a number they are done on the first thread, whose stack the system limits (``ulimit -s``). An action
whose stack ends would end the process, after its name.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

import jitree
from jitree.dispatch.context import Context
from jitree.errors import ResourceExhaustedError, StatusError
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, STATE
from tests.assembler import Assembler
from tests.dispatch.harness import compile_here
from tests.security.programs import VMVX

SMALLEST: Final = max(64 << 10, os.sysconf("SC_THREAD_STACK_MIN"))
"""Of a thread: aarch64 allows none with less than 128 KiB."""
X: Final = np.arange(4, dtype=np.float32)
_N: Final = np.arange(64, dtype=np.float32)
_IMAGE: Final = np.zeros((8, 8), np.float32)
_LIMITS: Final = jitree.Limits(memory=1 << 28)
_DEPTH: Final = 300
"""Functions that call each other in a row, each with so many numbers that it needs after the call."""
_NUMBERS: Final = 41


def deep() -> BytecodeModule:
    """A function that calls itself without end, and functions in a row: for which the stack suffices."""
    module = Assembler("m").function("endless", "0i_i", "[%i0] = call @endless [%i0]\nreturn [%i0]")
    before = "\n".join(f"%i{place} = add.i32 %i{place - 1}, %i0" for place in range(1, _NUMBERS))
    after = "\n".join(f"%i0 = add.i32 %i0, %i{place}\n%i0 = mul.i32 %i0, %i0" for place in range(1, _NUMBERS))
    for number in range(_DEPTH):
        body = f"{before}\n[%i0] = call @f{number + 1} [%i0]\n{after}\nreturn [%i0]"
        module.function(f"f{number}", "0i_i", body, exported=not number)
    module.function(f"f{_DEPTH}", "0i_i", "return [%i0]", exported=False)
    return BytecodeModule.load(module.build())


def descend(module: BytecodeModule, tier: str, expected: list[Any]) -> None:
    with Context(RefTypes(), tier=tier) as context:
        context.register([module])
        for _ in range(3):
            try:
                context.invoke(context.lookup("m.endless"), [1])
            except ResourceExhaustedError as error:
                assert "stack overflow" in str(error)
            assert context.invoke(context.lookup("m.f0"), [1]) == expected


def call(device: str, tier: str) -> None:
    with jitree.Session(device, tier=tier) as session:
        session.load(ARITHMETIC, STATE, ASYNCHRONOUS)
        add = session["asynchronous.add"]
        for _ in range(4):
            assert np.array_equal(session["arithmetic.add"](X, X), 2 * X)
            assert np.array_equal(add(add.submit(_N, _N), _N), 3 * _N)
            try:
                session["state.positive"](np.int32(-3))
            except StatusError as error:
                assert "positive" in str(error)


def awaited(device: str, tier: str) -> None:
    async def calls() -> list[Any]:
        add = session["asynchronous.add"]
        return await asyncio.gather(*(add.async_(_N, _N) for _ in range(4)))

    with jitree.Session(device, tier=tier) as session:
        session.load(ASYNCHRONOUS)
        assert np.array_equal(asyncio.run(calls()), [2 * _N] * 4)


def taps(device: str, tier: str) -> None:
    with jitree.Session(device, tier=tier) as session:
        session.load(ARITHMETIC)
        with session.tap(keep="tensors") as found:
            session["arithmetic.add"](X, X)
        sums = found[0].outputs[0].array
        assert sums is not None and np.array_equal(sums, 2 * X)


def kernels(device: str, tier: str) -> None:
    with jitree.Session(device, tier=tier) as session:
        assert np.asarray(session.load(VMVX).classify(_IMAGE)).shape == (10,)


def refused() -> None:
    data = STATE.read_bytes()
    for place in range(0, len(data), 211):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        try:
            with jitree.Session("local-sync") as session:
                session.load(bytes(damaged))
        except StatusError:
            pass


def sandbox(kind: Any) -> None:
    with jitree.Session("local-sync", sandbox=kind, limits=_LIMITS) as session:
        assert np.asarray(session.load(VMVX).classify(_IMAGE)).shape == (10,)


def actions() -> dict[str, Callable[[], None]]:
    module = deep()
    compile_here(module)
    with Context(RefTypes(), tier="plain") as context:
        context.register([module])
        expected = context.invoke(context.lookup("m.f0"), [1])
    made: dict[str, Callable[[], None]] = {}
    for tier in ("plain", "fast", "native"):
        made[f"deep calls, {tier}"] = partial(descend, module, tier, expected)
    for action in (call, awaited, taps, kernels):
        for device in ("local-sync", "local-task://?threads=2"):
            for tier in ("plain", "fast"):
                made[f"{action.__name__}, {device}, {tier}"] = partial(action, device, tier)
    made["refused modules"] = refused
    made.update({f"sandbox={kind}": partial(sandbox, kind) for kind in (True, "process")})
    return made


def main() -> int:
    failed: list[str] = []

    def act(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException:
            failed.append(traceback.format_exc())

    for name, action in actions().items():
        print(name, flush=True)
        if len(sys.argv) > 1:
            threading.stack_size(int(sys.argv[1]))
            thread = threading.Thread(target=act, args=(action,))
            thread.start()
            thread.join()
        else:
            act(action)
    print(*failed, sep="\n", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
