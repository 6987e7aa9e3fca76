"""Builder processes run the packages that their starter has, and nothing that lies about."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jitree.codegen.image import keys

_ROOT = Path(__file__).parents[2]
_TEXTS = _ROOT / "tests" / "codegen" / "image_texts.py"

_PROGRAM = """
import os, sys
from jitree.codegen import image
os.environ["JITREE_TEST_STARTER"] = str(os.getpid())
(generator,) = sys.argv[1:]
image.wait(image.Recipe("sample", "a sample", generator, 1.0))
print("built")
"""
_PLANTED = """
import os
if os.environ.get("JITREE_TEST_STARTER", str(os.getpid())) != str(os.getpid()):
    with open({marks!r}, "a") as file:
        file.write(__name__ + " ")
raise ImportError("planted")
"""
"""Says so when another process than the starter imports it."""


def built(
    folder: Path, *command: str, python_path: str = "", generator: str = "tests.codegen.image_texts:texts"
) -> None:
    """Has a program, started in a folder, build an image."""
    environment = os.environ | {"JITREE_CACHE_DIR": str(folder.parent / "cache"), "PYTHONPATH": python_path}
    result = subprocess.run(
        [sys.executable, *command, generator],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.stdout == "built\n", result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "current"
    path.mkdir()
    return path


def plant(folder: Path, names: str) -> Path:
    marks = folder.parent / "marks"
    for name in names.split():
        (folder / f"{name}.py").write_text(_PLANTED.format(marks=str(marks)))
    return marks


def deposit(folder: Path, *names: str) -> None:
    """Makes packages be found in a folder."""
    for name in names:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        place = Path(spec.submodule_search_locations[0])
        for path in (place, *place.parent.glob(f"{name}.libs")):
            (folder / path.name).symlink_to(path)


def test_files_of_the_current_folder_are_not_run(folder: Path, tmp_path: Path) -> None:
    marks = plant(
        folder,
        "types queue json struct pathlib ctypes importlib numba llvmlite numpy sitecustomize usercustomize",
    )
    script = tmp_path / "elsewhere" / "program.py"
    script.parent.mkdir()
    script.write_text(_PROGRAM)
    built(folder, str(script), python_path=str(_ROOT))
    assert not marks.exists() or marks.read_text() == ""


def test_files_that_a_starter_could_import_are_not_run(folder: Path) -> None:
    """With ``python -c`` the current folder comes first."""
    marks = plant(folder, "llvmlite numba sitecustomize usercustomize")
    built(folder, "-c", _PROGRAM, python_path=str(_ROOT))
    assert not marks.exists()


def test_what_the_environment_names_is_not_run(folder: Path, tmp_path: Path) -> None:
    marks = plant(folder, "numba sitecustomize usercustomize")
    built(folder, "-c", _PROGRAM, python_path=f"{_ROOT}{os.pathsep}{folder}")
    assert not marks.exists()


def test_packages_of_the_current_folder(folder: Path) -> None:
    """``python -m``, with everything in the folder that it is started in."""
    deposit(folder, "jitree", "llvmlite", "numpy", "tests")
    (folder / "program.py").write_text(_PROGRAM)
    built(folder, "-S", "-m", "program")


def test_packages_of_the_python_path(folder: Path, tmp_path: Path) -> None:
    deposit(folder, "jitree", "llvmlite")
    other = tmp_path / "other"
    other.mkdir()
    deposit(other, "numpy", "tests")
    built(folder, "-S", "-c", _PROGRAM, python_path=f"{folder}{os.pathsep}{other}")


def test_packages_of_a_path_that_the_program_made(folder: Path, tmp_path: Path) -> None:
    deposit(folder, "jitree", "llvmlite", "numpy", "tests")
    built(tmp_path, "-I", "-S", "-c", f"import sys; sys.path.append('current')\n{_PROGRAM}")


def test_packages_of_an_archive(folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(_TEXTS, "zipped/texts.py")
        file.writestr("zipped/__init__.py", "")
    path = f"{_ROOT}{os.pathsep}{archive}"
    built(folder, "-c", _PROGRAM, python_path=path, generator="zipped.texts:texts")


def test_the_current_folder_comes_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, "llvmlite", raising=False)
    known = keys.folders_of("llvmlite")
    (folder / "llvmlite.py").touch()
    (folder / "only_here.py").touch()
    for entry in ("", str(folder), f"{folder}/../current"):
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        assert keys.folders_of("llvmlite") == known
        assert keys.folders_of("only_here") == [str(folder)]
    assert keys.folders_of("jitree") == [str(_ROOT)]
    assert keys.folders_of("nowhere_at_all") == []
