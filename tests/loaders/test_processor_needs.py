"""What machine code needs of a processor.

Each row of ``instructions.tsv`` is held against LLVM's assembler; then modules for another processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.api import load_order
from jitree.errors import FailedPreconditionError
from jitree.hal.executable import prepared_executables
from jitree.loaders import environment, processor_needs
from jitree.loaders.elf_format import ARCHITECTURES, host_architecture
from jitree.loaders.processor_needs import opcodes
from jitree.tools.main import dispatch
from jitree.vmfb.decode import BytecodeModule

llvm = pytest.importorskip("llvmlite.binding", reason="LLVM assembles the instructions")

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "data" / "programs"
on_x86 = pytest.mark.skipif(
    host_architecture() != ARCHITECTURES[0], reason="LLVM's assembler here is the one of this machine"
)
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
SAMPLES = {
    "avx": ("vaddps %xmm1, %xmm2, %xmm3", "vmovups (%rax), %ymm1"),
    "fma": ("vfmadd231ps %ymm1, %ymm2, %ymm3", "vfnmadd213sd 8(%rax), %xmm2, %xmm3"),
    "f16c": ("vcvtph2ps %xmm1, %ymm2", "vcvtps2ph $4, %ymm1, (%rax)"),
    "avx2": (
        "vpaddd %ymm1, %ymm2, %ymm3", "vpbroadcastd %xmm1, %xmm2", "vpermps %ymm1, %ymm2, %ymm3",
        "vpgatherdd %ymm1, (%rax,%ymm2,4), %ymm3", "vpsllvd %xmm1, %xmm2, %xmm3", "vpermq $1, %ymm1, %ymm2",
        "vpshufd $1, %ymm1, %ymm2", "vpmulld %ymm1, %ymm2, %ymm3", "vpalignr $1, %ymm1, %ymm2, %ymm3",
    ),
    "bmi": ("andn %eax, %ebx, %ecx", "blsr %rax, %rbx", "bextr %eax, %ebx, %ecx", "tzcnt %eax, %ebx"),
    "bmi2": (
        "bzhi %eax, %ebx, %ecx", "mulx %rax, %rbx, %rcx", "shlx %eax, %ebx, %ecx", "rorx $1, %eax, %ecx",
    ),
    "lzcnt": ("lzcnt %rax, %rbx",),
    "popcnt": ("popcnt %eax, %ebx",),
    "movbe": ("movbe (%rax), %ebx", "movbe %rbx, 4(%rax)"),
    "gfni": ("gf2p8mulb %xmm1, %xmm2", "vgf2p8affineqb $1, %ymm1, %ymm2, %ymm3"),
    "avxvnni": ("{vex} vpdpbusd %ymm1, %ymm2, %ymm3",),
    "avx512f": (
        "vaddps %zmm1, %zmm2, %zmm3", "kmovw %eax, %k1", "kortestw %k1, %k2", "vaddss %xmm17, %xmm1, %xmm2",
        "vmovups (%rax), %zmm1{%k1}{z}", "kshiftrw $1, %k1, %k2",
    ),
    "avx512vnni": ("vpdpbusd %zmm1, %zmm2, %zmm3", "vpdpwssd %ymm17, %ymm2, %ymm3"),
    "avx512bf16": ("vdpbf16ps %zmm1, %zmm2, %zmm3", "vcvtneps2bf16 %zmm1, %ymm2"),
    "avx512fp16": (
        "vaddph %zmm1, %zmm2, %zmm3", "vfmadd231ph %zmm1, %zmm2, %zmm3", "vcmpeqph %zmm1, %zmm2, %k1",
    ),
    "avx512vbmi": (
        "vpermb %zmm1, %zmm2, %zmm3", "vpermi2b %zmm1, %zmm2, %zmm3", "vpmultishiftqb %zmm1, %zmm2, %zmm3",
    ),
    "avx512vbmi2": (
        "vpcompressb %zmm1, %zmm2", "vpshldvd %zmm1, %zmm2, %zmm3", "vpshrdw $1, %zmm1, %zmm2, %zmm3",
    ),
    "avx512bitalg": ("vpopcntb %zmm1, %zmm2", "vpshufbitqmb %zmm1, %zmm2, %k1"),
    "avx512vpopcntdq": ("vpopcntd %zmm1, %zmm2",),
    "avx512ifma": ("vpmadd52luq %zmm1, %zmm2, %zmm3",),
    "amx-tile": ("tilezero %tmm1", "ldtilecfg (%rax)", "tileloadd (%rax,%rbx), %tmm1"),
    "amx-int8": ("tdpbssd %tmm1, %tmm2, %tmm3",),
    "amx-bf16": ("tdpbf16ps %tmm1, %tmm2, %tmm3",),
}  # fmt: skip
OLDER = (
    "addps %xmm1, %xmm2", "movups 300(%rip), %xmm1", "imul $70000, 8(%rax,%rbx,4), %ecx", "movabs $1, %rax",
    "test $5, %al", "testl $70000, (%rax)", "notl %eax", "mov %ax, 2(%rsp)", "movw $3, (%rax)", "call 0x100",
    "jne 0x5000", "jmp *%rax", "ret", "nopw 0(%rax,%rax)", "pshufd $1, %xmm1, %xmm2", "bsf %eax, %ebx",
    "bsr %eax, %ebx", "pmaxsd %xmm1, %xmm2", "roundps $1, %xmm1, %xmm2", "crc32b %al, %ebx", "bswap %eax",
    "lock cmpxchg %eax, (%rbx)", "rep stosb", "cvttsd2si %xmm1, %rax", "enter $5, $1", "fldt (%rax)", "ud2",
    "movabs 0x1122334455667788, %al", "shld $3, %eax, %ebx", "addw $300, %cx", "pushq $7", "xchg %ax, %ax",
)  # fmt: skip
"""Instructions that each processor of the first level has, or of the second."""
ARM_SAMPLES = {
    "dotprod": "<4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)",
    "i8mm": "<4 x i32> @llvm.aarch64.neon.usmmla.v4i32.v16i8(<4 x i32>, <16 x i8>, <16 x i8>)",
    "bf16": "<4 x float> @llvm.aarch64.neon.bfdot.v4f32.v8bf16(<4 x float>, <8 x bfloat>, <8 x bfloat>)",
    "sve": "<vscale x 4 x i32> @llvm.aarch64.sve.sabd.nxv4i32(<vscale x 4 x i1>, <vscale x 4 x i32>, "
    "<vscale x 4 x i32>)",
}


@pytest.fixture(scope="module", autouse=True)
def _targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def code_of(ir: str, triple: str, features: str) -> bytes:
    """The machine code of a module."""
    machine = llvm.Target.from_triple(triple).create_target_machine(features=features)
    file = llvm.object_file.ObjectFileRef.from_data(machine.emit_object(llvm.parse_assembly(ir)))
    return b"".join(bytes(section.data()) for section in file.sections() if section.is_text())


def assembled(text: str) -> bytes:
    features = ",".join(f"+{name}" for name in (*SAMPLES, "sse4.2", "avx512vl", "avx512bw", "avx512dq"))
    return code_of(f'target triple = "{X86}"\nmodule asm "{text}"\n', X86, features)


def on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    row = next(row for row in ARCHITECTURES if row.name == name)
    monkeypatch.setattr(processor_needs, "host_architecture", lambda: row)


@on_x86
def test_each_feature_of_x86_64_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "x86_64")
    rows = processor_needs.instructions("x86_64")
    assert rows.keys() == SAMPLES.keys()
    for feature, texts in SAMPLES.items():
        for text in texts:
            assert feature in set(processor_needs.needed(assembled(text), rows)), text


@on_x86
def test_older_instructions_need_no_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "x86_64")
    for text in OLDER:
        assert not set(processor_needs.needed(assembled(text), SAMPLES)), text


@on_x86
def test_instructions_end_where_the_next_begin() -> None:
    texts = [text for group in (*SAMPLES.values(), OLDER) for text in group]
    codes = [assembled(text) for text in texts]
    starts = [sum(map(len, codes[:number])) for number in range(len(codes))]
    assert [each.offset for each in opcodes(b"".join(codes))] == starts
    assert not list(opcodes(b"\x06")), "no instruction of 64-bit code"
    assert len(list(opcodes(codes[0] + codes[1][:-1]))) == 1, "the last one is cut"


@pytest.mark.parametrize("feature", ARM_SAMPLES)
def test_features_of_arm_64_are_seen(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, "arm_64")
    rows = processor_needs.instructions("arm_64")
    declaration = ARM_SAMPLES[feature]
    result, _, rest = declaration.partition(" @")
    name, _, types = rest.rstrip(")").partition("(")
    operands = ", ".join(f"{type} %{number}" for number, type in enumerate(types.split(", ")))
    body = f"{{\n  %r = call {result} @{name}({operands})\n  ret {result} %r\n}}\n"
    ir = f'target triple = "{ARM}"\ndeclare {declaration}\ndefine {result} @f({operands}) {body}'
    assert set(processor_needs.needed(code_of(ir, ARM, f"+{feature}"), rows)) == {feature}


def processor_with(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Has this process believe that the processor has the features of a level of x86-64."""
    from jitree.base.platform import processor
    from jitree.codegen.image.shipped import LEVELS

    flags = LEVELS[level][1]
    real: Callable[[str], frozenset[str]] = processor.words
    monkeypatch.setattr(processor, "words", lambda name: flags if name == "flags" else real(name))
    table = environment.CpuData(processor.known_features())
    for user in (environment, processor_needs):
        monkeypatch.setattr(user, "host_cpu_data", lambda: table)
    on(monkeypatch, "x86_64")


