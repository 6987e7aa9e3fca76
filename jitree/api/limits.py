"""What a sandbox lets programs have."""

from __future__ import annotations

from typing import Any, Final

from jitree.api.calls.refusal import describe
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, ResourceExhaustedError
from jitree.vmfb.archive import Source, separate_content


class Limits(NamedTuple):
    """Limits of a sandbox; None limits nothing. What goes beyond fails with RESOURCE_EXHAUSTED, which names
    the limit and its value; time with DEADLINE_EXCEEDED."""

    memory: int | None = None
    """Bytes that the program's buffers, lists and globals have at one time, results that the host holds and
    copies of its arguments included."""
    time: float | None = None
    """Seconds of one call."""
    instructions: int | None = None
    """Instructions of one call, or of loading: of bytecode and of VMVX kernels, on all threads together. The
    session runs on the plain tier then, the only one that counts each."""
    recursion: int | None = None
    """Calls one inside the other."""
    handles: int | None = None
    """Objects that registers, globals and lists refer to at one time, those of the session among them."""
    output: int | None = None
    """Bytes of the results of one call."""
    load_time: float | None = None
    """Seconds of loading modules."""
    load_size: int | None = None
    """Bytes of all files that are loaded."""


TIME: Final = "the limit on time"
LOAD_TIME: Final = "the limit on load time"
_SECONDS = ("time", "load_time")
_MOST = 1 << 62
"""The largest number that machine code can count to."""
_LONGEST = 1e9
"""Seconds that clocks can count."""


def check(limits: object) -> Limits:
    """The limits, none of them larger than can be counted. INVALID_ARGUMENT for what are no limits."""
    if not isinstance(limits, Limits):
        raise InvalidArgumentError(f"limits: expected jitree.Limits but got a {type(limits).__name__}")
    counted: dict[str, Any] = {}
    for name, value in limits._asdict().items():
        kinds = (int, float) if name in _SECONDS else (int,)
        if value is not None and (type(value) not in kinds or not value >= 0):
            what = "seconds" if name in _SECONDS else "a whole number"
            raise InvalidArgumentError(
                f"limits: {name} is {describe(value)}; expected {what} from 0 on, or None"
            )
        counted[name] = None if value is None else min(value, _LONGEST if name in _SECONDS else _MOST)
    return Limits(**counted)


def limited_content(source: Source, most: int | None, loaded: int) -> memoryview:
    """The bytes of a file, ``loaded`` having been loaded before it. RESOURCE_EXHAUSTED for more than ``most``
    in all; no more than that is read."""
    data = separate_content(source, -1 if most is None else most - loaded + 1)
    if most is not None and loaded + data.nbytes > most:
        raise ResourceExhaustedError(
            f"the module has {data.nbytes} bytes or more, and {loaded} of {most} bytes are loaded (the limit "
            "on load size)"
        )
    return data
