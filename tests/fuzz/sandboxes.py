"""The random nests and kernels of this folder in sandboxes: they end as they do on the plain tier outside of
one, and leave the same memory.

Nests have even numbers, kernels odd ones; each twentieth of both also runs in a process of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import jitree
from jitree.codegen import image
from jitree.errors import StatusError
from tests.assembler import Assembler
from tests.dispatch.harness import start_here
from tests.dispatch.native.nests.programs import REFS, SIZES
from tests.fuzz import kernels, nests
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.nests import APART, LENGTH, Outcome, disagreements, memory_of

LIMITS: Final = jitree.Limits(memory=1 << 26)
INPUTS: Final = 8
"""Calls of each."""
CONFINED: Final = 20
"""Of so many cases one runs in a process of its own, which takes a second to begin."""
_STORAGE: Final = ("hal_inline.buffer.storage", "0r_r")
_BUFFER: Final = ("hal_inline.buffer_view.buffer", "0r_r")
_SUBSPAN: Final = ("hal_inline.buffer.subspan", "0rII_r")
_LOAD: Final = ("hal_loader.executable.load", "0rrr_r")
_DISPATCH: Final = ("hal_loader.executable.dispatch", "0riiiiCiDCrIID_v")
_WORKGROUPS: Final = 3

Ways = dict[str, Callable[[], "jitree.Session"]]
_WAYS: Final[Ways] = {
    "plain": lambda: jitree.Session("local-sync", tier="plain"),
    "fast, confined": lambda: jitree.Session("local-sync", tier="fast", sandbox=True, limits=LIMITS),
    "native, confined": lambda: jitree.Session("local-sync", tier="native", sandbox=True),
    "native, limited": lambda: jitree.Session("local-sync", tier="native", sandbox=True, limits=LIMITS),
}
_PROCESS: Final[Ways] = {"a process": lambda: jitree.Session("local-sync", sandbox="process")}


def _wide(first: int, count: int) -> list[str]:
    return [f"%i{register}:{register + 1}" for register in range(first, first + 2 * count, 2)]


def _parts(places: Sequence[str], buffer: str, first: int) -> Iterator[str]:
    """Ranges of a buffer as buffers of bytecode, from a register on."""
    length = "%i60:61"
    yield f"{length} = const.i64 {LENGTH}"
    for register, place in enumerate(places, first):
        yield f"[%r{register}] = call @{_SUBSPAN[0]} [{buffer}, {place}, {length}]"
        yield f"[%r{register}] = call @{_STORAGE[0]} [%r{register}]"


def nest(number: int) -> bytes:
    """A module with ``g`` of memory, of places of buffers in it, and of numbers: a nest on these."""
    places, numbers = _wide(0, REFS), _wide(2 * REFS, SIZES)
    buffers = [f"%r{2 + ref}" for ref in range(REFS)]
    lines = [
        f"[%r1] = call @{_BUFFER[0]} [%r0]",
        *_parts(places, "%r1", 2),
        f"[] = call @f [{', '.join((*buffers, *numbers))}]",
        "return [%r0]",
    ]
    module = nests.nest(number)
    for imported in (_BUFFER, _SUBSPAN, _STORAGE):
        module.import_function(*imported)
    return module.function("g", f"0r{'I' * (REFS + SIZES)}_r", "\n".join(lines)).build()


def kernel(number: int) -> bytes:
    """The same with numbers of workgroups and constants: a dispatch."""
    module = Assembler("m", ref_global_count=1)
    for imported in (_BUFFER, _SUBSPAN, _STORAGE, _LOAD, _DISPATCH):
        module.import_function(*imported)
    for data in (b"vmvx-bytecode-fb", kernels.kernel(number).module().build()):
        module.rodata(data)
    count, first = kernels.BINDINGS, 2 * kernels.BINDINGS
    places = _wide(0, count)
    narrow = [f"%i{register}" for register in range(first, first + _WORKGROUPS + kernels.WORDS)]
    buffers = [f"%r{5 + binding}" for binding in range(count)]
    bindings = [item for buffer in buffers for item in (buffer, "%i62:63", "%i60:61")]
    lines = [
        f"[%r1] = call @{_BUFFER[0]} [%r0]",
        *_parts(places, "%r1", 5),
        "%r2 = global.load.ref 0, !hal.executable",
        "%i62:63 = const.i64.zero",
        f"call.variadic @{_DISPATCH[0]} [{'0xFFFF, ' * 5}{kernels.WORDS}, {count}] "
        f"[{', '.join(('%r2', '%i62', *narrow, *bindings))}]",
        "return [%r0]",
    ]
    load = f"""
        %r0 = const.ref.rodata 0
        %r1 = const.ref.rodata 1
        [%r0] = call @{_LOAD[0]} [%r0, %r1, %r2]
        global.store.ref 0, !hal.executable, %r0
        return []
    """
    module.function("__init", "0v_v", load)
    return module.function("g", f"0r{'I' * count}{'i' * len(narrow)}_r", "\n".join(lines)).build()


def _called(function: Any, blocks: int, numbers: Sequence[int]) -> Outcome:
    """A call, which may have wrapped its memory, or not: what is there after a failure says nothing."""
    try:
        result = function(memory_of(blocks), *numbers)
    except StatusError as error:
        return Outcome(error.code.name, b"")
    return Outcome("done", np.asarray(result).tobytes())


def run(number: int) -> Result:
    """What sandboxes make of a program that is another one without."""
    number, is_kernel = divmod(number, 2)
    if is_kernel:
        built, blocks = kernel(number), kernels.BINDINGS
        given = [(*one.places, *one.workgroups, *one.constants) for one in kernels.inputs(number, INPUTS)]
    else:
        built, blocks = nest(number), REFS
        given = [(*APART, *numbers) for numbers in nests.inputs(number, INPUTS)]
    ways = _WAYS if number % CONFINED else _WAYS | _PROCESS
    ends: list[dict[str, Outcome]] = [{} for _ in given]
    with patch.object(image.Provider, "_start", start_here):
        for way, open_session in ways.items():
            with open_session() as session:
                function = session.load(built)["g"]
                for numbers, outcomes in zip(given, ends, strict=True):
                    outcomes[way] = _called(function, blocks, numbers)
    counts: Counter[str] = Counter({CASES: 1, "processes": len(ways) - len(_WAYS)})
    counts["calls"] += len(ways) * len(given)
    counts["calls that end with a status"] += sum(outcomes["plain"].end != "done" for outcomes in ends)
    what = f"{'kernel' if is_kernel else 'nest'} {number}"
    return [
        line
        for numbers, outcomes in zip(given, ends, strict=True)
        for line in disagreements(f"{what} of {numbers}", outcomes)
    ], counts


CAMPAIGN: Final = Campaign("nests and kernels, confined", int, run, batch=2, prepare=lambda: None)
"""Processes of sandboxes have address space of their own to limit."""
