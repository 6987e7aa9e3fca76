"""Where the packages that make machine code are not installed, commands run, or say which they need."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.base.platform import MACHINE
from jitree.errors import not_installed
from jitree.tools import cache, parameters
from jitree.tools.main import COMMANDS
from jitree.vmfb.decode import BytecodeModule
from tests.security.programs import DATA, NATIVE, VMVX
from tests.tools.command import ROOT

_JITREE = ("-m", "jitree")
_NEEDED = ("jitree", "numpy", "ml_dtypes")
_MISSING = re.compile(
    r"the Python package (llvmlite|numba) is not installed; numba and llvmlite compile machine code: "
    "pip install jitree brings them"
)
_CALL = ["--function=classify", "--input=8x8xf32=0.5"]
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""How ELF files name processors."""
COMMAND_LINES: dict[str, str] = {
    "run NATIVE CALL": "10xf32=0.025",
    "run VMVX CALL --tap=*softmax* --check_finite --timeout=60": "mean 0.1",
    "run VMVX CALL --profile=HERE/trace.json": "10xf32=0.025",
    "run VMVX CALL --prefer=fastest": "10xf32=0.025",
    "benchmark VMVX CALL --benchmark_min_time=3x": "BM_classify/process_time/real_time",
    "benchmark NATIVE CALL --benchmark_min_time=3x": "BM_classify/process_time/real_time",
    "diff VMVX NATIVE CALL --rtol=1e-3": "equal (rtol 0.001): 8 tensors compared",
    "diff NATIVE --device=local-sync --device=local-task CALL": "equal (exact): 8 tensors compared",
    "report VMVX CALL --output=HERE/page.html": "written to",
    "report NATIVE VMVX CALL --output=HERE/page.html": "written to",
    "reduce CHAIN --function=layers --input=4x8xf32=3e38 --save=HERE/saved": "makes nan at",
    "debug VMVX CALL --command=continue": "10xf32=0.025",
    "check CHECKS --filter=*.passes": "[       OK ] module.passes",
    "dump VMVX": "// @module : version 0",
    "dump --output=summary NATIVE": "Needs:      hal >= 7",
    "dump --verify VMVX": "nothing is wrong",
    "dump --output=executables NATIVE": "!the Python package pyelftools is not installed; install it",
    "dump --llvm --function=0 VMVX": "!",
    "dump --asm --function=0 VMVX": "!",
    "dump --time VMVX": "!",
    "run VMVX CALL --tier=native": "!",
    "benchmark VMVX CALL --tier=native": "!",
    "diff VMVX NATIVE CALL --tier=native": "!",
    "cache list": "0 images, 0 B of",
    "cache clear": "removed 0 images",
    "cache warm VMVX": "!",
    "cache pack VMVX -o HERE/model.jit": "!",
    "cache pack VMVX -o HERE/model.jit --processor=x86-64-v3,aarch64": "!",
    "compile MLIR -o HERE/made.vmfb": "!UNAVAILABLE; there is no iree-compile: pip install 'jitree[compile]'",
    "stub VMVX": "def classify(self",
    "parameters create --data=b=4xf32=2 --output=HERE/a.irpa": "1 entries, 16 total bytes",
    "parameters convert --parameters=HERE/a.irpa --output=HERE/b.irpa": "1 entries, 16 total bytes",
    "parameters dump --parameters=HERE/b.irpa": "`b`",
    "devices": "local-task://",
    "cpuinfo": " 1\n",
    "benchmark-executable --executable_format=embedded-elf-MACHINE --executable_file=HERE/library.so GRID":
        "BM_dispatch_1x1x1",
    "install-tools HERE/tools": "iree-run-module",
    "completion bash": "complete ",
}  # fmt: skip
"""By command line, what its output has; after "!" its one error, which without a text is that of a missing
compiler. Words in capitals stand for files and inputs."""

_ALL_IN_ONE = """
import io, json, os, sys
from unittest import mock
from jitree.tools.main import dispatch
found = []
for line in json.load(sys.stdin):
    out, error = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with mock.patch.multiple(sys, stdout=out, stderr=error):
        code = dispatch(line)
    out.seek(0), error.seek(0)
    found.append((code, out.read(), error.read()))
assert not {"numba", "llvmlite", "elftools"} & sys.modules.keys()
json.dump(found, sys.stdout)
"""


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


