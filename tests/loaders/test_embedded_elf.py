"""Embedded ELF executables of every library version: what is read from them and what they compute."""

from __future__ import annotations

import ctypes
import gc
import math
import struct

import numpy as np
import pytest

from jitree.errors import (
    FailedPreconditionError,
    InternalError,
    NotFoundError,
    UnavailableError,
)
from jitree.hal.command_list import CommandList
from jitree.hal.executable import LocalExecutable
from jitree.hal.local import executor
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.environment import host_cpu_data
from jitree.loaders.library import LAYOUTS, UNKNOWN_LOCAL_MEMORY, NativeExecutable
from jitree.regs.memory import zeroed
from tests.hal.native_kernels import whole
from tests.loaders.samples import (
    FOR_THIS_PROCESSOR,
    FORMAT,
    HERE,
    NEEDS_SAMPLES,
    ON_X86_64,
    file_offset,
    load,
    load_sample,
    manifest,
    patched,
    sample,
)

pytestmark = pytest.mark.skipif(not FOR_THIS_PROCESSOR, reason=NEEDS_SAMPLES)
LOADABLE = [name for name, facts in manifest().items() if "exports" in facts and "imports" not in facts]


def aligned(values: np.ndarray) -> np.ndarray:
    block = zeroed(values.nbytes)
    block[:] = np.frombuffer(values.tobytes(), np.uint8)
    return block.view(values.dtype).reshape(values.shape)


def run(
    executable: NativeExecutable, counts: tuple[int, int, int], constants: list[int], *blocks: np.ndarray
) -> None:
    commands = CommandList()
    commands.dispatch(executable, 0, counts, constants, [whole(block) for block in blocks])
    executor.execute(commands, *commands.bind(()))


def normal(*shape: int) -> np.ndarray:
    return aligned(np.random.default_rng(7).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("name", LOADABLE)
def test_tables(name: str) -> None:
    facts = manifest()[name]
    executable = load_sample(name)
    assert isinstance(executable, LocalExecutable)
    assert executable.library_version == facts["library_version"]
    exports = facts.get(f"exports_{HERE}", facts["exports"])
    assert executable.function_count == len(exports)
    for ordinal, export in enumerate(exports):
        assert executable.function_name(ordinal) == (export or "")
        if export is not None:
            assert executable.lookup(export) == ordinal
        record = ctypes.string_at(executable.entry_point(ordinal), 48)
        code, environment, cost = struct.unpack_from("<3q", record)
        assert (code, environment, cost) == (
            executable.function_address(ordinal), executable.environment_address, 0,
        )  # fmt: skip


def test_counts_are_known_from_version_5_on() -> None:
    old, new = load_sample("dyn-20240129.785.so"), load_sample("dyn-3.13.0.so")
    assert (old.constant_count(0), old.binding_count(0)) == (None, None)
    assert (new.constant_count(0), new.binding_count(0)) == (4, 3)


def test_names_that_are_absent() -> None:
    executable = load_sample("tiny_stripped-3.1.0.so")
    assert executable.function_label(0) == "tiny_dispatch_0[0]"
    with pytest.raises(UnavailableError, match="without function names"):
        executable.lookup("tiny_dispatch_0")
    with pytest.raises(NotFoundError, match="no function 'other'; it has tiny_dispatch_0_"):
        load_sample("tiny-3.1.0.so").lookup("other")


def test_sources_and_stages() -> None:
    executable = load_sample("tiny_sources-20240410.859.so")
    files = executable.source_files()
    stages = executable.stage_locations(0)
    assert len(files) == 3 and list(stages) == ["0.source", "1.configured", "2.translated"]
    for stage in stages.values():
        assert b"tiny" in files[stage.path] and stage.line == 9
    location = executable.source_location(0)
    assert location is not None and (location.path, location.line) == ("tiny.mlir", 1)
    assert load_sample("tiny-3.13.0.so").source_files() == {}
    assert load_sample("tiny_stripped-3.1.0.so").source_location(0) is None


@pytest.mark.parametrize("name", [n for n in LOADABLE if n.startswith("tiny")])
def test_elementwise(name: str) -> None:
    a, b, c = normal(4), aligned(normal(4) + np.float32(1)), normal(4)
    run(load_sample(name), (1, 1, 1), [], a, b, c)
    np.testing.assert_array_equal(c, a * b)


def test_grid_of_256() -> None:
    a, b, c = normal(1024, 1024), normal(1024, 1024), normal(1024, 1024)
    run(load_sample("mulbig-3.13.0.so"), (256, 1, 1), [], a, b, c)
    np.testing.assert_array_equal(c, a * b)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 130), (64, 64), (0, 3)])
