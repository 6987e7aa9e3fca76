"""Damaged modules: each is refused, or ends on all tiers alike, and a module beside it goes on.

Damage knows the file: words of tables, fields of instructions, descriptors, opcodes, text (``mutations.py``).
"""

from __future__ import annotations

import random
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np

import jitree
from jitree.dispatch.context import Context
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.fuzz.campaign import CASES, Campaign, Result, limit_memory
from tests.fuzz.fields import Layout
from tests.fuzz.mutations import fewer_changes, mutate
from tests.fuzz.seeds import seeds

TIERS: Final = ("plain", "fast")
LIMIT: Final = 0.02
"""Seconds of a call: damaged programs may loop for ever, and one that does takes as long as 20 others. Of
8,000 modules 41 ran longer than 0.1 s, 51 longer than this."""
SHOWN: Final = 4096
"""Bytes of a buffer that are compared: a damaged program may make one of gigabytes."""
MOST: Final = 8
OTHERS: Final = 3
"""Functions that are called, with damage and without."""
_EDGE_INTEGERS: Final = (0, 1, 2, 3, 5, 8, -1, 127, 255, (1 << 31) - 1, -(1 << 31))
_EDGE_FLOATS: Final = (0.0, -0.0, 1.0, -1.5, 1e30, float("inf"), float("nan"))
_DEVICE_EVERY: Final = 8
"""Of so many modules for a device that load, one is also called: a session takes a while."""

Ending = tuple[object, ...]
"""What can be seen of a call."""


class Case(NamedTuple):
    seed: str
    number: int
    data: bytes


class LoopedError(BaseException):
    """A call that takes too long."""


@cache
def _layout(seed: str) -> Layout:
    return Layout(seeds()[seed].data)


def generate(number: int) -> Case:
    seed = list(seeds())[number % len(seeds())]
    data = mutate(seeds()[seed].data, _layout(seed), random.Random(f"{seed}:{number}"))
    return Case(seed, number, data)


def smaller(case: Case) -> Iterator[Case]:
    for data in fewer_changes(seeds()[case.seed].data, case.data):
        yield case._replace(data=data)


def prepare() -> None:
    limit_memory()
    signal.signal(signal.SIGALRM, _expire)


def _expire(number: int, frame: FrameType | None) -> None:
    raise LoopedError


def in_time(action: Callable[[], Any]) -> Any:
    """What an action gives. Raises LoopedError if that takes too long."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        return action()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run(case: Case) -> Result:
    counts = Counter({CASES: 1})
    try:
        module = BytecodeModule.load(case.data)
    except StatusError as error:
        counts[f"refused with {error.code.name}"] += 1
        return [], counts
    counts["loaded"] += 1
    try:
        if seeds()[case.seed].device:
            return _on_device(case), counts
        ends = {tier: _endings(case, module, tier) for tier in TIERS}
    except LoopedError:
        counts["looped in a call"] += 1
        return [], counts
    first, *others = TIERS
    return [
        f"{tier}: {mine}, {first}: {expected}"
        for tier in others
        for expected, mine in zip(ends[first], ends[tier], strict=True)
        if mine != expected
    ], counts


def _endings(case: Case, module: BytecodeModule, tier: str) -> list[Ending]:
    """What all functions of a module do, beside one that must keep working, and that nothing is left."""
    chance = random.Random(case.number)
    context = Context(RefTypes(), tier=tier)
    context.register([BytecodeModule.load(KNOWN_GOOD)])
    ends: list[Ending] = []
    try:
        in_time(lambda: context.register([module]))
    except StatusError as error:
        ends.append((error.code.name, error.message))
    else:
        for name in _chosen(case, module.export_names(), chance):
            ends.append(_called(context, f"{module.name}.{name}", chance))
    if context.invoke(context.lookup("good.double"), [21]) != [42]:
        ends.append((tier, "gives wrong results afterwards"))
    table = context.table
    context.close()
    if table.live_count and not any(map(_is_in_itself, table._objects)):
        ends.append((tier, f"{table.live_count} handles are left"))
    return ends


def _is_in_itself(kept: object) -> bool:
    """Whether a program has made a circle, which stays with its context: no count of references ends it."""
    return isinstance(kept, VmList) and any(item is kept for item in islice(kept, SHOWN))


def _chosen(case: Case, names: Sequence[str], chance: random.Random) -> list[str]:
    """Functions whose code is damaged, and some others."""
    whole, exports = seeds()[case.seed].data, _layout(case.seed).exports
    damaged = [
        name
        for name, body in exports.items()
        if whole[body.start : body.stop] != case.data[body.start : body.stop]
    ]
    some = {*damaged[:MOST], *chance.sample(list(names), min(len(names), OTHERS))}
    return [name for name in names if name in some and not name.startswith("__")]


def _called(context: Context, name: str, chance: random.Random) -> Ending:
    """A call with edge values."""
    try:
        function = context.lookup(name)
        given = arguments(function.cconv, chance)
        results = in_time(lambda: context.invoke(function, given))
    except StatusError as error:
        return name, error.code.name, error.message
    return name, "done", *(_seen(value) for value in (*results, *given))


def _seen(value: object) -> object:
    if isinstance(value, float):
        return "nan" if value != value else struct.pack("<d", value)
    if isinstance(value, VmBuffer):
        return value.length, value.view[:SHOWN].tobytes()
    return len(value) if isinstance(value, VmList) else value


def arguments(cconv: str, chance: random.Random) -> Sequence[object]:
    """Values for a calling convention; now and then one too few or too many."""
    made: list[object] = []
    for item in cconv[1:].partition("_")[0]:
        if item in "iI":
            made.append(chance.choice(_EDGE_INTEGERS))
        elif item in "fF":
            made.append(chance.choice(_EDGE_FLOATS))
        elif item == "r":
            made.append(chance.choice((None, VmBuffer(64))))
    if chance.random() < 0.05:
        made = made[:-1] if made else [1]
    return made


def _on_device(case: Case) -> list[str]:
    """Calls a module in a session. Its kernels are machine code, and the device runs none."""
    if case.number // len(seeds()) % _DEVICE_EVERY:
        return []
    chance = random.Random(case.number)
    with jitree.Session(device=seeds()[case.seed].device, tier=chance.choice(TIERS)) as session:
        session.load(KNOWN_GOOD)
        with suppress(StatusError):
            module = in_time(lambda: session.load(case.data))
            for name in module:
                with suppress(StatusError):
                    image = np.full((8, 8), chance.choice(_EDGE_FLOATS), np.float32)
                    given = image if chance.random() < 0.9 else None
                    in_time(partial(module[name], given))
        right = session.call("good.double", 21) == 42
    return [] if right else ["the session gives wrong results afterwards"]


KNOWN_GOOD: Final = (
    Assembler("good").function("double", "0i_i", "%i1 = add.i32 %i0, %i0\nreturn [%i1]").build("plain")
)
CAMPAIGN: Final = Campaign(
    "damaged modules", generate, run, smaller, lambda case: case.data, batch=200, seconds=20, prepare=prepare
)