@on_x86
@pytest.mark.parametrize("prefer", [None, "llvm-cpu", "fastest"])
def test_the_variant_for_all_processors_is_taken(prefer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    processor_with(monkeypatch, "x86-64-v3")
    ones = np.ones((32, 32), np.float32)
    with jitree.Session("local-sync", prefer=prefer) as session:
        assert np.asarray(session.load(PROGRAMS / "levels_both.vmfb").product(ones, ones))[3, 4] == 32


REFUSED = (
    "FAILED_PRECONDITION; module 'module' cannot run on this processor: its executables of format "
    "'embedded-elf-x86_64' are compiled for sapphirerapids with avx512f, amx-bf16, amx-int8 and 15 more "
    "features, which this processor (x86-64-v3) does not have; compile it with "
    "--iree-llvmcpu-target-cpu=x86-64-v3, with --iree-llvmcpu-target-cpu=generic for all processors, or for "
    "vmvx, which jitree compiles where it runs"
)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_of_executables_for_several_processors_this_one_s_is_taken(device: str) -> None:
    """On each processor that has a row: the digits of README, and the summary names all."""
    file = ROOT / "examples" / "digits" / "digits.llvm-cpu.vmfb"
    assert [each.format for each in processor_needs.targets(BytecodeModule.load(file).module)] == [
        "embedded-elf-x86_64", "embedded-elf-arm_64",
    ]  # fmt: skip
    here = host_architecture()
    assert here is not None
    before = set(prepared_executables())
    with jitree.Session(device) as session:
        assert np.argmax(session.load(file).classify(np.full((8, 8), 0.5, np.float32))) == 1
        [made] = set(prepared_executables()) - before
        assert made.parameters is not None
        assert made.parameters.format == f"embedded-elf-{here.name}"


@on_x86
def test_code_for_another_processor_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    processor_with(monkeypatch, "x86-64-v3")
    file = str(PROGRAMS / "levels.vmfb")
    with jitree.Session("local-sync") as session, pytest.raises(FailedPreconditionError) as refused:
        session.load(file)
    assert str(refused.value) == REFUSED
    assert dispatch(["run", file, "--device=local-sync"]) == 1
    assert "compiled for sapphirerapids" in capsys.readouterr().err
    assert dispatch(["dump", "--output=summary", file]) == 0
    assert "Processor:  sapphirerapids; this one lacks avx512f, amx-bf16" in capsys.readouterr().out
    [code] = (
        row.data for row in BytecodeModule.load(file).module.rodata if bytes(row.data[:4]) == b"\x7fELF"
    )
    (tmp_path / "product.so").write_bytes(code)
    flags = ["--executable_format=embedded-elf-x86_64", f"--executable_file={tmp_path / 'product.so'}"]
    assert dispatch(["benchmark-executable", *flags, "--workgroup_count=1,1,1"]) == 1
    assert "are compiled with avx512f, which this processor (x86-64-v3) does not" in capsys.readouterr().err


@on_x86
def test_what_runs_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that states features whose instructions it does not have, and one that is silent."""
    processor_with(monkeypatch, "x86-64-v2")
    for file in (PROGRAMS / "calls.vmfb", PROGRAMS / "encoded.vmfb"):
        with jitree.Session("local-sync") as session:
            session.load(file)
    monkeypatch.setattr(processor_needs, "_codes", lambda module: iter([assembled("addps %xmm1, %xmm2")]))
    module = jitree.Session("local-sync")._read(PROGRAMS / "levels.vmfb")
    assert processor_needs.need_of(module.module, "embedded-elf-x86_64") is None  # type: ignore[union-attr]


@on_x86
def test_silent_modules_are_told_by_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    processor_with(monkeypatch, "x86-64-v3")
    monkeypatch.setattr(load_order, "_FEATURES", b"nothing is stated")
    monkeypatch.setattr(load_order, "_SILENT", 1000)
    monkeypatch.setattr(processor_needs, "targets", lambda module: [])
    with (
        jitree.Session("local-sync") as session,
        pytest.raises(FailedPreconditionError, match="are compiled with avx512f, which"),
    ):
        session.load(PROGRAMS / "levels.vmfb")
