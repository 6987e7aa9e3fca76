"""When compiled kernels are where threads look for them."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from jitree.codegen import image
from jitree.codegen.record import words_of
from jitree.hal.command_layout import KernelEntry
from jitree.loaders.vmvx import native
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, KernelEnvironment
from tests.assembler import Assembler
from tests.loaders.vmvx.programs import COUNT, kernels, load
from tests.loaders.vmvx.test_native import LEAVES, run

_ENTRY_POINT: Final = words_of(KernelEntry)


def test_threads_find_a_kernel_when_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before its machine code is where they jump to, nor parts of it while they would have the VM run
    them."""
    executable = load(kernels(), "native")
    assert (run(executable, 9) == 0).all()
    compiled = executable._compiled
    assert compiled is not None and compiled._records is not None
    ready, records = compiled._images[0], compiled._records
    environment = KernelEnvironment(records[_ENTRY_POINT.environment])
    code = _ENTRY_POINT.code
    run_span, machine_code = records[code], environment.workgroup
    environment.workgroup = records[code] = 0
    seen = []

    class Images(dict[int, image.Image]):
        def __setitem__(self, ordinal: int, ready: image.Image) -> None:
            seen.append(environment.workgroup)
            super().__setitem__(ordinal, ready)

    class Entry(KernelEntry):
        def __setattr__(self, name: str, value: int) -> None:
            if name == "parts":
                seen.append(records[code])
            super().__setattr__(name, value)

    monkeypatch.setattr(native, "KernelEntry", Entry)
    compiled._images = Images()
    compiled._use(0, ready)
    assert seen == [machine_code, run_span] and machine_code and run_span
    assert (run(executable, 9) == 0).all()


def test_kernels_that_others_have_had_compiled_need_no_python() -> None:
    """Whatever else of their executable is not there yet."""
    first = load(kernels(), "native")
    assert (run(first, 9) == 0).all()
    code = _ENTRY_POINT.code
    rows = [first._entries[code]]
    number = int.from_bytes(np.random.default_rng().bytes(3))
    new = LEAVES.replace("const.i32 4096", f"const.i32 4096\n%i21 = const.i32 {number}")
    module = Assembler("others").function("count", ENTRY_CONVENTION, COUNT, attrs={"binding_count": "1"})
    executable = load(module.function("new", ENTRY_CONVENTION, new), "native")
    rows.append(executable._entries[code])
    assert not executable._compiled.ready  # type: ignore[union-attr]
    assert rows[0] == rows[1]
    assert (run(executable, 9) == 0).all()
