"""Regenerates the generated files of the package: ``python -m jitree.tools.ship_images``.

To be run after a change of the instruction table or of code that decides machine code, and after a merge.
Images whose LLVM IR is as it was stay as they are; the same IR, numba, llvmlite and Python give the same
bytes on every machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.image import Recipe, shipped
from jitree.codegen.image.build import build, generate, level_target
from jitree.codegen.image.compile import Target
from jitree.codegen.image.flat import encode, hashed, key_of
from jitree.codegen.image.generated import Generated
from jitree.codegen.image.worklist import spread
from jitree.tools import build_stamp

COMMAND: Final = "python -m jitree.tools.ship_images"
TABLES: Final = ("jitree.vmfb.superinstructions", "jitree.dispatch.plain.generate_shapes")
"""What writes the Python files that are derived from the instruction table and the semantics."""
_BACK_END: Final = tuple(f"codegen/{name}.py" for name in ("image/compile", "image/link", "processor_texts"))
"""What machine code is made with, from IR."""
_OTHER_PROCESSORS: Final = {("loop", "x86-64-v4"): "x86-64-v3"}
"""By image and level: the processor that LLVM compiles for in place of the level's. It orders instructions of
v4 as for Skylake: loops over integers took 2 to 3 % longer (``perf/vm.py``, on Zen 5). Handlers have no use
for wider vectors."""


class ShippedImage(NamedTuple):
    """An image to be shipped."""

    recipe: Recipe
    generated: Generated
    level: str

    @property
    def path(self) -> Path:
        return Path(shipped.path_of(self.recipe.name, self.level))

    @property
    def target(self) -> Target:
        return level_target(_OTHER_PROCESSORS.get((self.recipe.name, self.level), self.level))

    def key(self) -> bytes:
        """A digest of all that decides the bytes."""
        parts = compiler(), *map(build_stamp.line, _BACK_END), self.target, self.generated
        return hashed((repr(parts).encode(),))

    def is_current(self) -> bool:
        """Whether the file that is shipped was made from the same."""
        return self.path.exists() and key_of(self.path.read_bytes()) == self.key()

    def file(self) -> bytes:
        """The file to be shipped, built now."""
        return encode(build(self.generated, self.target), self.key(), self.recipe.title)


def main(arguments: list[str]) -> int:
    """Writes tables and the stamp, builds images that are out of date, removes others. ``--check`` only names
    images that are out of date."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # Numba orders some variables by their hash
        command = [sys.executable, "-m", "jitree.tools.ship_images", *arguments]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})
    if not arguments:
        write_tables()
    from jitree.tools.cache import own_recipes  # which loads the tables

    jobs = [job for recipe in own_recipes() for job in jobs_of(recipe)]
    old = [job for job in jobs if not job.is_current()]
    if arguments == ["--check"]:
        print(*(job.path.name for job in old))
        return int(bool(old))
    for job, data in zip(old, spread(ShippedImage.file, old), strict=True):
        job.path.write_bytes(data)
        print(f"{job.path.name}: {len(data)} bytes")
    stamp = Path(shipped.STAMP_FILE)
    stamp.write_text(build_stamp.text(compiler()), encoding="ascii")
    for path in set(Path(shipped.FOLDER).iterdir()) - {stamp, *(job.path for job in jobs)}:
        path.unlink()
        print(f"{path.name}: removed")
    print(f"{len(jobs) - len(old)} of {len(jobs)} images were current")
    return 0


def write_tables() -> None:
    """Other processes run them, so that this one loads what they have written."""
    for table in TABLES:
        subprocess.run([sys.executable, "-m", table], check=True)


def jobs_of(recipe: Recipe) -> Iterator[ShippedImage]:
    """The images of a recipe, one for each kind of processors."""
    generated = generate(recipe)
    return (ShippedImage(recipe, generated, level) for level in shipped.LEVELS)


def compiler() -> str:
    """The compilers that are installed."""
    import llvmlite
    import numba
    from llvmlite.binding import llvm_version_info

    llvm = ".".join(map(str, llvm_version_info))
    python = ".".join(map(str, sys.version_info[:2]))
    return f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, LLVM {llvm}, Python {python}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
