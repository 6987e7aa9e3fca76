"""How far it is to a result: files entered, functions called and changes of file, of the ways of a program.

    python -m tests.ways

Counted in new processes, whose machine code is there. A call counts in the file whose function it calls;
comprehensions are part of the function that they stand in, as Python 3.12 has it. What other threads do, and
the package's own importer, do not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, TypeVar

ROOT: Final = Path(__file__).resolve().parent.parent
_PACKAGE: Final = f"{ROOT}/jitree/"
_DIGITS: Final = f"{ROOT}/examples/digits/digits"
_ONE_PROCESSOR: Final = f"{ROOT}/tests/data/programs/digits.vmfb"
_INSIDE: Final = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}
_WARM: Final = 3
"""Calls after which there is nothing left to prepare."""

Result = TypeVar("Result")


class Way(NamedTuple):
    files: int
    calls: int
    changes: int


class CallCounter:
    """Counts while something runs."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._calls = self._changes = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(_PACKAGE) or frame.f_code.co_name in _INSIDE:
            return
        self._calls += 1
        self._changes += file != self._last
        self._files.add(file)
        self._last = file

    def count(self, name: str, action: Callable[[], Result]) -> Result:
        """Does something and prints what it took."""
        sys.setprofile(self)
        try:
            return action()
        finally:
            sys.setprofile(None)
            print(name, len(self._files), self._calls, self._changes, sep="\t")


def prepare() -> None:
    """Has what processes share: machine code, and Python's bytecode."""
    import numpy as np

    import jitree

    with jitree.Session("local-sync", tier="fast") as session:
        session.load(_ONE_PROCESSOR).classify(np.zeros((8, 8), np.float32))


def program() -> None:
    """The ways of a program with tensors, whose kernel is machine code of IREE's compiler."""
    import numpy as np

    import jitree
    from jitree.base import start

    start.use = lambda: None  # the importer of `start.bin`, which may be there or not
    session = CallCounter().count("session", lambda: jitree.Session("local-sync"))
    module = CallCounter().count("load", lambda: session.load(_ONE_PROCESSOR))
    function, image = module.classify, np.zeros((8, 8), np.float32)
    CallCounter().count("first call", lambda: function(image))
    for _ in range(_WARM):
        function.call_slowly((image,), {})
    CallCounter().count("call by Python", lambda: function.call_slowly((image,), {}))


def unknown() -> None:
    """The way of a call in an interpreter whose objects machine code does not know."""
    import numpy as np

    import jitree
    from jitree.base import start
    from tests import unknown_interpreter
    from tests.api.direct import prepare_calls

    assert unknown_interpreter
    start.use = lambda: None
    prepare_calls()
    image = np.zeros((8, 8), np.float32)
    function = jitree.Session("local-sync", tier="fast").load(_ONE_PROCESSOR).classify
    for _ in range(_WARM):
        function(image)
    assert function.is_settled
    CallCounter().count("unknown interpreter", lambda: function(image))


def kernels() -> None:
    """From the bytecode of VMVX kernels to LLVM IR, the second time: Numba's part is known by then."""
    from jitree.codegen.image import build
    from jitree.loaders.vmvx import kernels as vmvx_kernels
    from jitree.vmfb.decode import BytecodeModule

    module = BytecodeModule.load(f"{_DIGITS}.vmvx.vmfb")
    recipes = [
        recipe
        for executable in vmvx_kernels.executables(module.module)
        for recipe in vmvx_kernels.recipes(executable)
    ]
    build.generate(recipes[0])
    CallCounter().count("VMVX kernels", lambda: [build.generate(recipe) for recipe in recipes])


def measured() -> dict[str, Way]:
    """All ways."""
    found = {}
    settings = {name: value for name, value in os.environ.items() if not name.startswith("JITREE_")}
    with tempfile.TemporaryDirectory() as cache:
        environment = settings | {"JITREE_CACHE_DIR": cache}
        for name in ("prepare", "program", "unknown", "kernels"):
            command = [sys.executable, "-c", f"from tests.ways import {name}; {name}()"]
            report = subprocess.check_output(command, cwd=ROOT, text=True, env=environment, timeout=300)
            for line in report.splitlines():
                way, *numbers = line.split("\t")
                found[way] = Way(*map(int, numbers))
    return found


if __name__ == "__main__":
    for name, way in measured().items():
        print(f"{name:20}{way.files:6} files{way.calls:10} calls{way.changes:10} changes of file")
