"""Programs to time, as a JSON list says: name, module (path beside the list), function and arguments.

Arguments are numbers or shapes with an element type: ``4x4xf32`` (random), ``4xi32=7`` (all 7), ``f32=0.5``
(no dimensions), or arrays of files beside the list (``x.npy``, or ``x.npz`` with one array).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import jitree

_TYPES = {"f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64}

Call = Callable[[], list[np.ndarray[Any, Any]]]
"""Calls the program with arrays on the device and reads all results back."""


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


def peer_call(case: Case, device: str) -> Call:
    """By iree.runtime."""
    function, place = peer_function(case, device)
    placed = [place(item) if isinstance(item, np.ndarray) else item for item in case.arguments]

    def call() -> list[np.ndarray[Any, Any]]:
        results = function(*placed)
        return [item.to_host() for item in (results if isinstance(results, tuple) else (results,))]

    return call


def own_call(case: Case, session: jitree.Session) -> Call:
    """By jitree, in a new session."""
    function = session.load(case.module)[case.function]
    placed = [session.to_device(item) if isinstance(item, np.ndarray) else item for item in case.arguments]

    def call() -> list[np.ndarray[Any, Any]]:
        results = function(*placed)
        return [np.asarray(item) for item in (results if isinstance(results, tuple) else (results,))]

    return call


def check(case: Case, theirs: Call, own: Call) -> None:
    """Both give the same results."""
    for expected, actual in zip(theirs(), own(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3, err_msg=case.name)
