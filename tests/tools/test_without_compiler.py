"""Where the packages that make machine code are not installed, commands run, or say which they need."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.base.platform import MACHINE
from jitree.errors import not_installed
from tests.security.programs import VMVX

_JITREE = ("-m", "jitree")
_NEEDED = ("jitree", "numpy", "ml_dtypes")
_MISSING = re.compile(
    r"the Python package (llvmlite|numba) is not installed; numba and llvmlite compile machine code: "
    "pip install jitree brings them"
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what programs take that run on shipped machine code."""
    folder = tmp_path_factory.mktemp("packages")
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        place = Path(spec.submodule_search_locations[0])
        for path in (place, *place.parent.glob(f"{name}.libs")):
            (folder / path.name).symlink_to(path)
    return folder


def ended(packages: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(packages), "JITREE_CACHE_DIR": str(cache), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "--llvm", "--function=0", str(VMVX)],
        ["dump", "--asm", "--function=0", str(VMVX)],
        ["cache", "warm", str(VMVX)],
        ["run", f"--module={VMVX}", "--function=classify", "--input=8x8xf32=0.5", "--tier=native"],
    ],
    ids=" ".join,
)
def test_commands_that_need_it(arguments: list[str], packages: Path, tmp_path: Path) -> None:
    done = ended(packages, tmp_path, *_JITREE, *arguments)
    *_, last = done.stderr.splitlines()
    assert done.returncode == 1 and "UNAVAILABLE; " in last and _MISSING.search(last), done.stderr
    assert "defect" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "flag", ["--tier=auto", "--tier=fast", "--tier=plain", "--sandbox", "--sandbox=process"]
)
def test_what_runs_without_it(flag: str, packages: Path, tmp_path: Path) -> None:
    """Shipped tiers and both sandboxes; one call asks for no code."""
    if flag.endswith("=process") and MACHINE not in ("x86_64", "aarch64"):
        pytest.skip("no process can be confined")
    done = ended(
        packages,
        tmp_path,
        *_JITREE,
        "run",
        f"--module={VMVX}",
        "--function=classify",
        "--input=8x8xf32=0.5",
        flag,
    )
    assert done.returncode == 0 and "10xf32=0.025" in done.stdout, done.stderr
    assert not done.stderr


def test_what_is_said_to_be_compiled(packages: Path, tmp_path: Path) -> None:
    done = ended(packages, tmp_path, *_JITREE, "dump", "--tiers", str(VMVX))
    *_, blank, last = done.stdout.splitlines()
    assert done.returncode == 0 and blank == "" and _MISSING.fullmatch(last)


def test_a_program_goes_without_and_says_what_it_takes(packages: Path, tmp_path: Path) -> None:
    """Tier auto, once machine code would pay, once in a process; the answers are right."""
    program = (
        "import warnings, numpy as np, jitree\n"
        "x = np.full((8, 8), 0.5, 'f4')\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n"
        "    for calls in (0, 200):\n"
        f"        f = jitree.load({str(VMVX)!r}, device='local-sync').classify\n"
        "        while not found or calls:\n"
        "            assert np.asarray(f(x)).argmax() == 1\n"
        "            calls = max(calls - 1, 0)\n"
        "for warning in found: print(warning.message)\n"
    )
    done = ended(packages, tmp_path, "-c", program)
    assert _MISSING.search(done.stdout) and "what it is for is interpreted" in done.stdout, done.stderr
    assert len(done.stdout.splitlines()) == 1


def test_parts_of_packages() -> None:
    assert "pip install onnx" in not_installed(ModuleNotFoundError("no", name="onnx.helper"))
    for name in ("llvmlite", "llvmlite.binding.ffi"):
        assert _MISSING.fullmatch(not_installed(ModuleNotFoundError("no", name=name)))
    assert "libLLVM" in not_installed(ImportError("libLLVM.so is not there", name="llvmlite"))
