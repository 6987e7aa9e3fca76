"""System libraries: executables that the system's dynamic linker loads."""

from __future__ import annotations

import gc
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from jitree.base.platform import files
from jitree.errors import FailedPreconditionError, NotFoundError, UnavailableError
from jitree.hal.command_list import CommandList
from jitree.hal.executable import ExecutableParameters
from jitree.hal.local import executor
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.library import NativeExecutable
from jitree.loaders.system_library import PRESERVE_VARIABLE, SharedObject, SystemLibraryLoader, library_bytes
from tests.hal.native_kernels import aligned, whole
from tests.loaders.compiler import COMPILER, NEEDS_COMPILER, compile_library
from tests.loaders.samples import NEEDS_X86_64, ON_X86_64, sample

pytestmark = pytest.mark.skipif(not ON_X86_64, reason=NEEDS_X86_64)
FORMAT = "system-elf-x86_64"
MUL, MATH = "system_mul-3.13.0.so", "system_mathf-3.13.0.so"


def load(data: bytes) -> NativeExecutable:
    return SystemLibraryLoader().try_load(ExecutableParameters(FORMAT, memoryview(data)))


def run(executable: NativeExecutable, *blocks: np.ndarray) -> None:
    commands = CommandList()
    commands.dispatch(executable, 0, (1, 1, 1), [], [whole(block) for block in blocks])
    executor.execute(commands, *commands.bind(()))


def product_is_right(executable: NativeExecutable) -> bool:
    lhs, rhs, out = (aligned(np.random.default_rng(n).random(1000, np.float32)) for n in range(3))
    run(executable, lhs, rhs, out)
    return bool((out == lhs * rhs).all())


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_library() -> None:
    executable = load(sample(MUL))
    assert executable.library_version == 6
    assert executable.function_name(0) == "mul_dispatch_0_elementwise_1000_f32"
    assert product_is_right(executable)


def test_functions_of_the_math_library_are_found() -> None:
    """The library does not say that it needs libm."""
    values = aligned(np.linspace(0.25, 2, 256, dtype=np.float32))
    out = aligned(np.zeros(256, np.float32))
    run(load(sample(MATH)), values, out)
    assert np.isfinite(out).all()
    assert (np.abs(out) < values).all(), "remainders"
    assert len(np.unique(out)) > 250
    with pytest.raises(Exception, match="fmaf"):
        EmbeddedElfLoader().try_load(ExecutableParameters(FORMAT, memoryview(sample(MATH))))


def test_libraries_are_not_taken_for_each_other() -> None:
    """The linker goes by names, and closed ones give theirs back."""
    for _ in range(3):
        mul, math = load(sample(MUL)), load(sample(MATH))
        assert mul.function_name(0) != math.function_name(0)
        assert product_is_right(mul)
        del mul, math
    both = [load(sample(MUL)) for _ in range(4)]
    assert len({executable.function_address(0) for executable in both}) == 4


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is by way of a file, and without a list of what is mapped nothing is read of a library."""
    monkeypatch.setattr(files, "_DESCRIPTORS", "/nothing/fd")
    assert product_is_right(load(sample(MUL)))
    monkeypatch.setattr(files, "_MAPS", "/nothing/maps")
    with pytest.raises(UnavailableError, match="'/nothing/maps'"):
        load(sample(MUL))


def test_nothing_stays_open() -> None:
    load(sample(MUL))
    gc.collect()
    before = open_descriptors()
    executables = [load(sample(MUL)) for _ in range(5)]
    assert open_descriptors() == before + 5
    del executables
    assert open_descriptors() == before
    assert "jitree-executable" not in Path("/proc/self/maps").read_text()


def test_temporary_file_where_memory_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> int:
        raise PermissionError("memfd_create")

    monkeypatch.setattr(os, "memfd_create", refuse)
    first, second = load(sample(MUL)), load(sample(MATH))
    assert first.function_name(0) != second.function_name(0)
    assert product_is_right(first)


def test_files_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRESERVE_VARIABLE, str(tmp_path))
    assert product_is_right(load(sample(MUL)))
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("iree_dylib_")
    assert kept.name.endswith("_mem_.so")
    assert kept.read_bytes() == sample(MUL)


def test_debug_data_after_the_library_is_not_loaded() -> None:
    library = sample(MUL)
    footer = struct.pack("<8sIIQQQQ", b"IREEDBG\0", 0, 0, 16, len(library), 16 + len(library), 100)
    data = bytes(16) + library + bytes(100) + footer
    assert bytes(library_bytes(memoryview(data))) == library
    assert product_is_right(load(data))
    with pytest.raises(FailedPreconditionError, match="footer says bytes"):
        load(library + struct.pack("<8sIIQQQQ", b"IREEDBG\0", 0, 0, 16, len(library), 0, 0))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "0 bytes, fewer than an ELF header"),
        (bytes(100), "does not start with the ELF identifier"),
        (sample("mul_aarch64-3.13.0.so"), "compiled for arm_64, but this machine is x86_64"),
        (sample(MUL)[:3000], "the data is cut short"),
    ],
    ids=["empty", "zeros", "aarch64", "cut"],
)
def test_data_that_is_no_library(data: bytes, text: str) -> None:
    with pytest.raises(FailedPreconditionError, match=text) as caught:
        load(data)
    assert f"loading an executable of format '{FORMAT}'" in str(caught.value)


@pytest.mark.skipif(COMPILER is None, reason=NEEDS_COMPILER)
def test_libraries_that_are_no_executables(tmp_path: Path) -> None:
    source = tmp_path / "library.c"
    source.write_text("int unrelated(void) { return 1; }")
    with pytest.raises(NotFoundError, match="does not export iree_hal_executable_library_query"):
        load(compile_library(source, tmp_path / "library.so").read_bytes())
    source.write_text("int missing_function(void); int f(void) { return missing_function(); }")
    with pytest.raises(FailedPreconditionError, match="missing_function"):
        load(compile_library(source, tmp_path / "library.so").read_bytes())


def test_memory_outside_the_library_is_not_read() -> None:
    library = SharedObject.from_bytes(sample(MUL))
    query = library.symbol("iree_hal_executable_library_query")
    assert query is not None
    library.check_code(query, 1, "the query function")
    assert library.symbol("unknown") is None
    with pytest.raises(FailedPreconditionError, match=r"a table \(8 bytes at 0x10\) is outside its segments"):
        library.read(16, 8, "a table")
    executable = load(sample(MUL))
    with pytest.raises(FailedPreconditionError, match="outside its segments"):
        library.read_string(executable.function_address(0), "a name")


def test_formats() -> None:
    loader = SystemLibraryLoader()
    assert loader.query_support(FORMAT)
    for other in ("system-elf-arm_64", "system-dll-x86_64", "embedded-elf-x86_64"):
        assert not loader.query_support(other)
