"""What `pyproject.toml` says is needed is enough."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"iree": "iree-base-runtime"}
"""What installs a package of another name."""
OPTIONAL = {"MNN", "_tools", "onnx", "onnxruntime", "openvino", "ray", "torch", "triton"}
"""What benchmarks compare with, or make kernels with, where it is installed."""


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[><=; ]", requirement)[0] for requirement in requirements}


def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere, and those that packages of the tests import which it uses."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    if path.parent.name == "perf":
        for name in [name for name in found if name.startswith("tests.")]:
            for file in ROOT.joinpath(*name.split(".")).glob("*.py"):
                found |= imported(file)
    return found


def test_floors_parse_what_is_generated() -> None:
    """Texts have opaque pointers, which LLVM 15 of llvmlite 0.44 does not read."""
    floors = dict(re.split(">=|,", requirement)[:2] for requirement in PROJECT["dependencies"])
    assert (floors["llvmlite"], floors["numba"]) == ("0.45", "0.62")
    assert floors["ml_dtypes"] == "0.5", "which is the first that has float8_e8m0fnu and int2"


def test_benchmarks_need_their_extra_alone() -> None:
    given = names(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["perf"])
    scripts = list((ROOT / "perf").glob("*.py"))
    own = {path.stem for path in scripts} | {"jitree", "tests"}
    for path in scripts:
        needed = (
            {name.partition(".")[0] for name in imported(path)}
            - own
            - OPTIONAL
            - set(sys.stdlib_module_names)
        )
        missing = {name for name in needed if PACKAGES.get(name, name) not in given}
        assert not missing, f"{path.name} needs {missing}: the extra `perf` should have it"


def test_nothing_of_an_experiment_is_kept() -> None:
    """What pip downloads for one is no part of the project, nor what a command wrote to ``-``."""
    assert not [path.name for pattern in ("*.whl", "-") for path in ROOT.glob(pattern)]


def test_benchmarks_import_what_there_is() -> None:
    """Nobody runs all of them after a change of names."""
    for path in (ROOT / "perf").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").partition(".")[0] != "jitree":
                continue
            try:
                module = importlib.import_module(str(node.module))
                for item in node.names:
                    if not hasattr(module, item.name):
                        importlib.import_module(f"{node.module}.{item.name}")
            except ModuleNotFoundError as error:
                assert error.name in OPTIONAL, f"{path.name}: {error}"
