"""Measuring functions by ``jitree benchmark``, which another process runs."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NamedTuple

import numpy as np

from jitree.compat.iree_runtime.dtypes import DTYPE_TO_ABI_TYPE
from jitree.compat.iree_runtime.vm import VmModule

__all__ = ["benchmark_exe", "benchmark_module"]


class BenchmarkResult(NamedTuple):
    """A row of the report; times are texts with their unit."""

    benchmark_name: str
    time: str
    cpu_time: str
    iterations: str
    report: str


class BenchmarkToolError(Exception):
    """The command failed."""


class BenchmarkTimeoutError(Exception):
    """The command took too long."""


def benchmark_exe() -> str:
    """The command that measures; ``jitree benchmark`` follows from its name."""
    return os.path.join(os.path.dirname(__file__), "iree-benchmark-module")


def benchmark_module(
    module: VmModule | str | os.PathLike[str],
    entry_function: str | None = None,
    inputs: list[Any] | None = None,
    timeout: float | None = None,
    executable: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> list[BenchmarkResult]:
    """Times a function with arrays (each of one value, or few) or texts of ``--input=``; other keywords are
    flags of the command, lists give a flag several times."""
    arguments, flatbuffer = _build_benchmark_args(module, entry_function, inputs, executable, **kwargs)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        if flatbuffer is not None:
            path = os.path.join(folder, "module.vmfb")
            with open(path, "wb") as file:
                file.write(flatbuffer)
            arguments.insert(1, f"--module={path}")
        return _parse_benchmark_results(_run_benchmark(arguments, timeout))


def _build_benchmark_args(
    module: Any,
    entry_function: str | None = None,
    inputs: list[Any] | None = None,
    executable: Any = None,
    **kwargs: Any,
) -> tuple[list[str], Any]:
    """The command, and the bytes of a module that is not in a file."""
    arguments = [benchmark_exe() if executable is None else os.fspath(executable)]
    flatbuffer = None
    if isinstance(module, VmModule):
        flatbuffer = module.stashed_flatbuffer_blob
        if entry_function is None:
            entry_function = _only_function(module)
    else:
        arguments.append(f"--module={os.fspath(module)}")
    if entry_function is not None:
        arguments.append(f"--function={entry_function}")
    for name, value in kwargs.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        arguments += [f"--{name}={item}" for item in values]
    arguments += [f"--input={_input_text(value)}" for value in inputs or ()]
    return arguments, flatbuffer


def _only_function(module: VmModule) -> str:
    names = [name for name in module.function_names if not name.startswith("__")]
    if len(names) != 1:
        raise ValueError(f"the module has {len(names)} functions; state one of them as entry_function")
    return names[0]


def _input_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    shape = "".join(f"{size}x" for size in array.shape)
    elements = array.reshape(-1)
    shown = elements[:1] if elements.size and (elements == elements[0]).all() else elements
    return f"{shape}{DTYPE_TO_ABI_TYPE[array.dtype]}={','.join(str(item) for item in shown.tolist())}"


def _run_benchmark(arguments: list[str], timeout: float | None) -> str:
    import subprocess

    command = arguments
    if arguments[0] == benchmark_exe():
        command = [sys.executable, "-m", "jitree", "benchmark", *arguments[1:]]
    try:
        done = subprocess.run(
            [*command, "--benchmark_format=json"],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkTimeoutError(f"Benchmark timed out after {timeout} seconds") from None
    if done.returncode:
        raise BenchmarkToolError(f"Benchmark failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _parse_benchmark_results(text: str) -> list[BenchmarkResult]:
    report = json.loads(text[text.index("{") :])
    return [
        BenchmarkResult(
            row["name"], f"{row['real_time']} {row['time_unit']}", f"{row['cpu_time']} {row['time_unit']}",
            str(row["iterations"]), json.dumps(row),
        )
        for row in report["benchmarks"]
    ]  # fmt: skip
