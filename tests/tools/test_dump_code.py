"""``jitree dump --tiers``, ``--time``, ``--llvm`` and ``--asm``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.tools import dump, dump_code
from tests.assembler import Assembler
from tests.loaders.samples import sample
from tests.tools.command import ROOT

Dump = Callable[..., list[str]]

SUM = """
    %i2 = const.i32 0
    %i1 = const.i32 0
    br ^loop
    ^loop:
    %i3 = cmp.lt.i32.s %i1, %i0
    cond_br %i3, ^body, ^done
    ^body:
    %i2 = add.i32 %i2, %i1
    %i3 = const.i32 1
    %i1 = add.i32 %i1, %i3
    br ^loop
    ^done:
    return [%i2]
"""
MIXED = "%i1 = neg.f32 %i0\n%i2 = not.i32 %i1\nreturn [%i2]"
"""Reads a register as an integer that was written as a number."""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "module.vmfb"
    assembled = Assembler("sums").function("sum", "0i_i", SUM).function("mixed", "0f_i", MIXED)
    for data in (b"no executable", b"PK\x03\x04 damaged", sample("vmvx_mul-3.13.0.fb")):
        assembled.rodata(data)
    path.write_bytes(assembled.build())
    return str(path)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Dump:
    def run(*arguments: str) -> list[str]:
        assert dump.main(arguments) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_tiers(output: Dump, module: str) -> None:
    lines = output("--tiers", module)
    loop = lines.pop(2)
    assert loop.startswith("          loop at 00000017: no nest: ")
    assert lines == [
        "module @sums:",
        "  [  0] sum    native",
        "  [  1] mixed  fast: not.i32 at word 3 reads a register as another type than was written",
        "  1 of 2 functions native, 0 of 1 innermost loops in nests",
        "",
        "executable 0, @module:",
        "  [  0] mul_dispatch_0_elementwise_1000_f32  native",
        "          loop at 0000009B: nest of 1",
        "  1 of 1 functions native, 1 of 1 innermost loops in nests",
    ]


def test_time(output: Dump, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_code, "_LEAST_SHARE", 0.0)  # each is named, whatever it takes
    first, kernel, total, passes, *each = output("--time", module)
    assert first == "executable 0, @module:"
    part = r"\d+\.\d"
    times = rf"generating {part}, passes {part}, machine code {part} ms"
    assert re.fullmatch(rf"  \[  0\] mul_dispatch_0_elementwise_1000_f32  {times}", kernel)
    assert re.fullmatch(rf"  in all: {times}", total)
    assert re.fullmatch(rf"  passes of LLVM, {part} ms in all:", passes)
    assert all(re.fullmatch(rf" +{part} ms +{part}%  \S.*", line) for line in each)
    names = [line.partition("%  ")[2] for line in each]
    assert {"InstCombinePass", "Greedy Register Allocator"} <= set(names), "of the IR and of machine code"
    assert len(set(names)) == len(names) and names[-1] == "0 others"


REPORT = """
===---------------------------------------===
                 Pass execution timing report
===---------------------------------------===
  Total Execution Time: 0.0056 seconds (0.0083 wall clock)

   ---User Time---   --User+System--   ---Wall Time---  --- Name ---
   0.0030 ( 60.0%)   0.0040 ( 60.0%)   0.0500 ( 52.7%)  Virtual Register Map
   0.0020 ( 40.0%)   0.0010 ( 40.0%)   0.0007 (  8.4%)  Virtual Register Map #2
   0.0000 (  0.0%)   0.0002 (  0.0%)   0.0000 (  0.0%)  Basic Alias Analysis (stateless AA impl) #3
   0.0050 (100.0%)   0.0052 (100.0%)   0.0507 (100.0%)  Total
