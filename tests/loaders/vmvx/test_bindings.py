"""What compiled VMVX kernels take from their list of bindings, and where these end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from jitree.base.platform import processor
from jitree.codegen.image.build import target_here
from jitree.errors import StatusError
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned
from tests.loaders.vmvx import cut_programs
from tests.loaders.vmvx.cut_programs import KernelText, compiled, run_whole
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


def test_positions_that_do_not_fit_beyond_the_last_element() -> None:
    """Of 20 elements the positions fit 31 bits, those of the lanes after them do not. LLVM knows all of them,
    and took a mask of conditions on what it calls poison for one of all lanes."""
    text = KernelText(2)

    def body(at: list[str]) -> None:
        real = text.op("mul.f32", text.op("cast.si64.f32", at[0]), text.constant(1.1e8, "f32"))
        position = text.op("cast.f32.si64", real)
        value = text.load("i32", 3, text.op("div.i64.s", position, text.constant(110_000_000)))
        inside, end = text.label(), text.label()
        condition = text.op("cmp.lt.i64.s", text.constant(-5), position)
        text.lines += [f"cond_br {condition}, {inside}, {end}", f"{inside}:"]
        text.store("i32", 4, at[0], value)
        text.lines += [f"br {end}", f"{end}:"]

    text.loops([20], body)
    for executable in (load(text.module(), "plain"), compiled(text)):
        memory = aligned(np.full(64, -1, np.int32))
        run_whole(executable, 1, [], [aligned(np.arange(20, dtype=np.int32)), memory[:20]])
        assert memory.tolist() == [*range(20), *[-1] * 44]


@pytest.mark.parametrize("count", [17, 33, 9])
@pytest.mark.parametrize(("wide", "kind"), [("i32", "i8"), ("i32", "i16"), ("i64", "i32"), ("i64", "i8")])
@pytest.mark.parametrize("only", [None, 3])
def test_the_last_lane_of_narrowed_numbers(wide: str, kind: str, count: int, only: int | None) -> None:
    """LLVM stores one lane of a mask that it knows with all bytes of the number before it was narrowed."""
    text, element = KernelText(2), np.dtype(f"int{kind[1:]}")
    numbers = np.arange(1, count + 1, dtype=f"int{wide[1:]}") * 0x01010101

    def body(at: list[str]) -> None:
        value = text.load(wide, 3, at[0])
        value = value if wide == "i32" else text.op("trunc.i64.i32", value)
        if only is None:
            text.store(kind, 4, at[0], value)
            return
        inside, end = text.label(), text.label()
        condition = text.op("cmp.eq.i64", at[0], text.constant(only))
        text.lines += [f"cond_br {condition}, {inside}, {end}", f"{inside}:"]
        text.store(kind, 4, at[0], value)
        text.lines += [f"br {end}", f"{end}:"]

    text.loops([count], body)
    memory = aligned(np.full(64, -1, element))
    expected = memory.copy()
    chosen = slice(count) if only is None else slice(only, only + 1)
    expected[chosen] = numbers[chosen].astype(element)
    run_whole(compiled(text), 1, [], [aligned(numbers), memory[:count]])
    assert memory.tolist() == expected.tolist()


@pytest.fixture
def fewer_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system's text says less than the processor: no AVX-512."""
    own = processor.description().decode().split()
    (tmp_path / "cpuinfo").write_text(
        f"flags : {' '.join(word for word in own if not word.startswith('avx512'))}\n\n"
    )
    with monkeypatch.context() as patched:
        patched.setattr(processor, "_FILE", str(tmp_path / "cpuinfo"))
        _forget()
        yield
    _forget()


def _forget() -> None:
    for known in processor.kept:
        known.cache_clear()


@pytest.mark.parametrize("kind", ["i8", "i16"])
def test_llvm_makes_code_for_the_processor_that_nests_are_written_for(fewer_flags: None, kind: str) -> None:
    """It stored the last lane of 33 as 32 bits, since nests hide masks from LLVM only with AVX-512."""
    text, element = KernelText(2), np.dtype(f"int{kind[1:]}")
    text.loops([33], lambda at: text.store(kind, 4, at[0], text.load("i32", 3, at[0])))
    memory, numbers = aligned(np.full(64, -1, element)), np.arange(33, dtype=np.int32)
    with patch.object(cut_programs, "host_target", target_here):
        run_whole(compiled(text), 1, [], [aligned(numbers), memory[:33]])
    assert memory.tolist() == [*range(33), *[-1] * 31]
