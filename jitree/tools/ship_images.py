"""Makes everything anew that is generated and comes with the package: ``python -m jitree.tools.ship_images``.

To be run after a change of the instruction table, the semantics, or any other file that an image of the
package is made from; the same files, numba, llvmlite and Python give the same bytes. Images only on x86-64,
since one may be generated for the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from jitree.codegen.image import Recipe, shipped
from jitree.codegen.image.build import build
from jitree.codegen.image.compile import Target
from jitree.codegen.image.digests import digest_of
from jitree.codegen.image.flat import encode
from jitree.errors import UnavailableError
from jitree.tools.cache_warm import own_recipes

COMMAND: Final = "python -m jitree.tools.ship_images"
TABLES: Final = ("jitree.vmfb.generate_fused", "jitree.dispatch.plain.generate_shapes")
"""What writes the Python files that are derived from the instruction table and the semantics."""
COMPILER_FILE: Final = Path(shipped.FOLDER, "compiler.txt")
"""Says what the images were compiled with."""
TARGET: Final = Target("x86_64-unknown-linux-gnu", shipped.PROCESSORS, "")


def main() -> int:
    """Writes tables, builds images and removes what is no longer one. UNAVAILABLE on another machine."""
    write_tables()
    if os.uname().machine != "x86_64":
        raise UnavailableError(
            f"images are shipped for x86-64 and have to be built there, not on {os.uname().machine}"
        )
    folder = Path(shipped.FOLDER)
    folder.mkdir(exist_ok=True)
    made = {COMPILER_FILE}
    for recipe in own_recipes():
        path = Path(shipped.path_of(recipe.name))
        data = image_file(recipe)
        path.write_bytes(data)
        made.add(path)
        print(f"{path.name}: {len(data)} bytes")
    COMPILER_FILE.write_text(compiler() + "\n", encoding="ascii")
    for path in set(folder.iterdir()) - made:
        path.unlink()
        print(f"{path.name}: removed")
    return 0


def write_tables() -> None:
    """Each by a process of its own: the opcode words that this one may have loaded are those of before."""
    for table in TABLES:
        subprocess.run([sys.executable, "-m", table], check=True)


def image_file(recipe: Recipe) -> bytes:
    """The file that is shipped for a recipe, built now."""
    return encode(build(recipe, target=TARGET), digest_of(recipe), recipe.title)


def compiler() -> str:
    """What :data:`COMPILER_FILE` says of the compiler that is installed."""
    import llvmlite
    import numba
    from llvmlite.binding import llvm_version_info

    llvm = ".".join(map(str, llvm_version_info))
    python = ".".join(map(str, sys.version_info[:2]))
    return f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, LLVM {llvm}, Python {python}"


if __name__ == "__main__":
    sys.exit(main())
