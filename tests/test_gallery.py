"""The gallery of trained models: what its pages show is what happens, where that needs only jitree."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module

GALLERY = Path(__file__).resolve().parent.parent / "examples" / "gallery"
EXAMPLES = sorted(path.parent.name for path in GALLERY.glob("*/README.md"))
SHIPPED = sorted(GALLERY.glob("*/*.vmfb"))


def test_there_are_eight_examples() -> None:
    assert len(EXAMPLES) >= 8


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_has_a_short_program_and_a_picture(name: str) -> None:
    page = (GALLERY / name / "README.md").read_text()
    assert len((GALLERY / name / f"{name}.py").read_text().splitlines()) <= 60
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert 0 < (GALLERY / name / picture).stat().st_size < 100_000
    assert f"]({name}/README.md)" in (GALLERY / "README.md").read_text()


@pytest.mark.parametrize("name,target", [("voice", ["--target=llvm-cpu"]), ("file_type", [])])
def test_the_page_shows_what_is_printed(name: str, target: list[str]) -> None:
    page = (GALLERY / name / "README.md").read_text()
    (block,) = re.findall(r"```console\n\$ python ([^\n]+)\n(.*?)```", page, re.DOTALL)
    command, shown = block
    ended = subprocess.run(
        [sys.executable, *shlex.split(command), *target],
        cwd=GALLERY.parent.parent,
        env={**os.environ, "PYTHONPATH": str(GALLERY.parent.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ended.stdout == shown


@pytest.mark.parametrize(
    "path,tolerance",
    [("voice/voice.llvm-cpu.vmfb", 1e-4), ("file_type/file_type_bf16.llvm-cpu.vmfb", 1e-3)],
)
def test_results_are_those_of_the_original_library(path: str, tolerance: float) -> None:
    module = jitree.load(GALLERY / path, device="local-sync")
    with np.load(GALLERY / f"{path.split('.')[0]}.expected.npz") as file:
        kept = dict(file)
    results = module.main(*(kept[name] for name in sorted(kept) if name.startswith("argument")))
    results = results if isinstance(results, tuple) else (results,)
    expected = [kept[name] for name in sorted(kept) if name.startswith("result")]
    assert len(results) == len(expected) > 0
    for result, one in zip(results, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(result).reshape(-1), one, atol=tolerance * np.abs(one).max(), rtol=0
        )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_modules_have_one_function(path: Path) -> None:
    """Those that are shipped, and those that `prepare.py` has made."""
    assert read_module(Archive.open(path)).export("main") is not None


def printed(program: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    path = GALLERY / program.partition(".")[0] / program
    command = [sys.executable, path, *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


def test_files_that_the_model_can_tell_nothing_of(tmp_path: Path) -> None:
    """It would say that an empty file is an image of a disk, and be sure of it."""
    empty, short = tmp_path / "empty", tmp_path / "short"
    empty.write_bytes(b"")
    short.write_bytes(b"  abc \n\n\n\n")
    assert printed("file_type.py", empty, short).stdout == f"{empty}: empty\n{short}: too short to tell\n"


@pytest.mark.parametrize("program", ["file_type.py", "text_direction.py"])
def test_files_that_cannot_be_read(program: str, tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        found = printed(program, path)
        assert (found.returncode, found.stderr) == (1, f"{path} cannot be read: {reason}\n")


def test_an_image_without_lines(tmp_path: Path) -> None:
    (tmp_path / "x.pgm").write_bytes(b"abc")
    found = printed("text_direction.py", tmp_path / "x.pgm")
    assert (found.returncode, found.stderr) == (
        1,
        f"{tmp_path}/x.pgm is no image of lines, each 192x48 grey pixels\n",
    )
