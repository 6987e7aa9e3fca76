"""What compiled VMVX kernels take from their list of bindings."""

from __future__ import annotations

import pytest

from jitree.errors import StatusError
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.assembler import Assembler
from tests.loaders.vmvx.programs import NUMBER, load
from tests.loaders.vmvx.test_native import STORE_NUMBER, run

READS = f"""{NUMBER}
    %i14 = const.i32 {{index}}
    %r4 = list.get.ref %r{{argument}}, %i14, !{{type}}
    {STORE_NUMBER}
    return []
"""


@pytest.mark.parametrize(("argument", "index"), [(2, 1), (2, -1), (0, 0), (1, 0)])
def test_bindings_that_are_not_there(argument: int, index: int) -> None:
    text = READS.format(argument=argument, index=index, type="vm.buffer")
    module = Assembler("kernels").function("f", ENTRY_CONVENTION, text)
    texts = set()
    for tier in ("plain", "fast", "native"):
        with pytest.raises(StatusError) as caught:
            run(load(module, tier), 3)
        texts.add(str(caught.value).partition("\n")[0])
    assert len(texts) == 1


@pytest.mark.parametrize(("type", "truth"), [("vm.buffer", 1), ("vm.list<i8>", 0)])
def test_bindings_read_as_a_type(type: str, truth: int) -> None:
    """Machine code takes it that the elements of the list of bindings are buffers."""
    text = READS.format(argument=2, index=0, type=type)
    text = text.replace("return []", f"%i10 = cmp.nz.ref %r4\n{STORE_NUMBER}return []")
    for tier in ("plain", "fast", "native"):
        module = Assembler("kernels").function("f", ENTRY_CONVENTION, text)
        assert (run(load(module, tier), 3) == truth).all()
