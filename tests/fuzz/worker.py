"""The process that loads and calls damaged modules.

Reads cases from standard input (a line of JSON, then the bytes) and answers each on standard output with
lines of JSON: the phase it enters, then the outcome. The parent kills it when it takes too long.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import sys
import traceback
from typing import Any, BinaryIO

import numpy as np

import jitree
from jitree.dispatch.context import Context
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler

_MEMORY_LIMIT = 6 << 30
"""Bytes of address space: a program that asks for more must fail with a status, not take the machine down."""

_EDGE_INTEGERS = (0, 1, 2, 3, 5, 8, -1, 127, 255, (1 << 31) - 1, -(1 << 31))
_EDGE_FLOATS = (0.0, -0.0, 1.0, -1.5, 1e30, float("inf"), float("nan"))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stream = sys.stdin.buffer
    answers = sys.stdout
    sys.stdout = sys.stderr  # programs may print
    report(answers, phase="ready")
    while line := stream.readline():
        case = json.loads(line)
        data = read_exactly(stream, case["size"])
        report(answers, outcome=run_case(case, data, answers))


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("the parent ended within a case")
    return data


def report(answers: Any, **fields: object) -> None:
    print(json.dumps(fields), file=answers, flush=True)


def run_case(case: dict[str, Any], data: bytes, answers: Any) -> dict[str, object]:
    """``{"status": …}``, ``{"calls": n}`` or ``{"bug": text}``."""
    report(answers, phase="loading")
    rng = random.Random(case["number"])
    try:
        if case["device"]:
            return run_in_session(case, data, rng, answers)
        return run_in_context(case["tier"], data, rng, answers)
    except Exception:
        return {"bug": traceback.format_exc()}


def run_in_context(tier: str, data: bytes, rng: random.Random, answers: Any) -> dict[str, object]:
    """A module without devices, beside one that must keep working."""
    context = Context(RefTypes(), tier=tier)
    context.register([BytecodeModule.load(KNOWN_GOOD)])
    outcome: dict[str, object]
    try:
        module = BytecodeModule.load(data)
        report(answers, phase="calling __init")
        context.register([module])
    except StatusError as error:
        outcome = {"status": error.code.name}
    else:
        names = [name for name in module.export_names() if not name.startswith("__")]
        for name in names:
            report(answers, phase=f"calling {name}")
            call(context, f"{module.name}.{name}", rng)
        outcome = {"calls": len(names)}
    if context.invoke(context.lookup("good.double"), [21]) != [42]:
        return {"bug": "the context gives wrong results afterwards"}
    table = context.table
    context.close()
    if table.live_count:
        return {"bug": f"{table.live_count} handles are left when the context is closed"}
    return outcome


def call(context: Context, name: str, rng: random.Random) -> None:
    """Calls a function with edge values; failing with a status is fine."""
    with contextlib.suppress(StatusError):
        function = context.lookup(name)
        context.invoke(function, arguments(function.cconv, rng))


def run_in_session(case: dict[str, Any], data: bytes, rng: random.Random, answers: Any) -> dict[str, object]:
    """A module for a device."""
    with jitree.Session(device=case["device"], tier=case["tier"]) as session:
        session.load(KNOWN_GOOD)
        outcome: dict[str, object]
        try:
            BytecodeModule.load(data)
            report(answers, phase="calling __init")
            module = session.load(data)
        except StatusError as error:
            outcome = {"status": error.code.name}
        else:
            names = list(module)
            for name in names:
                report(answers, phase=f"calling {name}")
                with contextlib.suppress(StatusError):
                    image = np.full((8, 8), rng.choice(_EDGE_FLOATS), np.float32)
                    module[name](image if rng.random() < 0.9 else None)
            outcome = {"calls": len(names)}
        if session.call("good.double", 21) != 42:
            return {"bug": "the session gives wrong results afterwards"}
        return outcome


def arguments(cconv: str, rng: random.Random) -> list[object]:
    """Values for a calling convention; now and then one too few or too many."""
    made: list[object] = []
    for item in cconv[1:].partition("_")[0]:
        if item in "iI":
            made.append(rng.choice(_EDGE_INTEGERS))
        elif item in "fF":
            made.append(rng.choice(_EDGE_FLOATS))
        elif item == "r":
            made.append(rng.choice((None, VmBuffer(64))))
    if rng.random() < 0.05:
        made = made[:-1] if made else [1]
    return made


KNOWN_GOOD = (
    Assembler("good").function("double", "0i_i", "%i1 = add.i32 %i0, %i0\nreturn [%i1]").build("plain")
)

if __name__ == "__main__":
    main()
