"""What the processor says of itself is what the system says of it: nothing is lost without ``/proc``."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jitree.base.platform import processor
from jitree.codegen.image import keys, shipped

_ROOT = Path(__file__).parents[2]
_IS_X86 = os.uname().machine in ("x86_64", "amd64")


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing is mounted there."""
    monkeypatch.setattr(processor, "_FILE", "/nothing/cpuinfo")
    monkeypatch.delenv(shipped.STAMP_VARIABLE, raising=False)
    for cached in (processor.description, processor.words, processor.fuses, shipped.fitting_level):
        monkeypatch.setattr(sys.modules[cached.__module__], cached.__name__, cached.__wrapped__)


@pytest.mark.skipif(not _IS_X86, reason="an instruction of x86-64")
def test_flags_are_those_of_the_system() -> None:
    model, flags = processor.ask_processor().decode().splitlines()
    names = set(flags.partition(":")[2].split())
    known = {word for word in processor._FLAGS.split() if word[0].isalpha()}
    assert names == processor.words("flags") & known
    needed = {name for _, flags in shipped.LEVELS.values() for name in flags}
    assert needed <= known and int(model.partition(":")[2], 16) > 0


@pytest.mark.skipif(not _IS_X86, reason="an instruction of x86-64")
def test_registers_that_the_system_does_not_keep() -> None:
    for name, kept, expected in [
        ("sse4_2", 0, True), ("popcnt", 0, True), ("avx2", 2, False), ("fma", 0, False), ("avx2", 6, True),
        ("avx512f", 6, False), ("avx512f", 0xE6, True), ("amx_tile", 0xE6, False),
        ("amx_tile", 0x600E7, True),
    ]:  # fmt: skip
        assert processor._is_kept(name, kept) == expected, name


def test_shipped_images_are_used(without_proc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = shipped.fitting_level()
    monkeypatch.setattr(processor, "_FILE", "/proc/cpuinfo")
    assert found == shipped.fitting_level()


@pytest.mark.skipif(not _IS_X86, reason="an instruction of x86-64")
def test_keys_tell_processors_apart(without_proc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders may be shared between machines."""
    assert b"flags" in keys._processor()
    first = keys._processor()
    monkeypatch.setattr(processor, "_STATES", {"": 1 << 60})
    assert keys._processor() != first


@pytest.fixture
def another_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that assume one."""
    monkeypatch.delenv(shipped.STAMP_VARIABLE, raising=False)
    yield
    processor.assume("", b"")


def test_of_another_processor_everything_is_asked_anew(another_processor: None) -> None:
    """A process may assume one after another."""
    from jitree.dispatch.native.nests import folds, planner, reductions
    from jitree.dispatch.native.prelude import BASE

    def values(level: str) -> tuple[object, ...]:
        processor.assume(level, processor.described(*shipped.LEVELS[level]))
        image = shipped.load(BASE)
        return (
            shipped.fitting_level(), planner.accumulators(), reductions.row_lanes(), reductions.widens(),
            folds.has_masks(), processor.fuses(), None if image is None else bytes(image.code),
        )  # fmt: skip

    by_level = {level: values(level) for level in shipped.LEVELS}
    codes = [code for *_, code in by_level.values()]
    assert [found for found, *_ in by_level.values()] == list(shipped.LEVELS)
    assert None not in codes and len(set(codes)) == len(codes)
    assert {level: counts for level, (_, *counts, _) in by_level.items()} == {
        "x86-64-v4": [16, 16, True, True, True],
        "x86-64-v3": [6, 16, True, False, True],
        "x86-64-v2": [6, 0, False, False, False],
        "aarch64": [4, 0, False, False, True],
    }


def test_what_depends_on_the_processor_is_listed() -> None:
    """That of every cached function which asks for the processor, or calls one that does."""
    texts = (path.read_text() for path in (_ROOT / "jitree").rglob("*.py"))
    functions = [
        node
        for text in texts
        if "processor" in text or "cache\ndef" in text or "cache(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    asked = {"words", "machine", "fuses", "arm_features", "description", "assumed"}
    about = asked | {f"processor.{name}" for name in asked}
    listed = {cached.__name__ for cached in _all_kept()}
    dependent = {function.name for function in functions if about & _called(function)} | listed
    found = {
        function.name
        for function in functions
        if any("cache" in ast.unparse(decorator) for decorator in function.decorator_list)
        and (dependent | about) & _called(function)
    }
    of_executables = {"host_cpu_data"}  # which run on no processor that is assumed
    of_providers = {"key"}  # which are made for the processor that is assumed then
    assert found - of_executables - of_providers <= listed, "jitree.base.platform.processor.kept"


def _all_kept() -> list[Callable[..., object]]:
    """With those of the modules that write code."""
    import jitree.codegen.image.build
    import jitree.dispatch.native.nests.folds
    import jitree.dispatch.native.nests.planner  # noqa: F401

    return [*processor.kept]


def _called(function: ast.FunctionDef) -> set[str]:
    """The names of functions that a function calls, with that of a module in front."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            names.add(f"{owner.id}.{node.func.attr}" if isinstance(owner, ast.Name) else node.func.attr)
    return names


def test_builders_close_what_they_inherit_without_a_list_of_it() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(_ROOT)!r})
from jitree.codegen.image.builder_process import close_others
def refuse(path):
    raise FileNotFoundError(path)
os.listdir = refuse
files = [os.dup(0) for _ in range(6)]
close_others(files[2])
def is_open(file):
    try:
        return bool(os.fstat(file))
    except OSError:
        return False
print([is_open(file) for file in (0, 1, 2, *files)])
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True, stdin=subprocess.DEVNULL)
    assert said == f"{[True, True, True, False, False, True, True, False, False]}\n"


_PROGRAM = """
import sys
import numpy as np
import jitree
from jitree.errors import UnavailableError
path = sys.argv[1]
with jitree.Session("local-sync", tier="native") as session:
    print(session.load(path).classify(np.zeros((8, 8), np.float32)).shape)
try:
    jitree.Session("local-sync", sandbox="process").load(path)
except UnavailableError as error:
    print("/proc" in str(error))
"""


def test_programs_are_compiled_without_proc(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("no program unshare")
    empty = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*empty, "true"], capture_output=True).returncode:
        pytest.skip("nothing may be mounted here")
    done = subprocess.run(
        [*empty, sys.executable, "-c", _PROGRAM, str(_ROOT / "examples/digits/digits.vmvx.vmfb")],
        env=os.environ | {"JITREE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(_ROOT)},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout == "(10,)\nTrue\n", done.stderr
    assert list((tmp_path / "cache").glob("*.image"))
