"""Computes the build stamp of the package from its sources, for developers and tests."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path
from typing import Final

import jitree
from jitree.codegen.image.flat import hashed
from jitree.errors import ignored

_PACKAGE: Final = Path(jitree.__file__).parent
_SOURCES: Final = (
    "api/calls/native/*", "base/stop_word.py", "codegen/**/*", "dispatch/fast/*",
    "cuda/launches.py", "cuda/submission.py",
    "dispatch/native/**/*", "dispatch/semantics*", "hal/*_layout.py", "hal/*_record.py", "hal/enums.py",
    "hal/heap.py", "hal/local/executor/*", "hal/local/queue_record.py", "loaders/code_scan.py",
    "loaders/vmvx/*", "modules/hal/native/*", "modules/imports.tsv", "modules/vmvx/*", "regs/access.py",
    "regs/layout.py", "types.py", "vmfb/cconv.py", "vmfb/instructions.py", "vmfb/isa*", "vmfb/native/*",
    "vmfb/superinstruction*", "vmfb/tables.py", "vmfb/words.py",
)  # fmt: skip
"""What decides machine code: of programs, and of the package's own images."""
_SUFFIXES: Final = (".py", ".tsv")


def text(compiler: str) -> str:
    """Lists the compiler and a line for each file, so that branches merge."""
    return "\n".join([compiler, *map(line, sources()), ""])


def sources() -> list[str]:
    """The files that decide machine code, by their names in the package."""
    found = {path for pattern in _SOURCES for path in _PACKAGE.glob(pattern) if path.suffix in _SUFFIXES}
    return sorted(path.relative_to(_PACKAGE).as_posix() for path in found)


def changed_since(stamp: Path) -> bool:
    """Tells whether a younger file has other code than a stamp says.

    If none has, the stamp is as young as this look: a checkout writes all files at once, and to read them
    takes a second and a half.
    """
    begun = time.time_ns()
    lines, age = set(stamp.read_text(encoding="ascii").splitlines()), stamp.stat().st_mtime
    young = [name for name in sources() if (_PACKAGE / name).stat().st_mtime >= age]
    changed = any(line(name) not in lines for name in young)
    if young and not changed:
        with ignored(OSError):  # not ours to write to
            os.utime(stamp, ns=(begun, begun))
    return changed


def line(name: str) -> str:
    """A digest of a file's code, without comments, documentation and layout; and the file's name."""
    content = (_PACKAGE / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        content = repr(_code(ast.parse(content)))
    return f"{hashed((content.encode(),)).hex()[:16]} {name}"


def _code(node: object) -> object:
    """Gives a tree without documentation and without fields that only some Pythons have."""
    if isinstance(node, ast.AST):
        fields = [(name, _code(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return type(node).__name__, fields
    if isinstance(node, list):
        return [_code(item) for item in node if not _is_documentation(item)]
    return node


def _is_documentation(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
