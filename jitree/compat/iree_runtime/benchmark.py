"""Measures functions by ``jitree benchmark``, in another process."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any, Final, NamedTuple

import jitree
from jitree.base import private_files
from jitree.codegen.image import cache
from jitree.compat.iree_runtime.dtypes import DTYPE_TO_ABI_TYPE
from jitree.compat.iree_runtime.vm import VmModule

__all__ = ["benchmark_exe", "benchmark_module"]


class BenchmarkResult(NamedTuple):
    """A row of the report; times are texts with their unit."""

    benchmark_name: str
    time: str
    cpu_time: str
    iterations: str
    report: dict[str, Any]
    """All of the row."""


class BenchmarkToolError(Exception):
    """The command failed, or a function that it measured."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BenchmarkTimeoutError(Exception):
    """The command took too long."""


_NAME: Final = "iree-benchmark-module"


def benchmark_exe() -> str:
    """The command that measures: ``jitree benchmark`` of this process's Python and package, as a file in the
    folder of machine code."""
    folder = os.path.join(cache.settle().folder, "tools")
    package = os.path.dirname(os.path.dirname(jitree.__file__))
    lines = (
        "#!/bin/sh",
        f"PYTHONPATH={shlex.quote(package)}${{PYTHONPATH:+:$PYTHONPATH}}",
        "export PYTHONPATH",
        f'exec {shlex.quote(sys.executable)} -m jitree benchmark "$@"\n',
    )
    script = "\n".join(lines).encode()
    path = os.path.join(folder, _NAME)
    if private_files.read(folder, _NAME) != script:
        private_files.write(folder, _NAME, script)
        os.chmod(path, 0o700)
    return path


def benchmark_module(
    module: VmModule | str | os.PathLike[str],
    entry_function: str | None = None,
    inputs: list[Any] | None = None,
    timeout: float | None = None,
    executable: str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> list[BenchmarkResult]:
    """Times a function with arrays (of one value, or few) or texts of ``--input=``; other keywords are flags
    of the command, lists give a flag several times."""
    if "benchmark_out" in kwargs or "benchmark_out_format" in kwargs:
        raise ValueError("benchmark_module reads results from its own JSON file")
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        options = {**kwargs, "benchmark_out": path, "benchmark_out_format": "json"}
        arguments, flatbuffer = _build_benchmark_args(module, entry_function, inputs, executable, **options)
        _run_benchmark(arguments, flatbuffer, timeout)
        with open(path) as file:
            return _parse_benchmark_results(file.read())


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
        names = [name for name in module.function_names if name != "__init"]
        if entry_function is None and len(names) > 1:
            raise ValueError(f"No function specified with multiple options {names}")
        entry_function = names[0] if entry_function is None else entry_function
        if entry_function not in names:
            raise ValueError(f"Attempted to benchmark unknown function {entry_function} of options {names}")
        flatbuffer = module.stashed_flatbuffer_blob
    arguments.append(f"--module={'-' if flatbuffer is not None else module}")
    if entry_function is not None:
        arguments.append(f"--function={entry_function}")
    for name, value in kwargs.items():
        for item in value if isinstance(value, (list, tuple)) else (value,):
            arguments.append(f"--{name}={str(item).lower() if isinstance(item, bool) else item}")
    arguments += [f"--input={_input_text(value)}" for value in inputs or ()]
    return arguments, flatbuffer


def _input_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    shape = "".join(f"{length}x" for length in value.shape)
    elements = value.reshape(-1)
    shown = elements[:1] if elements.size and (elements == elements[0]).all() else elements
    return f"{shape}{DTYPE_TO_ABI_TYPE[value.dtype]}={','.join(map(str, shown))}"


def _run_benchmark(arguments: list[str], flatbuffer: Any = None, timeout: float | None = None) -> None:
    import subprocess

    try:
        done = subprocess.run(arguments, input=flatbuffer, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise BenchmarkTimeoutError(f"Benchmark timed out after {timeout} seconds") from None
    if done.returncode:
        output, errors = done.stdout.decode(), done.stderr.decode()
        raise BenchmarkToolError(f"stderr:\n{errors}\nstdout:\n{output}")


def _parse_benchmark_results(report: str) -> list[BenchmarkResult]:
    """An empty report has no rows. BenchmarkToolError for a function that failed."""
    rows = json.loads(report)["benchmarks"] if report.strip() else []
    return [_result(row) for row in rows]


def _result(row: dict[str, Any]) -> BenchmarkResult:
    if row.get("error_occurred"):
        raise BenchmarkToolError(f"{row['name']}: {row['error_message']}")
    is_share = row.get("aggregate_unit") == "percentage"
    unit, factor = ("%", 100) if is_share else (row["time_unit"], 1)
    time, cpu_time = (f"{row[name] * factor} {unit}" for name in ("real_time", "cpu_time"))
    return BenchmarkResult(row["name"], time, cpu_time, str(row["iterations"]), row)
