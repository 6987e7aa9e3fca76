"""What machine code needs of a processor.

``instructions.tsv`` here has bytes of instructions for each item of the package's; then come functions, and
modules for another processor."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.api import load_order
from jitree.base.platform import processor
from jitree.codegen import image
from jitree.errors import FailedPreconditionError
from jitree.hal.executable import prepared_executables
from jitree.loaders import elf_format, environment, instruction_tables, processor_needs
from jitree.loaders.code_scan import PADDING, CodeScan
from jitree.loaders.elf_file import read_elf
from jitree.loaders.elf_format import ARCHITECTURES, host_architecture
from jitree.loaders.environment import host_cpu_data
from jitree.loaders.instruction_tables import ARM, RECIPE, X86, features, needed
from jitree.tools.main import dispatch
from jitree.vmfb.decode import BytecodeModule
from tests.loaders.samples import dynamic_entry, patched, program_header, section

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "data" / "programs"
on_x86 = pytest.mark.skipif(
    host_architecture() != ARCHITECTURES[0], reason="the executables of these modules are for x86-64"
)
UNKNOWN = "06"
"""No instruction of 64-bit code."""
RETURN, WIDE, FUSED = "c3", "62f16c4858d9", "c4e26db8d9"
"""ret; vaddps %zmm1, %zmm2, %zmm3; vfmadd231ps %ymm1, %ymm2, %ymm3."""
ARM_RETURN, SCALABLE = "c0035fd6", "00008004"
"""ret; sve."""


def rows(name: str) -> list[list[str]]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture(params=["machine code", "Python"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of what looks through code."""
    if request.param == "Python":
        monkeypatch.setattr(instruction_tables, "_entry", instruction_tables._interpreted)
    else:
        image.wait(RECIPE)


def need_of(code: str, architecture: str = X86, starts: tuple[int, ...] = (0,)) -> set[str]:
    padded = memoryview(bytes.fromhex(code) + bytes(PADDING))
    return set(needed(padded, np.array(starts, np.int64), architecture, frozenset(features(architecture))))


def on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    row = next(row for row in ARCHITECTURES if row.name == name)
    monkeypatch.setattr(processor_needs, "host_architecture", lambda: row)


@pytest.mark.parametrize("architecture", [X86, ARM])
def test_each_instruction_needs_what_it_is_listed_with(architecture: str) -> None:
    """Those that need nothing, and each without the features that it does not need, among them."""
    listed = [row for row in rows("instructions.tsv") if row[0] == architecture]
    for _, code, names, text in listed:
        assert need_of(code, architecture) == set(names.split()), text
    seen = {name for row in listed for name in row[2].split()}
    assert seen == {name for name, row in features(architecture).items() if row.instructions}


def test_instructions_end_where_the_next_begin() -> None:
    """A function of all of them, then one that is cut."""
    listed = [row for row in rows("instructions.tsv") if row[0] == X86]
    needs = {name for row in listed for name in row[2].split()}
    assert need_of("".join(row[1] for row in listed) + UNKNOWN) == needs
    assert need_of(WIDE[:-2]) == {"avx512f"}, "what is cut is read, and no more than that"


@pytest.mark.parametrize("architecture", [X86, ARM])
def test_each_feature_that_compilers_state_has_a_row(architecture: str) -> None:
    known = features(architecture)
    for of, cpu, names in rows("processors.tsv"):
        if of == architecture:
            assert not set(names.split()) - known.keys(), cpu
    for row in known.values():
        assert bool(row.instructions) != bool(row.reason), row.name


def test_features_with_instructions_are_asked_of_the_processor() -> None:
    """Of one that is not asked nothing is refused."""
    tables = {X86: processor.X86_64, ARM: processor.ARM_64}
    for architecture, text in tables.items():
        asked = set(text.split()[0::3])
        assert {name for name, row in features(architecture).items() if row.instructions} <= asked


def test_the_processor_itself_is_asked_for_all_that_its_system_is() -> None:
    """Where the system says nothing: a feature that is not asked for would be missing."""
    asked = {word for word in processor._FLAGS.split() if word[0].isalpha()}
    assert set(processor.X86_64.split()[2::3]) <= asked


