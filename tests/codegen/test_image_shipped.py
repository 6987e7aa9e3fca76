"""Images that come with the package: they are those of the present sources, and they are what is used."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from jitree.base import platform
from jitree.base.platform import processor
from jitree.codegen import image
from jitree.codegen.image import shipped
from jitree.codegen.image.build import build, generate, level_target
from jitree.codegen.image.compile import host_target
from jitree.codegen.image.flat import decode_trusted, map_image
from jitree.codegen.image.generated import Generated, Unit
from jitree.dispatch.native import prelude
from jitree.dispatch.native.prelude import BASE
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.tools import build_stamp, ship_images
from jitree.tools.cache import own_recipes
from jitree.vmfb.decode import BytecodeModule
from tests.loaders.samples import sample

_ROOT = Path(__file__).parents[2]
RECIPES = {recipe.name: recipe for recipe in own_recipes()}
STAMP = Path(shipped.STAMP_FILE)

matching = pytest.mark.skipif(
    shipped.fitting_level() is None, reason="no image fits this processor and these sources"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, in a process that knows no images yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.setattr(image, "_static", {})
    monkeypatch.setattr(image, "_providers", {})
    yield path


def test_the_stamp_is_of_the_present_sources() -> None:
    compiler, *lines = STAMP.read_text(encoding="ascii").splitlines()
    present = build_stamp.text(compiler).splitlines()[1:]
    assert lines == present, f"run {ship_images.COMMAND} and commit what it made"


@pytest.fixture
def same_compiler() -> None:
    compiler = ship_images.compiler()
    if STAMP.read_text(encoding="ascii").partition("\n")[0] != compiler:
        pytest.skip(f"made by another compiler than {compiler}")


_CHECK = """
import functools, gc
gc.disable()
from jitree.tools import ship_images
from jitree.tools.cache import own_recipes
ship_images.generate = functools.cache(ship_images.generate)
ship_images.main(["--check"])
jobs = [job for one in own_recipes() if one.name == "vmvx" for job in ship_images.jobs_of(one)]
chosen = [job for job in jobs if job.level in ("x86-64-v3", "aarch64")]
print(len(chosen), *(job.path.name for job in chosen if job.file() != job.path.read_bytes()))
"""
"""Nothing is searched for garbage meanwhile: what Numba has typed stays, and to look at it takes a tenth."""


@pytest.fixture(scope="module")
def checked() -> list[str]:
    """Images of other code than the present, and those that are not made again alike: two lines."""
    done = subprocess.run(
        [sys.executable, "-c", _CHECK],
        cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=1100, check=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.timeout(1200)
def test_files_are_of_the_present_code(same_compiler: None, checked: list[str]) -> None:
    """The LLVM IR decides the machine code, and takes a fraction of the time."""
    assert checked[0] == "", f"run {ship_images.COMMAND} and commit what it makes"


@pytest.mark.timeout(1200)
def test_files_are_made_again_alike(same_compiler: None, checked: list[str]) -> None:
    assert checked[1] == "2", f"run {ship_images.COMMAND} and commit what it makes"


def test_there_is_a_file_for_each_kind_of_processor() -> None:
    files = {Path(shipped.path_of(name, level)) for name in RECIPES for level in shipped.LEVELS}
    assert set(STAMP.parent.iterdir()) == files | {STAMP}


@pytest.mark.parametrize("size", [0, 50, 91, 92, 500, 4000])
def test_short_files_are_a_miss(size: int) -> None:
    data = Path(shipped.path_of("executor", "x86-64-v3")).read_bytes()
    assert decode_trusted(data) is not None
    assert decode_trusted(data[:size]) is None


def test_comments_do_not_change_the_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_stamp, "_PACKAGE", tmp_path)
    source = tmp_path / "code.py"

    def stamped(text: str) -> str:
        source.write_text(text)
        return build_stamp.line("code.py")

    code = stamped("def f(x: int) -> int:\n    return x + 1\n")
    assert stamped('"""New."""\n# one\ndef f(x: int) -> int:\n    """It."""\n    return (x +  1)\n') == code
    assert stamped("def f(x: int) -> int:\n    return x + 2\n") != code


def test_code_that_has_changed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_stamp, "_PACKAGE", tmp_path)
    source, stamp = tmp_path / "types.py", tmp_path / "stamp.txt"
    source.write_text("x = 1")
    stamp.write_text(build_stamp.text(""))
    for text, changed in (("x = 1  # one", False), ("x = 2", True)):
        source.write_text(text)
        os.utime(source, (stamp.stat().st_mtime + 1,) * 2)
        assert build_stamp.changed_since(stamp) == changed


def test_files_of_a_checkout_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_stamp, "_PACKAGE", tmp_path)
    stamp, line = tmp_path / "stamp.txt", Mock(wraps=build_stamp.line)
    (tmp_path / "types.py").write_text("x = 1")
    stamp.write_text(build_stamp.text(""))
    for path in (tmp_path / "types.py", stamp):
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr(build_stamp, "line", line)
    assert not build_stamp.changed_since(stamp)
    assert not build_stamp.changed_since(stamp)
    line.assert_called_once_with("types.py")
    (tmp_path / "types.py").write_text("x = 2")
    assert build_stamp.changed_since(stamp) and build_stamp.changed_since(stamp), "until it is stamped"


@matching
@pytest.mark.parametrize("name", RECIPES)
def test_they_need_no_builder(name: str, folder: Path) -> None:
    found = image.get(RECIPES[name])
    assert found is not None
    assert found.addresses
    assert not list(folder.glob("*.image"))


@pytest.fixture
def unknown_processor() -> Iterator[None]:
    shipped.fitting_level.cache_clear()
    yield
    shipped.fitting_level.cache_clear()


def test_another_stamp_is_a_miss(unknown_processor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shipped.STAMP_VARIABLE, "another")
    assert shipped.load(RECIPES["vmvx"]) is None


@pytest.mark.parametrize(
    ("machine", "missing", "expected"),
    [
        ("x86_64", "", "x86-64-v4"),
        *(("x86_64", flag, "x86-64-v3") for flag in ("avx512f", "avx512vl")),
        *(("x86_64", flag, "x86-64-v2") for flag in ("avx2", "bmi1", "fma", "movbe", "abm")),
        *(("x86_64", flag, None) for flag in ("sse4_2", "ssse3", "popcnt", "cx16")),
        ("aarch64", "", "aarch64"),
        ("ppc64le", "", None),
    ],
)
def test_the_best_level_is_chosen(
    machine: str, missing: str, expected: str | None,
    unknown_processor: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    flags = frozenset(_LEVEL_4.split()) - {missing}
    monkeypatch.delenv(shipped.STAMP_VARIABLE, raising=False)
    monkeypatch.setattr(processor, "words", lambda name: flags)
    monkeypatch.setattr(platform, "MACHINE", machine)
    assert shipped.fitting_level() == expected


_LEVEL_4 = (
    "fpu cx8 cmov mmx fxsr sse sse2 syscall cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2"
    " f16c fma abm movbe xsave avx512f avx512bw avx512cd avx512dq avx512vl"
)
"""What /proc/cpuinfo says of a processor of level v4 and no more."""


_CALLING = """
declare i64 @doubled(i64)
define i64 @run(i64 %x) {
  %twice = call i64 @doubled(i64 %x)
  %more = add i64 %twice, 1
  ret i64 %more
}
"""
_BASE = """
@by.number = internal constant [2 x ptr] [ptr @one, ptr @other]
define internal i64 @one(i64 %x) noinline {
  ret i64 %x
}
define internal i64 @other(i64 %x) noinline {
  %sum = add i64 %x, %x
  ret i64 %sum
}
define i64 @doubled(i64 %x) {
  %odd = and i64 %x, 1
  %place = getelementptr [2 x ptr], ptr @by.number, i64 0, i64 %odd
  %function = load ptr, ptr %place
  %made = call i64 %function(i64 %x)
  ret i64 %made
}
"""


def _generated(text: str, name: str, base: image.Recipe | None = None) -> Generated:
    return Generated([Unit((text,), (name,))], (name,), b"", base)


def base_for_tests() -> Generated:
    return _generated(_BASE, "doubled")


def test_an_image_begins_with_a_copy_of_its_base() -> None:
    """It calls that, and addresses in there are the copy's."""
    recipe = image.Recipe("unshipped", "a base", f"{__name__}:base_for_tests", 1.0)
    base, made = (
        build(item, host_target()) for item in (base_for_tests(), _generated(_CALLING, "run", recipe))
    )
    assert made.code[: len(base.code)] == base.code
    assert len(base.rebase) == 2 * 4 == len(made.rebase)
    assert set(made.entries) == {"run"}
    mapped = map_image(made)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(mapped.addresses["run"])
    assert [run(number) for number in (5, 8)] == [11, 9]


def test_programs_are_compiled_for_the_processor_that_they_are_written_for() -> None:
    """Nests name its instructions. LLVM ends the process for targets that lack them."""
    other = next(target for target in map(level_target, shipped.LEVELS) if target != host_target())
    with pytest.raises(AssertionError, match="programs are written for"):
        build(_generated(_CALLING, "run", BASE), other)


@matching
def test_kernels_begin_with_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders compile none of it."""
    shipped_base = shipped.load(BASE)
    assert shipped_base is not None
    monkeypatch.setattr(prelude, "called", None)
    generated = generate(
        vmvx_kernels.recipes(BytecodeModule.load(sample("vmvx_mm-3.13.0.fb"), "executable"))[0]
    )
    made = build(generated, host_target())
    assert bytes(made.code[: len(shipped_base.code)]) == bytes(shipped_base.code)
