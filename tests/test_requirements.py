"""What `pyproject.toml` says is needed is enough."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
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


def test_the_bill_of_materials_is_of_what_is_there() -> None:
    """What `setup.py` puts into the wheel names all that has to be installed, and the bytes of files."""
    specification = importlib.util.spec_from_file_location("setup_file", ROOT / "setup.py")
    assert specification is not None and specification.loader is not None
    setup_file = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(setup_file)
    path = Path("jitree/codegen/image/shipped/base-x86-64-v3.image")
    made = setup_file.bill("1.2.3", [path])
    assert made == setup_file.bill("1.2.3", [path]) != setup_file.bill("1.2.4", [path])
    kinds = {kind: [one for one in made["components"] if one["type"] == kind] for kind in ("library", "file")}
    assert {one["name"] for one in kinds["library"]} == names(PROJECT["dependencies"])
    (file,) = kinds["file"]
    assert file["hashes"][0]["content"] == hashlib.sha256((ROOT / path).read_bytes()).hexdigest()
    known = {one["bom-ref"] for one in made["components"]}
    assert all(known.issuperset(one["dependsOn"]) for one in made["dependencies"])


def test_what_ci_installs_is_pinned() -> None:
    text = (ROOT / ".ci" / "requirements.txt").read_text(encoding="utf-8")
    pinned = {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)}
    extras = (PROJECT["optional-dependencies"][name] for name in ("test", "package", "site"))
    wanted = names([*PROJECT["dependencies"], *(text for extra in extras for text in extra), "setuptools"])
    assert {re.sub(r"\[.*", "", name).lower().replace("_", "-") for name in wanted} <= pinned
    assert all("--hash=sha256:" in part for part in re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:])