"""


def test_a_pass_that_runs_twice_is_one() -> None:
    """Of a processor, not by the clock on the wall, where LLVM gives both."""
    times = dump_code._added_up(REPORT)
    assert times == pytest.approx(
        {
            "Virtual Register Map": 0.005,
            "Basic Alias Analysis (stateless AA impl)": 0.0002,
        }
    )
    only_the_clock = "  0.0200 (100.0%)  SROAPass\n"
    assert dump_code._added_up(only_the_clock) == {"SROAPass": 0.02}


def test_llvm(output: Dump, module: str) -> None:
    lines = output("--llvm", "--function=sum", module)
    assert lines[0] == "; function 0 of module @sums"
    names = [line.split("@")[1].split("(")[0] for line in lines if line.startswith("define ")]
    assert names == ["enter.0", "resume.0"]


def test_assembly_of_a_kernel(output: Dump, module: str) -> None:
    lines = output("--asm", "--function=mul_dispatch_0_elementwise_1000_f32", module)
    assert lines[0] == "; kernel 0 of executable 0"
    labels = {line.split(":")[0].strip('"') for line in lines[1:] if not line.startswith(("\t", " ", "."))}
    assert "workgroup" in labels
    assert any("mul" in line for line in lines), "the kernel is inlined"
    assert lines[-1].startswith(".Lfunc_end")


def test_both_are_shown(output: Dump, module: str) -> None:
    both = output("--llvm", "--asm", "--function=0", module)
    assert both == output("--llvm", "--function=0", module) + output("--asm", "--function=0", module)


def test_functions_that_are_not_there(module: str) -> None:
    with pytest.raises(NotFoundError, match="no function `other` in the module or its VMVX executables"):
        dump.main(["--llvm", "--function=other", module])
    with pytest.raises(NotFoundError, match="function 1 of module @sums is not compiled as a whole"):
        dump.main(["--llvm", "--function=mixed", module])
    with pytest.raises(InvalidArgumentError, match="--llvm and --asm need --function"):
        dump.main(["--asm", module])


DIGITS = ROOT / "examples" / "digits"
REASON = "function 1 of module @module is not compiled as a whole; `jitree dump --tiers` says why"


def test_a_function_of_several_dispatches_offers_them() -> None:
    """Each name that is offered can be shown."""
    with pytest.raises(NotFoundError) as caught:
        dump.main(["--asm", "--function=classify", str(DIGITS / "digits.vmvx.vmfb")])
    names = (
        "classify_dispatch_0_slow_memcpy, classify_dispatch_1_conv_8x8x8x3x3_f32, "
        "classify_dispatch_2_conv_4x4x8x2x2_f32, classify_dispatch_3_conv_4x4x16x3x3x8_f32, "
        "classify_dispatch_4_conv_2x2x16x2x2_f32, classify_dispatch_5_vecmat_10x64_f32, "
        "classify_dispatch_6_softmax_10xf32_dispatch_tensor_store"
    )
    assert str(caught.value) == f"NOT_FOUND; {REASON}; --function= takes its dispatches: {names}"
    first = names.partition(",")[0]
    assert dump.main(["--llvm", f"--function={first}", str(DIGITS / "digits.vmvx.vmfb")]) == 0


def test_many_dispatches_are_not_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dump_code, "_SHOWN", 2)
    with pytest.raises(NotFoundError, match=r"conv_8x8x8x3x3_f32 and 5 more, which it lists$"):
        dump.main(["--asm", "--function=classify", str(DIGITS / "digits.vmvx.vmfb")])


@pytest.mark.parametrize("flag", ["--asm", "--llvm"])
def test_the_one_dispatch_of_a_function_is_shown(flag: str, output: Dump) -> None:
    path = str(ROOT / "tests" / "data" / "releases" / "simple_mul-3.13.0.vmfb")
    name = "simple_mul_dispatch_0_elementwise_4_f32"
    first, *rest = output(flag, "--function=simple_mul", path)
    assert first == f"; {REASON}; it has one dispatch, {name}:"
    assert rest == output(flag, f"--function={name}", path) and len(rest) > 10


def test_dispatches_that_are_machine_code_already() -> None:
    path = str(DIGITS / "digits.llvm-cpu.vmfb")
    already = "; its dispatches are machine code in the file already, which `--output=executables` lists"
    with pytest.raises(NotFoundError) as caught:
        dump.main(["--asm", "--function=classify", path])
    assert str(caught.value) == f"NOT_FOUND; {REASON}{already}"
    with pytest.raises(NotFoundError) as caught:
        dump.main(["--asm", "--function=other", path])
    assert str(caught.value).endswith(f"no function `other` in the module or its VMVX executables{already}")


def test_names_that_are_near_are_offered() -> None:
    with pytest.raises(
        NotFoundError, match="VMVX executables; it has the dispatches classify_dispatch_5_vec"
    ):
        dump.main(["--asm", "--function=vecmat", str(DIGITS / "digits.vmvx.vmfb")])


def test_bytecode_of_a_dispatch_is_not_there() -> None:
    name = "classify_dispatch_5_vecmat_10x64_f32"
    with pytest.raises(NotFoundError, match="--llvm shows the code of a dispatch of VMVX"):
        dump.main(["--output=disassembly", f"--function={name}", str(DIGITS / "digits.vmvx.vmfb")])


def test_a_function_without_dispatches_offers_none(module: str) -> None:
    with pytest.raises(NotFoundError, match=r"`jitree dump --tiers` says why$"):
        dump.main(["--asm", "--function=mixed", module])
