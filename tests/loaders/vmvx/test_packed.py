"""Kernels that copy constants of their program's file: the same bits as of the VM, and only where bytes stay
as they are."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from jitree import Session
from jitree.base.memory import note_stores, private_file
from jitree.codegen.record import atomic_load, atomic_store
from jitree.dispatch.native.nests import cutting
from jitree.dispatch.variants import find_variants, with_formats
from jitree.hal.command_layout import KernelEntry
from jitree.hal.command_list import DIRECT, CommandList
from jitree.hal.executable import ExecutableParameters
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.executor import require_native_executor
from jitree.loaders.vmvx.executable import VmvxExecutable, Workers
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, MAXIMUM_BINDINGS, KernelEnvironment
from jitree.loaders.vmvx.loader import FORMAT, VmvxLoader
from jitree.loaders.vmvx.packed import MOST_COPIED, PackedConstants, chain, copies_for
from jitree.regs.layout import ACCESS_PRIVATE, ACCESS_READ
from jitree.regs.memory import Bounds, address_of
from jitree.vmfb.archive import _MAPPED_SIZE
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.hal.native_kernels import ALL, aligned
from tests.loaders.vmvx.cut_programs import KernelText, run_parts, run_whole, with_code
from tests.loaders.vmvx.programs import load

CONSTANT = ACCESS_READ | ACCESS_PRIVATE
VECTOR, MATRIX, OUT = 3, 4, 5
ROWS, DEPTH, GROUPS = 64, 80, 3
SIZE = 4 * ROWS * DEPTH * GROUPS


def product() -> KernelText:
    """out[64 g + n] = sum over k of vector[k] * matrix[64 g + n, k]"""
    text = KernelText(3)
    group = text.workgroup()
    first = text.op("mul.i64", group, text.constant(ROWS))
    zero = text.pair()
    text.lines.append(f"{zero} = const.f32.zero")
    text.loops([ROWS], lambda at: text.store("f32", OUT, text.index(first, (at[0], 1)), zero))

    def body(at: list[str]) -> None:
        row = text.index(first, (at[0], 1))
        one = text.load("f32", VECTOR, at[1])
        other = text.load("f32", MATRIX, text.index(0, (row, DEPTH), (at[1], 1)))
        text.store("f32", OUT, row, text.op("fma.f32", one, other, text.load("f32", OUT, row)))

    text.loops([ROWS, DEPTH], body)
    return text


def program() -> tuple[bytes, int]:
    """A file: an executable of so many bytes, and constants after it."""
    code = product().module().build()
    code += bytes(-len(code) % 4)
    random = np.random.default_rng(0)
    return code + random.normal(0, 1, SIZE // 4 + 16).astype(np.float32).tobytes(), len(code)


def executable(file: object, size: int, bounds: Bounds | None = None) -> VmvxExecutable:
    data = memoryview(file)[:size].toreadonly()  # type: ignore[arg-type]
    loader = VmvxLoader((), "native") if bounds is None else VmvxLoader((), "native", bounds)
    return with_code(lambda: loader.try_load(ExecutableParameters(FORMAT, data, ())))


def matrix_in(file: object, size: int) -> np.ndarray:
    """The constants, from a line of the cache on."""
    elements: np.ndarray = np.frombuffer(file, np.uint8)  # type: ignore[call-overload]
    at = size + -(elements.ctypes.data + size) % 64
    return elements[at : at + SIZE]


def results(loaded: VmvxExecutable, matrix: np.ndarray, parts: int = 0) -> bytes:
    vector = aligned(np.linspace(-1, 1, DEPTH, dtype=np.float32))
    out = aligned(np.zeros(ROWS * GROUPS, np.float32))
    if parts:
        run_parts(loaded, GROUPS, (), [vector, matrix, out], parts)
    else:
        run_whole(loaded, GROUPS, (), [vector, matrix, out])
    return out.tobytes()


@pytest.fixture
def mapped(tmp_path: Path) -> tuple[mmap.mmap, int]:
    data, size = program()
    path = tmp_path / "program.bin"
    path.write_bytes(data)
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), size


def test_calls_before_and_after(mapped: tuple[mmap.mmap, int]) -> None:
    for file, size in (mapped, program()):
        matrix = matrix_in(file, size)
        expected = results(load(product().module(), "plain"), matrix)
        loaded = executable(file, size)
        assert results(loaded, matrix) == expected and loaded.copied == 0
        assert results(loaded, matrix) == expected and loaded.copied == SIZE
        assert results(loaded, matrix) == expected
        elsewhere = aligned(matrix)
        assert results(loaded, elsewhere) == expected and loaded.copied == SIZE


def test_parts(monkeypatch: pytest.MonkeyPatch, mapped: tuple[mmap.mmap, int]) -> None:
    monkeypatch.setattr(cutting, "LEAST_WORK", 0)
    file, size = mapped
    matrix, loaded = matrix_in(file, size), executable(file, size)
    expected = results(loaded, matrix)
    for _ in range(10):
        for parts in (1, 2, 3, 4):
            assert results(loaded, matrix, parts) == expected
    assert loaded.copied == SIZE


def test_bytes_that_may_change() -> None:
    """Nothing of them is kept from one call to the next."""
    data, size = program()
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    for file in (bytearray(data), memory):
        matrix, loaded = matrix_in(file, size), executable(file, size)
        for _ in range(8):
            matrix.view(np.float32)[:] += 1
            assert results(loaded, matrix) == results(load(product().module(), "plain"), matrix)
        assert loaded.copied == 0


def test_memory_that_is_counted_elsewhere(mapped: tuple[mmap.mmap, int]) -> None:
    file, size = mapped
    matrix, loaded = matrix_in(file, size), executable(file, size, Bounds(charge=lambda size: size))
    for _ in range(8):
        results(loaded, matrix)
    assert loaded.copied == 0


def test_which_files() -> None:
    """What bytes may change of is left out; parameters may come later."""
    frozen = np.zeros(1000, np.uint8)
    frozen.flags.writeable = False
    for data in (memoryview(bytearray(1000)).toreadonly(), frozen.data):
        copies = copies_for(data, None)
        assert copies is not None and copies.most_kept == 0
        assert copies_for(data, HeapAllocator(1 << 30)) is None
    copies = copies_for(memoryview(bytes(1000))[10:20], None)
    assert copies is not None and copies.most_kept > 800


def test_parameters(tmp_path: Path) -> None:
    """Constants of another file, of which executables learn when the program has loaded them; once."""
    code = product().module().build()
    weights = np.random.default_rng(1).normal(0, 1, SIZE // 4 + 16).astype(np.float32).tobytes()
    for file in (code, bytearray(code)):
        loaded = executable(file, len(code))
        matrix = matrix_in(weights, 0)
        expected = [results(loaded, matrix) for _ in range(3)]
        assert loaded.copied == 0
        for _ in range(2):
            loaded.add_constants(memoryview(weights)[64:])
        expected += [results(loaded, matrix), results(loaded, matrix)]
        assert loaded.copied == SIZE and len(set(expected)) == 1
        loaded.add_constants(memoryview(bytearray(weights)).toreadonly())
        assert loaded._compiled is not None and loaded._compiled._copies is not None
        assert len([*chain(loaded._compiled._copies.constants)]) == 2
        loaded._compiled._copies.give_up()
        assert results(loaded, matrix) == expected[0] and loaded.copied == 0
        loaded.add_constants(memoryview(weights))
        results(loaded, matrix)
        results(loaded, matrix)
        assert loaded.copied == 0


def test_the_record() -> None:
    """Constants begin at a line, and so do their copies. Each line has its mark in the same memory."""
    for size in (1, 63, 64, 1000, 100_000, *range(7230, 7300)):
        packed = PackedConstants(memoryview(bytes(size)))
        start, length, distance, marks, room, following = packed._record
        assert marks + 8 * (length // 64) <= packed._copies.address + packed._copies.size
        assert start % 64 == 0 and (start + distance) % 64 == 0 and 0 <= length <= size
        assert marks >= start + distance + length and room == length and packed.copied == 0
        assert following == 0
    assert PackedConstants(memoryview(bytes(MOST_COPIED + 4096))).most_copied == MOST_COPIED


# -- constants to which kernels store ----------------------------------------------------------------------


def changing() -> Assembler:
    """The product, and a kernel that adds 1 to each element of its second binding, the matrix."""
    text = KernelText(2)

    def body(at: list[str]) -> None:
        place = text.index(0, (at[0], DEPTH), (at[1], 1))
        one = text.pair()
        text.lines.append(f"{one} = const.f32 1.0")
        text.store("f32", MATRIX, place, text.op("add.f32", text.load("f32", MATRIX, place), one))

    text.loops([ROWS * GROUPS, DEPTH], body)
    lines = "\n".join([*text.lines, "return []"])
    return product().module().function("change", ENTRY_CONVENTION, lines)


@pytest.fixture
def private(tmp_path: Path) -> tuple[memoryview, int]:
    """A file as it is mapped for a session: what kernels store to it is the process's own."""
    code = changing().build()
    code += bytes(-len(code) % 4)
    numbers = np.random.default_rng(0).normal(0, 1, SIZE // 4 + 16).astype(np.float32)
    path = tmp_path / "program.bin"
    path.write_bytes(code + numbers.tobytes())
    with path.open("rb") as file:
        return private_file(file.fileno(), path.stat().st_size), len(code)


def dispatch(loaded: VmvxExecutable, kernel: int, groups: int, bound: list[tuple[np.ndarray, int]]) -> None:
    commands = CommandList()
    bindings = [(DIRECT, address_of(memory), memory.nbytes, access) for memory, access in bound]
    commands.dispatch(loaded, kernel, (groups, 1, 1), (), bindings)
    require_native_executor().execute(commands, *commands.bind(()))


def product_of(loaded: VmvxExecutable, matrix: np.ndarray) -> bytes:
    vector = aligned(np.linspace(-1, 1, DEPTH, dtype=np.float32))
    out = aligned(np.zeros(ROWS * GROUPS, np.float32))
    dispatch(loaded, 0, GROUPS, [(vector, ALL), (matrix, CONSTANT), (out, ALL)])
    return out.tobytes()


@pytest.mark.parametrize("changer", ["native", "plain"])
def test_what_a_kernel_has_stored_to_constants_is_read(changer: str, private: tuple[memoryview, int]) -> None:
    """Whatever ran it: copies were made before, by an executable that shares the file."""
    file, size = private
    matrix = matrix_in(file, size)
    loaded = executable(file, size)
    by = load(changing(), "plain") if changer == "plain" else executable(file, size)
    for _ in range(3):
        before = product_of(loaded, matrix)
    assert loaded.copied == SIZE, "constants of a file that is mapped for a session have copies"
    dispatch(by, 1, 1, [(aligned(np.zeros(4, np.float32)), ALL), (matrix, CONSTANT)])
    after = product_of(loaded, matrix)
    assert after != before
    assert after == results(load(product().module(), "plain"), aligned(matrix))
    for _ in range(3):
        dispatch(by, 1, 1, [(aligned(np.zeros(4, np.float32)), ALL), (matrix, CONSTANT)])
        assert product_of(loaded, matrix) == results(load(product().module(), "plain"), aligned(matrix))
    again = executable(file, size)
    for _ in range(3):
        assert product_of(again, matrix) == results(load(product().module(), "plain"), aligned(matrix))
    assert again.copied == 0, "copies of what may have been stored to"


def test_kernels_that_store_to_other_bindings_change_nothing(private: tuple[memoryview, int]) -> None:
    file, size = private
    matrix, loaded = matrix_in(file, size), executable(file, size)
    for _ in range(4):
        product_of(loaded, matrix)
        product_of(load(product().module(), "plain"), matrix)
    assert loaded.copied == SIZE


def both() -> Assembler:
    """Adds 1 to the first element of each of two bindings."""
    text = KernelText(2)
    one, zero = text.pair(), text.constant(0)
    text.lines.append(f"{one} = const.f32 1.0")
    for number in (VECTOR, MATRIX):
        text.store("f32", number, zero, text.op("add.f32", text.load("f32", number, zero), one))
    return text.module()


def test_machine_code_stores_to_constants_of_two_files(
    private: tuple[memoryview, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The VM runs nothing for it, whichever of them is known to be changed."""
    file, size = private
    other = tmp_path / "other.bin"
    other.write_bytes(bytes(2 * SIZE))
    with other.open("rb") as opened:
        second = np.frombuffer(private_file(opened.fileno(), 2 * SIZE), np.float32)
    first = np.frombuffer(matrix_in(file, size), np.float32)
    readers = executable(file, size), with_code(lambda: load(both(), "native"))
    for _ in range(3):
        product_of(readers[0], matrix_in(file, size))
    monkeypatch.setattr(Workers, "run", lambda *_: pytest.fail("the VM has run a kernel"))
    before = float(first[0])
    for count in range(1, 4):
        dispatch(readers[1], 0, 1, [(first, CONSTANT), (second, CONSTANT)])
        assert (first[0], second[0]) == (np.float32(before) + np.float32(count), count)
    monkeypatch.undo()
    expected = results(load(product().module(), "plain"), aligned(matrix_in(file, size)))
    assert product_of(readers[0], matrix_in(file, size)) == expected


def test_more_bindings_than_machine_code_has() -> None:
    """The VM runs the kernel; it was asked for a worker context again and again."""
    text = KernelText(1)
    text.lines.append(f"%i8 = const.i32 {MAXIMUM_BINDINGS}\n%r3 = list.get.ref %r2, %i8, !vm.buffer")
    text.store("i32", VECTOR, text.constant(0), "%i8")
    loaded = with_code(lambda: load(text.module(), "native"))
    blocks = [aligned(np.zeros(4, np.int32)) for _ in range(MAXIMUM_BINDINGS + 1)]
    run_whole(loaded, 1, (), blocks)
    assert blocks[-1].tolist() == [MAXIMUM_BINDINGS, 0, 0, 0]


def test_a_file_that_is_mapped_where_another_one_was(private: tuple[memoryview, int]) -> None:
    """That a kernel has stored to the first one says nothing of copies of the second one."""
    file, size = private
    by, matrix = with_code(lambda: load(changing(), "native")), matrix_in(file, size)
    zeros, small = aligned(np.zeros(4, np.float32)), aligned(np.zeros(ROWS * GROUPS * DEPTH, np.float32))
    dispatch(by, 1, 1, [(zeros, ALL), (small.view(np.uint8), CONSTANT)])
    environment = KernelEnvironment(KernelEntry(by.entry_point(1)).environment)
    assert atomic_load(environment.changed) == address_of(small)
    assert atomic_load(environment.changed_size) == small.nbytes
    atomic_store(environment.changed, address_of(matrix))  # what was there has gone
    loaded = executable(file, size)
    for _ in range(3):
        before = product_of(loaded, matrix)
    assert loaded.copied == SIZE
    dispatch(by, 1, 1, [(zeros, ALL), (matrix, CONSTANT)])
    after = product_of(loaded, matrix)
    assert after != before
    assert after == results(load(product().module(), "plain"), aligned(matrix))


def test_stores_that_a_handler_ends_before_copies_are_given_up(
    private: tuple[memoryview, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next kernel that the VM runs has them given up."""
    file, size = private
    matrix, loaded = matrix_in(file, size), executable(file, size)
    for _ in range(3):
        before = product_of(loaded, matrix)

    def interrupted(constants: PackedConstants) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PackedConstants, "retire", interrupted)
    with pytest.raises(KeyboardInterrupt):
        note_stores(address_of(matrix), matrix.nbytes)
    monkeypatch.undo()
    dispatch(load(changing(), "plain"), 1, 1, [(aligned(np.zeros(4, np.float32)), ALL), (matrix, CONSTANT)])
    after = product_of(loaded, matrix)
    assert after != before
    assert after == results(load(product().module(), "plain"), aligned(matrix))


BOTH = Path(__file__).parents[2] / "security" / "both_formats.vmfb"
"""A product of a matrix that is constant; then another kernel adds ones to its first row."""


@pytest.mark.parametrize("second", ["vmvx", "embedded-elf"])
@pytest.mark.parametrize("first", ["vmvx", "embedded-elf"])
def test_a_kernel_of_the_other_format_stores_to_constants(tmp_path: Path, first: str, second: str) -> None:
    """Machine code of the compiler says nothing of that: its file's constants have no copies."""
    path = tmp_path / "both.vmfb"
    path.write_bytes(BOTH.read_bytes() + bytes(_MAPPED_SIZE))
    program = BytecodeModule.load(path)
    variants = find_variants(program)
    assert variants is not None and len(variants.executables) == 2
    formats = [next(name for name in variants.formats if name.startswith(kind)) for kind in (first, second)]
    ones, more = np.ones(64, np.float32), np.ones((1, 64), np.float32)
    with Session("local-sync", tier="native") as session:
        both = session.load(with_formats(program, variants, formats)).both
        found = [float(np.asarray(both(ones, np.zeros((1, 1), np.int32), more)[0])[0]) for _ in range(5)]
    assert found == [found[0] + 64 * number for number in range(5)]