@pytest.mark.parametrize(
    ("code", "starts", "needs"),
    [
        (RETURN + WIDE, (0,), ""),
        ("7401" + RETURN + WIDE + RETURN, (0,), "avx512f"),
        ("0f8401000000" + RETURN + WIDE, (0,), "avx512f"),
        ("eb00" + WIDE, (0,), "avx512f"),
        ("ffe0" + WIDE, (0,), ""),
        ("ffd0" + WIDE, (0,), "avx512f"),
        ("e9000001 00".replace(" ", "") + WIDE, (0,), ""),
        ("0f0b" + WIDE, (0,), ""),
        (UNKNOWN + WIDE, (0,), ""),
        (FUSED + UNKNOWN + WIDE, (0,), "avx fma"),
        (FUSED + UNKNOWN + WIDE, (0, 6), "avx fma avx512f"),
        (UNKNOWN + WIDE + RETURN + FUSED, (1, 8), "avx fma avx512f"),
        ("488d0562f16c48" + RETURN, (0,), ""),
        ("48b8" + WIDE + "0000" + RETURN, (0,), ""),
        (WIDE, (), ""),
        ("e801000000" + RETURN + WIDE + RETURN, (0,), "avx512f"),
        ("e801000000" + RETURN + "c5f858d9" + "e801000000" + RETURN + WIDE + RETURN, (0,), "avx avx512f"),
        (WIDE + RETURN + "e8f4ffffff" + RETURN, (7,), "avx512f"),
        (WIDE + RETURN + "e9f4ffffff", (7,), "avx512f"),
        (WIDE + RETURN + "0f84f3ffffff" + RETURN, (7,), "avx512f"),
        ("e802000000" + RETURN + RETURN + WIDE, (0, 6), "avx512f"),
        ("e806000000" + RETURN + "9090909090" + "e8f0ffffff" + WIDE + RETURN, (0,), "avx512f"),
        ("e8fbffffff" + RETURN + WIDE, (0,), ""),
        ("e800010000" + RETURN + "e8000100ff" + RETURN + WIDE, (0, 6), ""),
    ],
    ids=[
        "behind the end", "jumped to", "jumped to from far", "jump to the next", "jump by a register", "call",
        "jump out", "trap", "unknown byte", "before an unknown byte", "function behind an unknown byte",
        "known places alone", "in a distance", "in a constant", "no function",
        "called", "called by what is called", "called before it", "jumped to before it",
        "jumped to before it if", "called behind another one", "calls of one another", "calls itself",
        "call out",
    ],
)  # fmt: skip
def test_code_is_read_by_functions(code: str, starts: tuple[int, ...], needs: str) -> None:
    """Behind the end of one lies data, or what is called only where the processor can run it."""
    assert need_of(code, X86, starts) == set(needs.split())


@pytest.mark.parametrize(
    ("code", "starts", "needs"),
    [
        (ARM_RETURN + SCALABLE, (0,), ""),
        ("40000054" + ARM_RETURN + SCALABLE, (0,), "sve"),
        ("400000b4" + ARM_RETURN + SCALABLE, (0,), "sve"),
        ("40000036" + ARM_RETURN + SCALABLE, (0,), "sve"),
        ("01000014" + SCALABLE, (0,), "sve"),
        ("00001fd6" + SCALABLE, (0,), ""),
        ("00003fd6" + SCALABLE, (0,), "sve"),
        ("00000000" + SCALABLE, (0,), ""),
        ("200020d4" + SCALABLE, (0,), ""),
        (ARM_RETURN + SCALABLE, (0, 4), "sve"),
        (SCALABLE[:-2], (0,), ""),
        ("02000094" + ARM_RETURN + SCALABLE + ARM_RETURN, (0,), "sve"),
        ("03000094" + ARM_RETURN + ARM_RETURN + SCALABLE, (0, 8), "sve"),
        (SCALABLE + ARM_RETURN + "feffff97" + ARM_RETURN, (8,), "sve"),
        (SCALABLE + ARM_RETURN + "feffff17", (8,), "sve"),
        ("00000094" + ARM_RETURN + SCALABLE, (0,), ""),
        ("00ffff97" + "00ff0094" + ARM_RETURN + SCALABLE, (0,), ""),
    ],
    ids=[
        "behind the end", "b.eq", "cbz", "tbz", "jump to the next", "jump by a register", "call", "no word",
        "trap", "second function", "cut",
        "called", "called behind another one", "called before it", "jumped to before it", "calls itself",
        "call out",
    ],
)  # fmt: skip
def test_words_are_read_by_functions(code: str, starts: tuple[int, ...], needs: str) -> None:
    assert need_of(code, ARM, starts) == set(needs.split())