def test_dynamic_shapes(shape: tuple[int, int]) -> None:
    m, n = shape
    a, b, c, d = normal(m, n), normal(m, n), normal(m, n), normal(m, n)
    run(load_sample("dyn-20240129.785.so"), (-(-n // 64), -(-m // 64), 1), [m, 0, n, 0] * 2, a, b, c)
    run(load_sample("dyn-3.13.0.so"), (-(-m * n // 4096), 1, 1), [m * n, 0] * 2, a, b, d)
    np.testing.assert_array_equal(c, a + b)
    np.testing.assert_array_equal(d, a + b)


def test_transcendental_functions() -> None:
    a = aligned(np.random.default_rng(3).uniform(0.25, 2.25, 256).astype(np.float32))
    result = aligned(np.zeros(256, np.float32))
    run(load_sample("mathf-3.9.0.so"), (1, 1, 1), [], a, result)
    wide = a.astype(np.float64)
    exp = np.exp(wide)
    erf = np.array([math.erf(value) for value in np.power(exp, np.tanh(np.sin(exp)))])
    np.testing.assert_allclose(result, np.fmod(np.arctan2(np.log1p(erf), wide), wide), rtol=1e-5, atol=1e-5)


def test_specialization_constants() -> None:
    source, target = aligned(np.arange(8, dtype=np.int32)), aligned(np.zeros(8, np.int32))
    executable = load(sample("exec_constants-3.13.0.so"), (123, 456))
    run(executable, (8, 1, 1), [7], source, target)
    np.testing.assert_array_equal(target, source * 123 + 456 + 7)


def test_declared_number_of_specialization_constants() -> None:
    data = sample("exec_constants-3.13.0.so")
    declaring = patched(data, _struct_offset(data) + LAYOUTS[0].constant_count, "<I", 2)
    assert load(declaring, (1, 2)).function_count == 1
    with pytest.raises(FailedPreconditionError, match="takes 2 specialization constants, but 0"):
        load(declaring)


@pytest.mark.parametrize("name", ["local_memory-3.1.0.so", "local_memory-3.9.0.so"])
def test_local_memory_is_rounded_up_to_pages(name: str) -> None:
    executable = load_sample(name)
    assert executable.local_memory(0) == 8192
    source, target = aligned(np.arange(8, dtype=np.int32)), aligned(np.zeros(8, np.int32))
    run(executable, (8, 1, 1), [5], source, target)
    np.testing.assert_array_equal(target, source * 3 + 5)


def test_local_memory_that_old_libraries_do_not_state() -> None:
    data = sample("tiny-20240129.785.so")
    attributes = _struct_offset(data) + 40
    executable = load(_without_relocation(patched(data, attributes, "<Q", 0), attributes))
    assert executable.local_memory(0) == UNKNOWN_LOCAL_MEMORY
    assert load(data).local_memory(0) == 0


class Provider:
    """Imports of the sample, as Python functions."""

    def __init__(self, *symbols: str, failure: int = 0) -> None:
        self.calls: list[tuple[float, int, int, int]] = []
        self._failure = failure
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._functions = {"jt_scale": kind(self._scale), "jt_other": kind(self._other)}
        self._symbols = symbols or tuple(self._functions)

    def resolve(self, symbol: str) -> tuple[int, int] | None:
        if symbol not in self._symbols:
            return None
        return ctypes.cast(self._functions[symbol], ctypes.c_void_p).value or 0, 0x1234

    def _scale(self, parameters: int, context: int, reserved: int) -> int:
        value, index, _, words = struct.unpack_from("<4xfqIxxxxQ", ctypes.string_at(parameters, 32))
        word = ctypes.c_uint64.from_address(words).value
        self.calls.append((value, index, context, word))
        ctypes.c_float.from_address(parameters).value = value * 10 + index
        return self._failure

    def _other(self, parameters: int, context: int, reserved: int) -> int:
        (value,) = struct.unpack_from("<4xf", ctypes.string_at(parameters, 8))
        ctypes.c_float.from_address(parameters).value = value + 0.5
        return 0


@pytest.mark.parametrize("name", ["imp-20240724.964.so", "imp-3.13.0.so"])
def test_imports(name: str) -> None:
    provider = Provider()
    executable = load(sample(name), providers=(provider,))
    source, target = aligned(np.arange(16, dtype=np.float32)), aligned(np.zeros(16, np.float32))
    run(executable, (16, 1, 1), [], source, target)
    np.testing.assert_array_equal(target, source * 10 + np.arange(16) + 0.5)
    assert [call[1] for call in provider.calls] == list(range(16))
    assert {call[2] for call in provider.calls} == {0x1234}
    if name == "imp-20240724.964.so":  # newer ones pass what the compiler targeted
        assert {call[3] for call in provider.calls} == {host_cpu_data().words[0]}


def test_failing_import() -> None:
    executable = load(sample("imp-3.13.0.so"), providers=(Provider(failure=42),))
    source, target = aligned(np.zeros(16, np.float32)), aligned(np.zeros(16, np.float32))
    message = r"disp of executable 'ex.*' returned 42 in workgroup .*; compiled from imp.mlir:\d+$"
    with pytest.raises(InternalError, match=message):
        run(executable, (16, 1, 1), [], source, target)


def test_last_provider_is_asked_first() -> None:
    first, last = Provider(), Provider("jt_scale")
    executable = load(sample("imp-3.13.0.so"), providers=(first, last))
    source, target = aligned(np.zeros(16, np.float32)), aligned(np.zeros(16, np.float32))
    run(executable, (16, 1, 1), [], source, target)
    assert len(last.calls) == 16 and not first.calls


def test_missing_imports() -> None:
    with pytest.raises(UnavailableError, match="imports jt_other, jt_scale, but nothing"):
        load_sample("imp-3.13.0.so")
    with pytest.raises(NotFoundError, match="imports jt_other, which no"):
        load(sample("imp-3.13.0.so"), providers=(Provider("jt_scale"),))


def test_queries() -> None:
    loader = EmbeddedElfLoader()
    assert loader.query_support(FORMAT)
    for other in ("embedded-elf-riscv_64", f"{FORMAT}x", "system-elf-x86_64", "vmvx-bytecode-fb", ""):
        assert not loader.query_support(other)
    assert loader.query_i64("hal.cpu", "sse3") == (1 if ON_X86_64 else None)
    assert loader.query_i64("hal.cpu", "neon") is None
    assert loader.query_i64("hal.device", "concurrency") is None


def test_memory_is_protected_and_unmapped_after_the_last_reference() -> None:
    data = sample("tiny-3.13.0.so")
    executable = load(data)
    address = executable.function_address(0)
    rights = [line.split()[1] for line in _mappings(address)]
    assert len(rights) == 1 and rights == ["r-xp"]
    bias = address - _function_value(executable, data)
    pages = range(bias, bias + _memory_size(data), 4096)
    rights = [line.split()[1] for page in pages for line in _mappings(page)]
    assert rights and not any("w" in right and "x" in right for right in rights)
    commands = CommandList()
    commands.dispatch(executable, 0, (1, 1, 1), [], [])
    del executable
    gc.collect()
    assert _mappings(address), "the command list still needs it"
    del commands
    gc.collect()
    assert not _mappings(address)


def test_nothing_stays_writable() -> None:
    """RELRO covers all data of compiled libraries."""
    data = sample("tiny-3.13.0.so")
    executable = load(data)
    bias = executable.function_address(0) - _function_value(executable, data)
    relro = struct.unpack_from("<Q", data, _relro(data) + 16)[0]
    assert [line.split()[1] for line in _mappings(bias + relro)] == ["r--p"]


def _mappings(address: int) -> list[str]:
    """Lines of /proc/self/maps that hold an address."""
    with open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    return [
        line for line in lines
        if int(line.split("-")[0], 16) <= address < int(line.split("-")[1].split()[0], 16)
    ]  # fmt: skip


def _memory_size(data: bytes) -> int:
    """Bytes from the start of the image to its end."""
    import io

    from elftools.elf.elffile import ELFFile

    loads = [s.header for s in ELFFile(io.BytesIO(data)).iter_segments("PT_LOAD")]
    return max(int(load.p_vaddr + load.p_memsz) for load in loads)


def _relro(data: bytes) -> int:
    from tests.loaders.samples import program_header

    return program_header(data, 0x6474E552)


def _library_struct(executable: NativeExecutable, data: bytes) -> int:
    """Address of the library struct in the file: the query function's answer, less the bias."""
    from jitree.loaders.elf_format import host_architecture
    from jitree.loaders.embedded_elf import load_image

    architecture = host_architecture()
    assert architecture is not None
    image = load_image(memoryview(data), architecture)
    query = image.symbol("iree_hal_executable_library_query")
    assert query is not None
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
    answer = kind(query)(executable.library_version, executable.environment_address)
    return int(answer) - int(image.bias)


def _struct_offset(data: bytes) -> int:
    return file_offset(data, _library_struct(load(data), data))


def _function_value(executable: NativeExecutable, data: bytes) -> int:
    """Address of function 0 in the file: the addend of the relocation of the first function pointer."""
    import io

    from elftools.elf.elffile import ELFFile

    pointer_table = _library_struct(executable, data) + 32
    relocations = ELFFile(io.BytesIO(data)).get_section_by_name(".rela.dyn")
    addends = {r["r_offset"]: r["r_addend"] for r in relocations.iter_relocations()}
    return int(addends[addends[pointer_table]])


def _without_relocation(data: bytes, offset: int) -> bytes:
    """Turns the relocation of the word at a file offset into R_X86_64_NONE."""
    from tests.loaders.samples import section

    start, size = section(data, ".rela.dyn")
    for place in range(start, start + size, 24):
        (address,) = struct.unpack_from("<Q", data, place)
        if file_offset(data, address) == offset:
            return patched(data, place + 8, "<Q", 0)
    return data