def ended(packages: Path, cache: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(packages), "JITREE_CACHE_DIR": str(cache), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(
        command, cwd="/", env=environment, input=stdin, capture_output=True, text=True, timeout=120
    )


@pytest.fixture(scope="module")
def outcomes(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What comes of each command line, all in one process: exit code, output, messages."""
    here = tmp_path_factory.mktemp("here")
    for row in BytecodeModule.load(NATIVE).module.rodata:
        if bytes(row.data[:4]) == b"\x7fELF" and row.data[18] == _MACHINES[MACHINE]:
            (here / "library.so").write_bytes(row.data)
    words = {
        "VMVX": [str(VMVX)], "NATIVE": [str(NATIVE)], "CHAIN": [str(DATA / "chain.vmfb")], "CALL": _CALL,
        "GRID": ["--workgroup_count=1,1,1", "--binding=4096xi8", "--binding=4096xi8"],
        "CHECKS": [str(DATA / "checks.vmfb")], "MLIR": [str(DATA / "calls.mlir")],
    }  # fmt: skip
    parts = {"HERE": str(here), "MACHINE": {"aarch64": "arm_64"}.get(MACHINE, MACHINE)}

    def given(line: str) -> list[str]:
        named = (part for word in line.split() for part in words.get(word, [word]))
        return [re.sub("HERE|MACHINE", lambda found: parts[found[0]], part) for part in named]

    done = ended(packages, here / "cache", "-c", _ALL_IN_ONE, stdin=json.dumps([*map(given, COMMAND_LINES)]))
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMAND_LINES, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_lines(line: str, outcomes: dict[str, tuple[int, str, str]]) -> None:
    code, output, messages = outcomes[line]
    expected = COMMAND_LINES[line]
    assert "defect" not in messages and "Traceback" not in messages and "damaged" not in output + messages
    if not expected.startswith("!"):
        assert code == 0 and expected in output, messages
        return
    *_, last = messages.splitlines()
    assert code == 1 and "UNAVAILABLE; " in last
    assert expected[1:] in last and (expected != "!" or _MISSING.search(last)), messages


def test_each_command_has_a_line() -> None:
    words = [line.split() for line in COMMAND_LINES]
    assert {first for first, *_ in words} == set(COMMANDS)
    for name, subcommands in (("cache", cache.COMMANDS), ("parameters", parameters.COMMANDS)):
        assert {second for first, *rest in words if first == name for second in rest[:1]} == set(subcommands)


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


_ON_A_GPU = """
import numpy as np, jitree
from jitree.cuda import timings
from jitree.cuda.device import CudaDevice
from tests.cuda import fake_native
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import PROGRAM_KERNELS, STATEFUL, STATELESS
timings.tracer = lambda: None  # which knows real GPUs only
x = np.arange(8, dtype=np.float32)
for tier in ("auto", "fast", "plain"):
    fake = FakeDriver()
    fake.kernels.update(PROGRAM_KERNELS)
    fake_native.serve(fake)
    with CudaDevice(fake, 0) as device, jitree.Session(device=device, tier=tier) as session:
        scale, accumulate = session.load(STATELESS).scale, session.load(STATEFUL).accumulate
        for call in range(20):
            assert np.array_equal(np.asarray(scale(x, x)[1]), 3 * x), (tier, call)
            total = np.asarray(accumulate(x))
        assert total[1] == 20 and {"cuLaunchKernelEx", "cuGraphLaunch"} <= set(fake.names()), tier
"""


def test_on_a_gpu(packages: Path, tmp_path: Path) -> None:
    """Shipped code submits to a driver that stands for NVIDIA's; one call is launched as one."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    program = f"import sys; sys.path.append({str(tmp_path)!r})\n{_ON_A_GPU}"
    done = ended(packages, tmp_path / "cache", "-c", program)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_parts_of_packages() -> None:
    assert "pip install pyelftools" in not_installed(ModuleNotFoundError("no", name="elftools.elf"))
    assert "pip install onnx" in not_installed(ModuleNotFoundError("no", name="onnx.helper"))
    for name in ("llvmlite", "llvmlite.binding.ffi"):
        assert _MISSING.fullmatch(not_installed(ModuleNotFoundError("no", name=name)))
    assert "libLLVM" in not_installed(ImportError("libLLVM.so is not there", name="llvmlite"))