def test_calls_into_one_another_are_read_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 60,000 functions goes on through all that come after it."""
    if instruction_tables._entry is instruction_tables._interpreted:
        return
    calls = b"".join(b"\xe8" + (5 * number).to_bytes(4, "little") for number in range(60_000, 120_000))
    seen: list[int] = []
    entry = instruction_tables._entry(X86)

    def counted(address: int) -> int:
        found = entry(address)
        seen.append(CodeScan(address).seen)
        return found

    monkeypatch.setattr(instruction_tables, "_entry", lambda architecture: counted)
    code = calls + bytes.fromhex("90" * 600_000)
    assert not need_of(code.hex())
    assert len(code) <= seen[0] <= 3 * len(code)


def processor_with(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Has this process believe that the processor has the features of a level of x86-64."""
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
    "'embedded-elf-x86_64' are compiled for sapphirerapids with avx512f, which this processor "
    "(x86-64-v3) does not have; compile it with "
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
    assert (
        "Processor:  sapphirerapids; its code uses avx, avx512f; this one lacks avx512f\n"
        in capsys.readouterr().out
    )
    [code] = (
        row.data for row in BytecodeModule.load(file).module.rodata if bytes(row.data[:4]) == b"\x7fELF"
    )
    (tmp_path / "product.so").write_bytes(code)
    flags = ["--executable_format=embedded-elf-x86_64", f"--executable_file={tmp_path / 'product.so'}"]
    assert dispatch(["benchmark-executable", *flags, "--workgroup_count=1,1,1"]) == 1
    assert "are compiled with avx512f, which this processor (x86-64-v3) does not" in capsys.readouterr().err


CALL = ("--function=product", "--input=32x32xf32=1", "--input=32x32xf32=1")
ON_LESSER = {
    "benchmark FOR_V4 CALL --benchmark_min_time=1x": "refused",
    "benchmark BOTH CALL --benchmark_min_time=1x": "BM_product/",
    "diff FOR_V4 BOTH CALL": "refused",
    "diff BOTH FOR_V4 CALL": "refused",
    "diff BOTH --device=local-sync --device=local-task CALL": "equal (exact)",
    "report FOR_V4 CALL --output=HERE/page.html": "refused",
    "reduce FOR_V4 CALL --save=HERE/saved": "refused",
    "debug FOR_V4 CALL --command=continue": "refused",
    "run FOR_V4 CALL --prefer=fastest": "refused",
    "run BOTH CALL --prefer=fastest": "32x32xf32=[32 32",
    "run --module=OTHER --module=FOR_V4 CALL": "refused",
    "run --module=FOR_V4 --module=OTHER --function=main": "refused",
    "run --module=OTHER --module=BOTH CALL": "32x32xf32=[32 32",
}
"""By command line what it prints on a processor of a lower level; words in capitals stand for files and
inputs."""


