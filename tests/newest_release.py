"""What a release of IREE has that jitree does not know.

``python -m tests.newest_release`` takes the newest one of the package index; a test looks at the one that is
installed. Instructions are those that ``iree-dump-module`` names, imports those that the compiler declares.
Modules that the compiler makes show whether bytecode and executables load.
"""

from __future__ import annotations

import mmap
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import jitree
from jitree.errors import StatusError
from jitree.modules.import_rows import rows
from jitree.vmfb.instructions import INSTRUCTIONS

PROGRAM = Path(__file__).resolve().parent / "data" / "releases" / "simple_mul.mlir"
MODULES = ("hal", "hal_inline", "hal_loader", "io_parameters", "vmvx", "check")
_NOT_INSTRUCTIONS = {
    "buffer",
    "export",
    "func",
    "import",
    "list",
    "module",
    "opaque",
    "ref",
    "rodata",
    "type",
}
_BACKENDS = ("llvm-cpu", "vmvx")


def news(root: Path) -> list[str]:
    """Lines about what is new, from the folder ``iree`` of the two packages; empty if there is nothing."""
    return [*_instructions(root), *_imports(root), *_modules(root)]


def _instructions(root: Path) -> list[str]:
    tool = (root / "_runtime_libs" / "iree-dump-module").read_bytes()
    found = re.findall(rb"(?<![\w.])vm\.([a-z][a-z0-9_.]*[a-z0-9])", tool)
    names = {name.decode() for name in found} - _NOT_INSTRUCTIONS
    assert len(names) > 200, "iree-dump-module does not name its instructions any more"
    return [f"instruction vm.{name}" for name in sorted(names - {row.mnemonic for row in INSTRUCTIONS})]


def _imports(root: Path) -> list[str]:
    """A declaration ends with the file that the compiler embeds."""
    lines = []
    with open(root / "compiler" / "_mlir_libs" / "libIREECompiler.so", "rb") as file:
        library = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        for module in MODULES:
            start = library.find(f"vm.module @{module} {{\n".encode())
            text = library[start : library.find(b"\0", start)] if start >= 0 else b""
            names = {
                name.decode() for name in re.findall(rb"vm\.import private (?:optional )?@([\w.]+)\(", text)
            }
            assert names, f"the compiler does not declare what module {module} has"
            known = {row.name for row in rows(module)}
            lines += [f"import {module}.{name}" for name in sorted(names - known)]
    return lines


def _modules(root: Path) -> list[str]:
    lines = []
    four = np.arange(4, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        for backend in _BACKENDS:
            path = Path(folder) / f"{backend}.vmfb"
            subprocess.run(
                [
                    root / "compiler" / "_mlir_libs" / "iree-compile", PROGRAM, "-o", path,
                    "--iree-hal-target-device=local", f"--iree-hal-local-target-device-backends={backend}",
                    "--iree-llvmcpu-target-cpu=generic",
                ],
                check=True, capture_output=True, timeout=300,
            )  # fmt: skip
            try:
                with jitree.Session("local-sync") as session:
                    result = np.asarray(session.load(path).simple_mul(four, four))
            except StatusError as error:
                lines.append(f"module for {backend}: {error}")
            else:
                assert (result == four * four).all()
    return lines


def main() -> int:
    """Returns 1 if there is something new."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder,
             "iree-base-compiler", "iree-base-runtime"],
            check=True,
        )  # fmt: skip
        releases = sorted(path.name.removesuffix(".dist-info") for path in Path(folder).glob("*.dist-info"))
        lines = news(Path(folder) / "iree")
    print(*releases, *(lines or ["nothing is new"]), sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
