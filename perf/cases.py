"""Programs to time, as a JSON list says: name, module (path beside the list), function and arguments.

Arguments are numbers or shapes with an element type: ``4x4xf32`` (random), ``4xi32=7`` (all 7), ``f32=0.5``
(no dimensions), or arrays of files beside the list (``x.npy``, or ``x.npz`` with one array).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from comparison import alternate, row

import jitree

_TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64}

DEVICE, NUMPY = "device", "numpy"
"""Where arguments come from: arrays on the device, or numpy arrays."""
Call = Callable[[], list[Any]]
"""Calls the program and reads all results back."""


@dataclass(frozen=True)
class Case:
    name: str
    module: Path
    function: str
    arguments: tuple[Any, ...]


def read_cases(path: Path, only: str = "") -> Iterator[Case]:
    """Those of a list whose name contains what the pattern ``only`` finds."""
    random = np.random.default_rng(0)
    for item in json.loads(path.read_text()):
        if re.search(only, item["name"]):
            arguments = tuple(_argument(spec, random, path.parent) for spec in item["args"])
            yield Case(item["name"], path.parent / item["module"], item["function"], arguments)


def _argument(spec: Any, random: np.random.Generator, folder: Path) -> Any:
    if not isinstance(spec, str):
        return spec
    if spec.endswith((".npy", ".npz")):
        found = np.load(folder / spec)
        return found if isinstance(found, np.ndarray) else next(iter(found.values()))
    shape, _, value = spec.partition("=")
    *sizes, name = shape.split("x")
    dimensions, element = tuple(map(int, sizes)), _TYPES[name]
    if value:
        return np.full(dimensions, float(value), element)
    if np.issubdtype(element, np.floating):
        return (random.standard_normal(dimensions) * 0.5).astype(element)
    return random.integers(-4, 4, dimensions).astype(element)


def peer_function(case: Case, device: str) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """(the function in iree.runtime, what puts an array on its device)"""
    import iree.runtime

    config = iree.runtime.Config(device)
    context = iree.runtime.SystemContext(config=config)
    context.add_vm_module(iree.runtime.VmModule.mmap(context.instance, str(case.module)))
    (name,) = (name for name in context.modules.keys() if name != "hal")  # noqa: SIM118  a tuple-like object
    return context.modules[name][case.function], partial(iree.runtime.asdevicearray, config.device)


def peer_call(case: Case, device: str, source: str = DEVICE) -> Call:
    """By iree.runtime."""
    function, place = peer_function(case, device)
    arguments = _placed(case, source, place)

    def call() -> list[Any]:
        results = function(*arguments)
        return [
            item.to_host() if hasattr(item, "to_host") else item
            for item in (results if isinstance(results, tuple) else (results,))
        ]

    return call


def own_call(case: Case, session: jitree.Session, source: str = DEVICE) -> Call:
    """By jitree, in a new session."""
    function = session.load(case.module)[case.function]
    arguments = _placed(case, source, session.to_device)

    def call() -> list[Any]:
        results = function(*arguments)
        return [np.asarray(item) for item in (results if isinstance(results, tuple) else (results,))]

    return call


def _placed(case: Case, source: str, place: Callable[[Any], Any]) -> list[Any]:
    return [
        place(item) if source == DEVICE and isinstance(item, np.ndarray) else item for item in case.arguments
    ]


def check(case: Case, theirs: Call, own: Call) -> None:
    """Both give the same results."""
    for expected, actual in zip(theirs(), own(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3, err_msg=case.name)


def both_times(
    case: Case, device: str, session: jitree.Session, seconds: float, source: str = DEVICE
) -> list[float]:
    """Seconds of a call by iree.runtime and by jitree, whose results agree."""
    theirs, own = peer_call(case, device, source), own_call(case, session, source)
    check(case, theirs, own)
    return alternate([theirs, own], seconds)


def compare(
    cases: Iterable[Case], device: str, seconds: float, source: str = DEVICE, **options: Any
) -> dict[str, float]:
    """Prints a row for each case; how many times as long iree.runtime takes, by name. ``options``
    are those of the sessions."""
    ratios = {}
    for case in cases:
        with jitree.Session(device=device, **options) as session:
            peer_time, own_time = both_times(case, device, session, seconds, source)
        ratios[case.name] = peer_time / own_time
        print(row(case.name, peer_time, own_time), flush=True)
    return ratios