@on_x86
@pytest.mark.parametrize("line", ON_LESSER)
def test_commands_on_a_lesser_processor(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What cannot run here is refused before anything of it is made that could be dispatched."""
    processor_with(monkeypatch, "x86-64-v3")
    files = {
        "FOR_V4": PROGRAMS / "levels.vmfb", "BOTH": PROGRAMS / "levels_both.vmfb", "HERE": tmp_path,
        "OTHER": PROGRAMS / "arithmetic.vmfb",
    }  # fmt: skip
    before = set(prepared_executables())
    words = [part for word in line.split() for part in (CALL if word == "CALL" else [word])]
    command = [re.sub("|".join(files), lambda found: str(files[found[0]]), word) for word in words]
    code = dispatch(command)
    shown = capsys.readouterr()
    if ON_LESSER[line] != "refused":
        assert code == 0 and ON_LESSER[line] in shown.out, shown.err
        return
    assert code == 1 and REFUSED in shown.err, shown
    assert not set(prepared_executables()) - before


def _linked(session: jitree.Session, file: Path) -> object:
    return session.link(PROGRAMS / "arithmetic.vmfb", file)


def _reloaded(session: jitree.Session, file: Path) -> object:
    session.load(PROGRAMS / "levels_both.vmfb")
    return session.reload(file)


def _appended(session: jitree.Session, file: Path) -> object:
    module = session._read(file)
    return session.append_module(module)


def _by_the_names_of_iree_runtime(session: jitree.Session, file: Path) -> object:
    from jitree.compat import iree_runtime as runtime

    return runtime.load_vm_module(
        runtime.VmModule.mmap(runtime.VmInstance(), str(file)), runtime.Config("local-sync")
    )


@on_x86
@pytest.mark.parametrize("load", [_linked, _reloaded, _appended, _by_the_names_of_iree_runtime])
def test_programs_on_a_lesser_processor(
    load: Callable[[jitree.Session, Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to load a module takes what can run, or refuses."""
    processor_with(monkeypatch, "x86-64-v3")
    with jitree.Session("local-sync") as session, pytest.raises(FailedPreconditionError) as refused:
        load(session, PROGRAMS / "levels.vmfb")
    assert REFUSED in str(refused.value)
    ones = np.ones((32, 32), np.float32)
    with jitree.Session("local-sync") as session:
        loaded = load(session, PROGRAMS / "levels_both.vmfb")
        module = loaded[-1] if isinstance(loaded, tuple) else loaded
        product = module.product(ones, ones)
        assert np.asarray(product)[3, 4] == 32


@on_x86
def test_what_only_a_called_function_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remainder of floats, which the compiler's mathematics compute with shlx."""
    file = PROGRAMS / "remainder.vmfb"
    seven = np.full(64, 7, np.float32)
    if not host_cpu_data().lacking & {"bmi2"}:
        with jitree.Session("local-sync") as session:
            assert np.asarray(session.load(file).remainder(seven, np.full(64, 4, np.float32)))[63] == 3
    processor_with(monkeypatch, "x86-64-v2")
    with (
        jitree.Session("local-sync") as session,
        pytest.raises(FailedPreconditionError, match="for x86-64 with bmi2, which this processor"),
    ):
        session.load(file)


@on_x86
def test_what_runs_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that states features whose instructions it does not have, and one that is silent."""
    processor_with(monkeypatch, "x86-64-v2")
    for file in (PROGRAMS / "calls.vmfb", PROGRAMS / "encoded.vmfb", PROGRAMS / "inline_cpu.vmfb"):
        with jitree.Session("local-sync") as session:
            session.load(file)
    monkeypatch.setattr(processor_needs, "_kept", {})
    monkeypatch.setattr(processor_needs, "needed", lambda code, starts, of, wanted: frozenset[str]())
    module = BytecodeModule.load(PROGRAMS / "levels.vmfb").module
    assert processor_needs.need_of(module, "embedded-elf-x86_64") is None


@on_x86
def test_silent_modules_are_told_by_their_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of any bytecode version."""
    file = PROGRAMS / "levels.vmfb"
    assert dispatch(["dump", "--output=summary", str(file)]) == 0
    assert "Processor:  sapphirerapids; its code uses avx, avx512f\n" in capsys.readouterr().out
    processor_with(monkeypatch, "x86-64-v3")
    monkeypatch.setattr(load_order, "_FEATURES", b"nothing is stated")
    monkeypatch.setattr("jitree.tools.dump_summary.targets", lambda module: [])
    monkeypatch.setattr(processor_needs, "targets", lambda module: [])
    with (
        jitree.Session("local-sync") as session,
        pytest.raises(FailedPreconditionError, match="are compiled with avx512f, which"),
    ):
        session.load(file)
    assert dispatch(["dump", "--output=summary", str(file)]) == 0
    summary = capsys.readouterr().out
    assert "Processor:  not stated; its code uses avx, avx512f; this one lacks avx512f\n" in summary
    assert dispatch(["dump", "--output=summary", str(PROGRAMS / "inline_cpu.vmfb")]) == 0
    assert "not stated; no newer instruction is found in its code\n" in capsys.readouterr().out


@on_x86
def test_a_file_is_looked_through_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As long as it stays as it is."""
    scans: list[int] = []

    def counted(*given: object) -> frozenset[str]:
        scans.append(1)
        return frozenset[str]()

    monkeypatch.setattr(processor_needs, "_kept", {})
    monkeypatch.setattr(processor_needs, "needed", counted)
    file = tmp_path / "levels.vmfb"
    file.write_bytes((PROGRAMS / "levels.vmfb").read_bytes())
    for _ in range(2):
        processor_needs.used(BytecodeModule.load(file).module, frozenset(("avx512f",)))
    assert len(scans) == 1
    file.write_bytes((PROGRAMS / "levels_both.vmfb").read_bytes())
    processor_needs.used(BytecodeModule.load(file).module, frozenset(("avx512f",)))
    assert len(scans) == 2


@on_x86
def test_damaged_tables_are_for_the_loader_to_refuse() -> None:
    """Whatever the dynamic section says, nothing outside of the library is read."""
    module = BytecodeModule.load(PROGRAMS / "levels.vmfb").module
    [code] = (bytes(row.data) for row in module.rodata if bytes(row.data[:4]) == b"\x7fELF")
    section = read_elf(memoryview(code), ARCHITECTURES[0]).dynamic
    chance = random.Random(41)
    for _ in range(300):
        damaged = bytearray(code)
        for _ in range(chance.randrange(1, 4)):
            damaged[section.offset + chance.randrange(section.file_size)] = chance.choice((0, 7, 9, 255))
        found = processor_needs._needed(memoryview(damaged), processor_needs.unstated())
        assert found <= {"avx", "avx512f"}


@on_x86
def test_odd_places_of_a_library_are_no_error_of_ours() -> None:
    """A dynamic section that ends in the middle of a row, and addresses above 2^63: no signed number."""
    module = BytecodeModule.load(PROGRAMS / "levels.vmfb").module
    [code] = (bytes(row.data) for row in module.rodata if bytes(row.data[:4]) == b"\x7fELF")
    found = processor_needs._needed(memoryview(code), processor_needs.unstated())
    assert found
    place = program_header(code, elf_format.PT_DYNAMIC) + 32
    (size,) = struct.unpack_from("<Q", code, place)
    for sizes in ((size, size + 15), (size - 1, size - 1)):
        other = patched(code, place, "<QQ", *sizes)
        assert processor_needs._needed(memoryview(other), processor_needs.unstated()) == found
    moved = bytearray(code)
    (start,), (count,) = struct.unpack_from("<Q", code, 32), struct.unpack_from("<H", code, 56)
    relocations, size = section(code, ".rela.dyn")
    addresses = [start + 56 * number + 16 for number in range(count)]
    addresses += [dynamic_entry(code, elf_format.DT_RELA) + 8]
    addresses += range(relocations + 16, relocations + size, 24)
    for address in addresses:
        moved[address + 7] |= 0x80
    assert processor_needs._needed(memoryview(moved), processor_needs.unstated()) == found


@on_x86
def test_code_that_is_in_several_constants_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of megabytes could have a library begin at each 200 bytes, and each be all that follows."""
    looked: list[int] = []

    def counted(data: memoryview, wanted: frozenset[str]) -> frozenset[str]:
        looked.append(len(data))
        return frozenset()

    monkeypatch.setattr(processor_needs, "_kept", {})
    monkeypatch.setattr(processor_needs, "_needed", counted)
    library = b"\x7fELF" + bytes(1000)
    module: Any = SimpleNamespace(
        archive=SimpleNamespace(data=bytes(3000), state=None),
        rodata=Constants(SimpleNamespace(data=memoryview(library)) for _ in range(1000)),
    )
    processor_needs.used(module, frozenset(("avx512f",)))
    assert looked == [len(library)] * 2


class Constants(list[Any]):
    @property
    def lengths(self) -> Any:
        return np.array([len(row.data) for row in self])
