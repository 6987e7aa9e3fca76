"""Makes the images of docs/containers.md without Docker, runs a model in them, and prints how large they are.

    python perf/container_images.py [--suite trixie] [--python 3.13] [--folder DIR]

It does what the Dockerfile of that page does. A root folder of Debian, slim as Docker's images are (without
manuals and translations), has that Debian's Python in place of one that is built from source. Packages are
those that pip finds, with jitree of this checkout; the first stage packs the digits' model, the second has no
compiler. Given are the bytes of all files, and those of the folder as one archive of gzip, which is what
registries count. Then a program runs in each (chroot), from an empty cache. Needs root, mmdebstrap, pip and
the network.
"""

from __future__ import annotations

import argparse
import gzip
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
MODEL: Final = ROOT / "examples" / "digits" / "digits.vmvx.vmfb"
_NOT_IN_SLIM: Final = ("doc", "man", "locale", "info", "groff", "lintian")
_PYTHON: Final = "export PATH=/usr/local/bin:/usr/bin PYTHONDONTWRITEBYTECODE=1; exec"
MAIN: Final = """
import numpy as np
import jitree
module = jitree.load("/model/model.vmfb", device="local-sync", tier=TIER, compiled=PACKED)
print("digit", np.asarray(module.classify(np.zeros((8, 8), np.float32))).argmax())
"""


def base(folder: Path, suite: str, python: str) -> Path:
    """An archive with the root folder of Debian with Python."""
    made = folder / f"{suite}.tar"
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _NOT_IN_SLIM]
    keys = "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"
    command = ["mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", keys, *excluded]
    subprocess.run([*command, f"--include=python{python},ca-certificates", suite, str(made)], check=True)
    return made


def wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True)
    return next(folder.glob("jitree-*.whl"))


def installed(archive: Path, root: Path, python: str, packages: Sequence[str]) -> Path:
    """A root folder with packages, which the host's pip unpacks and the folder's Python compiles."""
    root.mkdir()
    subprocess.run(["tar", "-C", str(root), "-xf", str(archive)], check=True)
    target = root / "usr" / "local" / "lib" / f"python{python}" / "dist-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(target)]
    machine = f"manylinux_2_28_{platform.machine()}"
    fitting = [f"--python-version={python}", f"--platform={machine}", "--only-binary=:all:"]
    if packages:
        subprocess.run([*command, *fitting, *packages], check=True)
    for script in (target / "bin").glob("*"):
        script.write_text(f"#!/usr/bin/python{python}\n" + script.read_text().partition("\n")[2])
        shutil.copy(script, root / "usr" / "local" / "bin")
    shutil.rmtree(target / "bin", ignore_errors=True)
    (root / "model").mkdir()
    return root


def inside(root: Path, command: str) -> str:
    """The output of a command in a root folder."""
    words = ["chroot", str(root), "/bin/sh", "-c", f"{_PYTHON} {command}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout.strip()


def sizes(root: Path) -> str:
    """Bytes of all files, and of an archive of them."""
    files = sum(path.lstat().st_size for path in root.rglob("*") if path.is_symlink() or path.is_file())
    with tempfile.TemporaryFile() as file:
        with (
            gzip.GzipFile("", "wb", 6, file, 0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(root, arcname=".")
        return f"{files / 1e6:6.0f} MB on disk, {file.tell() / 1e6:6.0f} MB compressed"


def main() -> None:
    parser = argparse.ArgumentParser(description="makes images of containers, and says how large they are")
    parser.add_argument("--suite", default="trixie")
    parser.add_argument("--python", default="3.13")
    parser.add_argument("--folder", type=Path, help="where they are made, and stay; it has to be new")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    python, archive = options.python, base(folder, options.suite, options.python)
    own, others = str(wheel(folder)), ["numpy", "ml_dtypes"]
    plain = installed(archive, folder / "base", python, [])
    full = installed(archive, folder / "full", python, [own])
    slim = installed(archive, folder / "slim", python, ["--no-deps", own, *others])
    version = (plain / "etc" / "debian_version").read_text().strip()
    print(f"Debian {version} with Python {inside(plain, f'python{python} --version')}")
    shutil.copy(MODEL, full / "model" / "model.vmfb")
    print(inside(full, "jitree cache pack /model/model.vmfb -o /model/model.jit"))
    shutil.copytree(full / "model", slim / "model", dirs_exist_ok=True)
    for name, root in (("base", plain), ("without a compiler", slim), ("with numba", full)):
        before = sizes(root)
        inside(root, f"python{python} -m compileall -q /usr/local/lib")
        print(f"{name:20s} {before}; with bytecode {sizes(root)}", flush=True)
    for name, root in (("without a compiler", slim), ("with numba", full)):
        program = MAIN.replace("TIER", "'native'").replace("PACKED", "'/model/model.jit'")
        (root / "main.py").write_text(program)
        print(f"{name:20s} {inside(root, f'python{python} /main.py')}")
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
