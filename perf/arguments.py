"""Times what arguments and calls of other kinds cost beyond the plain call with arrays of the session.

    python perf/arguments.py [--device local-sync] [--tier fast] [--seconds 0.3] [--only REGEX]

Each line has the time of a call and that of its plain counterpart, measured alternately in one run: their
ratio and their difference. There are rows of torch where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from comparison import alternate

import jitree

PROGRAMS = Path(__file__).parent / "programs"
_AWAITED = 200
"""Calls of a row of awaited ones."""

Row = tuple[str, Callable[[], Any], Callable[[], Any]]
"""What it is, the plain call, the other one."""


class _Producer:
    """An array with the Python protocol of DLPack only."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class _Donations:
    """Gives a fresh array of the device to each call."""

    def __init__(self, session: jitree.Session, array: np.ndarray[Any, Any]) -> None:
        self._make = partial(session.to_device, array)

    def plain(self, function: Any) -> Any:
        return function(self._make())

    def donated(self, function: Any) -> Any:
        return function(jitree.donate(self._make()))


def _awaited(function: Any, *arguments: Any) -> Callable[[], Any]:
    async def calls() -> float:
        begun = time.perf_counter()
        for _ in range(_AWAITED):
            await function.async_(*arguments)
        return time.perf_counter() - begun

    return lambda: asyncio.run(calls())


def _repeated(function: Any, *arguments: Any) -> Callable[[], Any]:
    async def calls() -> None:
        for _ in range(_AWAITED):
            function(*arguments)

    return lambda: asyncio.run(calls())


def _aligned(count: int) -> np.ndarray[Any, Any]:
    """Zeros where programs assume arrays to lie."""
    block = np.zeros(count + 16, np.float32)
    return block[-block.ctypes.data // 4 % 16 :][:count]


def rows(session: jitree.Session, other: jitree.Session) -> Iterator[Row]:
    target = "_cuda" if session.device.uri.startswith("cuda") else ""
    here = session.load(PROGRAMS / f"arguments{target}.vmfb")
    there = other.load(PROGRAMS / f"arguments_async{target}.vmfb")
    array = np.arange(16, dtype=np.float32)
    x, y, away = session.to_device(array), session.to_device(array), other.to_device(array)
    add, single = partial(here.add, x, y), partial(here.single, 1.0, 2.0)
    submitted = partial(there.add, away, away)
    yield "numpy", add, partial(here.add, array, array)
    yield "producer", partial(here.add, x, array), partial(here.add, x, _Producer(array))
    yield "numpy scalars", add, partial(here.scalar, np.float32(3), np.float32(3))
    yield "Python's numbers", add, partial(here.scalar, 3.0, 4)
    yield "f64 scalars", add, partial(here.scalar, np.float64(3), np.float64(3))
    yield "numpy integers", add, partial(here.scalar, np.int64(3), np.uint8(3))
    yield "list of floats", add, partial(here.add, x, array.tolist())
    yield "list of f64", add, partial(here.add, x, list(array.astype(np.float64)))
    yield "by name", add, partial(here.add, input0=x, input1=y)
    yield "tuple", add, partial(here.two, x, y)
    scalar = session.to_device(array[3])
    yield "rank 0", add, partial(here.scalar, scalar, scalar)
    submitted()
    yield "another session", add, partial(here.add, x, submitted())
    yield "out", partial(here.into, x, y), partial(here.into, x, out=y)
    if not target:  # a GPU does not write to memory of the host
        yield "out, numpy", partial(here.into, x, y), partial(here.into, x, out=np.asarray(y))
    donations = _Donations(session, array)
    yield "donated", partial(donations.plain, here.twice), partial(donations.donated, here.next)
    yield "consumed", partial(donations.plain, here.twice), partial(donations.plain, here.next)
    yield "f16", single, partial(here.half, 1.0, 2.0)
    yield "bf16", single, partial(here.brain, 1.0, 2.0)
    yield "bf16 scalars", single, partial(here.brain, *[ml_dtypes.bfloat16(2)] * 2)
    signed = array.astype(np.int8)
    given = partial(here.bytes, signed)
    yield "unsigned", given, partial(here.bytes, signed.view(np.uint8))
    yield "booleans", given, partial(here.bytes, signed > 3)
    yield "list of booleans", given, partial(here.bytes, (signed > 3).tolist())
    yield "list of i32", single, partial(here.list, [1, 2])
    yield "list of 20", single, partial(here.list, [1, 2] * 10)
    yield "list of anything", single, partial(here.mixed, [1, 2])
    yield "list with an array", single, partial(here.mixed, [x, 2])
    yield "list of lists", single, partial(here.nested, [[1], [2, 3]])
    yield "list that is made", single, partial(here.pair, 5)
    yield "submit", add, partial(here.add.submit, x, y)
    yield "async submit", submitted, partial(there.add.submit, away, away)
    yield "async f16", partial(there.single, 1.0, 2.0), partial(there.half, 1.0, 2.0)
    yield f"await * {_AWAITED}", _repeated(here.add, x, y), _awaited(here.add, x, y)
    yield f"await async * {_AWAITED}", _repeated(there.add, away, away), _awaited(there.add, away, away)
    yield "to numpy", lambda: np.asarray(add()), partial(here.add.to("numpy"), x, y)
    large = _aligned(80_000)
    owned = partial(here.large, session.to_device(large))
    if not target:  # it is copied to a GPU
        yield "large numpy", owned, partial(here.large, large)
    view = partial(here.view, x, y)
    yield "view, numpy", view, partial(here.view, array, array)
    yield "three of numpy", partial(here.three, x, y, x), partial(here.three, array, array, array)
    if importlib.util.find_spec("torch") is not None:
        import torch

        tensor = torch.arange(16, dtype=torch.float32, device="cuda" if target else "cpu")
        yield "to torch", add, partial(here.add.to("torch"), x, y)
        if not target:
            yield "large torch", owned, partial(here.large, torch.from_numpy(large))
        yield "three of torch", partial(here.three, x, y, x), partial(here.three, tensor, tensor, tensor)


def main() -> int:
    parser = argparse.ArgumentParser(description="times arguments and calls of other kinds")
    parser.add_argument("--device", default="local-sync")
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with (
        jitree.Session(device=options.device, tier=options.tier) as session,
        jitree.Session(device=options.device, tier=options.tier) as other,
    ):
        for name, plain, call in rows(session, other):
            if not re.search(options.only, name):
                continue
            for _ in range(70):
                plain(), call()
            before, now = alternate([plain, call], options.seconds)
            count = int(name.rpartition("* ")[2]) if "* " in name else 1
            print(
                f"{name:20s} plain {before * 1e6 / count:8.2f} us  this {now * 1e6 / count:8.2f} us  "
                f"ratio {now / before:6.2f}  beyond {(now - before) * 1e6 / count:7.2f} us",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
