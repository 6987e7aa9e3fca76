"""What ``docs/containers.md`` shows works as it stands there, and what it says of containers is so."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import users_environment

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "containers.md").read_text()
DIGITS = ROOT / "examples" / "digits" / "digits.vmvx.vmfb"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, after the page's first command."""
    folder = tmp_path_factory.mktemp("model")
    shutil.copy(DIGITS, folder / "model.vmfb")
    command = blocks("console")[0].splitlines()[0].removeprefix("$ ")
    assert "--processor=" in command
    shown = run(command, folder, JITREE_CACHE_DIR=str(folder / "cache"))
    assert "for x86-64-v3, x86-64-v4, aarch64" in shown
    return folder


def run(command: str, folder: Path, **variables: str) -> str:
    """The output of a command of the page; nothing is printed to stderr but what is built."""
    words = shlex.split(command)
    start = ["-m", "jitree"] if words[0] == "jitree" else []
    environment = users_environment() | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        [sys.executable, *start, *words[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "not used" not in done.stderr
    return done.stdout


def test_commands(model: Path, tmp_path: Path) -> None:
    _, command = blocks("console")[0].strip().splitlines()
    assert "10xf32" in run(command.removeprefix("$ "), model, JITREE_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("number", range(2))
def test_snippets(model: Path, tmp_path: Path, number: int) -> None:
    snippets = blocks("python")
    assert len(snippets) == 2
    script = snippets[number]
    if "handler" in script:
        script += "\nprint(handler({'pixels': [0] * 64}, None)['digit'])\n"
    (tmp_path / "main.py").write_text(script)
    shown = run(f"python {tmp_path / 'main.py'}", model, JITREE_CACHE_DIR=str(tmp_path / "cache"))
    assert 0 <= int(shown) < 10


def test_the_dockerfile_packs_as_the_page_says() -> None:
    """Its commands are those that are tested here; installing is left to the reader."""
    (text,) = blocks("dockerfile")
    (line,) = re.findall(r"^RUN (jitree .*)$", text, re.MULTILINE)
    first = blocks("console")[0].splitlines()[0].removeprefix("$ ")
    assert line.replace("/model/", "").split()[:-1] == first.split()[:-1]
    assert set(line.rpartition("=")[2].split(",")) < set(first.rpartition("=")[2].split(","))
    (needed,) = re.findall(r"--no-deps jitree (.*)$", text, re.MULTILINE)
    assert needed.split() == ["numpy", "ml_dtypes"]


def test_the_manifest_names_variables_and_folders_that_fit() -> None:
    (text,) = blocks("yaml")
    stated = dict(re.findall(r"name: (JITREE_\w+), value: (\S+)}", text))
    (mounted,) = re.findall(r"mountPath: ([^}]+)}", text)
    assert set(stated) == {"JITREE_CACHE_DIR", "JITREE_CACHE_SIZE"}
    assert Path(stated["JITREE_CACHE_DIR"]).parent == Path(mounted)
    assert "medium: Memory" in text and "readOnlyRootFilesystem: true" in text


_REFUSAL = """
import os, sys
sys.path.insert(0, ROOT)
from jitree.codegen.image import cache
os.setgroups([])
os.setgid(4711)
os.setuid(1234567)
print(cache.place().refusal)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("mode", "refusal"), [(0o1777, ""), (0o777, "can be written by others")])
def test_the_manifests_volume(mode: int, refusal: str) -> None:
    """Kubernetes makes it, for root: in memory with the first mode, which Linux gives such file systems, on a
    disk with the second."""
    folder = Path("/tmp") / f"jitree-volume-{os.getpid()}"
    folder.mkdir()
    try:
        folder.chmod(mode)
        found = subprocess.run(
            [sys.executable, "-c", _REFUSAL.replace("ROOT", repr(str(ROOT)))],
            env=os.environ | {"JITREE_CACHE_DIR": str(folder / "jitree"), "TMPDIR": str(folder)},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert (refusal in found.stdout) if refusal else not found.stdout.strip()
    finally:
        shutil.rmtree(folder)


_WITHOUT_COMPILER = """
import sys, warnings
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
warnings.simplefilter("error")
import numpy, jitree
module = jitree.load("model.vmfb", device="local-task", tier="native", compiled="model.jit")
print(numpy.asarray(module.classify(numpy.zeros((8, 8), "f4"))).argmax())
"""


def test_no_compiler_no_home_no_folder(model: Path, tmp_path: Path) -> None:
    """Machine code runs where none can be made or kept: tier native would fail without it."""
    (tmp_path / "main.py").write_text(_WITHOUT_COMPILER)
    nowhere = str(tmp_path / "none")
    (tmp_path / "none").write_text("no folder")
    shown = run(
        f"python {tmp_path / 'main.py'}",
        model,
        JITREE_CACHE_DIR=nowhere,
        HOME="",
        TMPDIR=nowhere,
        XDG_CACHE_HOME="",
    )
    assert 0 <= int(shown) < 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["main.py", "none"]


_ANOTHER_USER = """
import gc, os, sys
sys.path.insert(0, ROOT)
os.chdir(FOLDER)
import numpy, jitree

def run():
    module = jitree.load("model.vmfb", device="local-sync", tier="native", compiled="model.jit")
    return numpy.asarray(module.classify(numpy.zeros((8, 8), "f4"))).argmax()

run()  # imports what only root may read here
gc.collect()
from jitree.codegen import image
assert not image.packs and not [item for item in image._providers.values() if item.recipe.data]
os.environ["JITREE_CACHE_DIR"] = ""
os.setgroups([])
os.setgid(4711)
os.setuid(1234567)
print(run())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that has no entry")
def test_a_user_without_an_entry(model: Path, tmp_path: Path) -> None:
    """As OpenShift gives each project one. The files belong to root, and others may read them."""
    open_folder = Path("/tmp") / f"jitree-model-{os.getpid()}"
    shutil.copytree(model, open_folder)
    try:
        for path in (open_folder, *open_folder.glob("model.*")):
            path.chmod(0o755)
        program = _ANOTHER_USER.replace("ROOT", repr(str(ROOT))).replace("FOLDER", repr(str(open_folder)))
        (tmp_path / "main.py").write_text(program)
        environment = {"HOME": "/", "JITREE_CACHE_DIR": str(tmp_path / "cache")}
        shown = run(f"python {tmp_path / 'main.py'}", open_folder, **environment)
        assert 0 <= int(shown) < 10
        assert not Path("/tmp/jitree-1234567").exists()
    finally:
        shutil.rmtree(open_folder)
