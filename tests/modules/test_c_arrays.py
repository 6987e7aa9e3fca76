"""Arrays in C modules, and arrays that these make."""

from __future__ import annotations

import ctypes
import gc
import mmap
import operator
import sys
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.base.callbacks import Callback, allocator_address, take_kept
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    StatusCode,
    StatusError,
    UnimplementedError,
)
from jitree.hal.buffer import Allocation, Buffer, BufferView
from jitree.modules.native_library import hal_objects, layout
from jitree.modules.native_library.interface import destructor, machine_code
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.loaders.compiler import COMPILER, NEEDS_COMPILER, compile_library
from tests.tools import command

SOURCE = Path(__file__).parents[1] / "data" / "c_module" / "arrays.c"

pytestmark = pytest.mark.skipif(COMPILER is None, reason=NEEDS_COMPILER)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(SOURCE, tmp_path_factory.mktemp("c") / "arrays.so")


@pytest.fixture
def session(library: Path) -> Iterator[jitree.Session]:
    with jitree.Session("local-sync") as session:
        session.load_native(library, create="create_arrays")
        yield session


@pytest.fixture
def session_apart(library: Path, tmp_path: Path) -> Iterator[jitree.Session]:
    """The module has a library of its own, since a library may keep what it has made."""
    with jitree.Session("local-sync") as session:
        session.load_native(copy(library, tmp_path / "arrays.so"), create="create_arrays")
        yield session


def call(session: jitree.Session, name: str, *arguments: Any) -> Any:
    results = session.call_direct(f"arrays.{name}", *arguments)
    return results[0] if results else None


def view(session: jitree.Session, array: Any) -> BufferView:
    return session.to_device(np.asarray(array, np.int32)).buffer_view


def numbers(view: BufferView) -> list[Any]:
    assert isinstance(view, BufferView)
    elements = view.buffer.host_array()[: 4 * int(np.prod(view.shape))].view(np.int32).reshape(view.shape)
    return list(elements.tolist())


def test_views_are_read(session: jitree.Session) -> None:
    matrix = view(session, [[1, 2, 3], [4, 5, 6]])
    assert call(session, "sum", matrix) == 21
    assert [call(session, "shape", matrix, index) for index in (0, 1)] == [2, 3]
    facts = [call(session, "shape", matrix, index) for index in (-1, -2, -3, -4)]
    assert facts == [2, 0x10000020, 1, 24]
    assert call(session, "shape", view(session, 5), -1) == 0
    assert call(session, "sum", view(session, np.zeros((0, 3)))) == 0
    part = BufferView(matrix.buffer.subspan(4, 12), (3,), matrix.element_type)
    assert call(session, "sum", part) == 2 + 3 + 4


def test_programs_pass_arrays(session: jitree.Session) -> None:
    program = (
        Assembler("program").import_function("arrays.sum", "0r_I").import_function("arrays.make", "0i_r")
    )
    program.import_function("arrays.part", "0rII_r").type("!hal.buffer_view")
    program.function("main", "0r_II", """
        %i0:1 = call @arrays.sum [%r0]
        %i2 = const.i32 100
        %r1 = call @arrays.make [%i2]
        %i4 = const.i64 16
        %i6 = const.i64 20
        %r2 = call @arrays.part [%R1, %i4:5, %i6:7]
        %i8 = call @arrays.sum [%r2]
        return [%i0:1, %i8:9]
    """)  # fmt: skip
    session.load(program.build())
    assert session.call_direct("program.main", view(session, [1, 2])) == [3, 16 + 17 + 18 + 19]
    assert call(session, "live") == 0


def test_memory_is_written_in_place(session: jitree.Session) -> None:
    vector = view(session, [1, -2])
    assert call(session, "negate", vector) is None
    assert numbers(vector) == [-1, 2]


def test_read_only_memory_is_not(session: jitree.Session, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4096))
    with open(tmp_path / "a", "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        allocator = session.device.device_allocator
        buffer = allocator.import_host(memoryview(memory), 0, 0)
        assert buffer is not None
        locked = BufferView(buffer, (1024,), 0x10000020)
        assert call(session, "sum", locked) == 0
        with pytest.raises(PermissionDeniedError):
            call(session, "negate", locked)
        del buffer, locked
        gc.collect()


def test_memory_that_the_host_cannot_see_is_not_mapped(session: jitree.Session) -> None:
    hidden = Buffer(Allocation(1 << 40, 16, 0x30, 0xC03, 7, host_address=None))
    far = BufferView(hidden, (4,), 0x10000020)
    assert call(session, "shape", far, 0) == 4 and call(session, "same", far) is far
    with pytest.raises(UnimplementedError):
        call(session, "sum", far)


def test_command_line(library: Path, tmp_path: Path) -> None:
    program = Assembler("program").import_function("arrays.part", "0rII_r")
    program.type("!hal.buffer_view")
    program.function("main", "0r_r", """
        %i0 = const.i64 16
        %i2 = const.i64 19
        %r1 = call @arrays.part [%r0, %i0:1, %i2:3]
        return [%R1]
    """)  # fmt: skip
    (tmp_path / "program.vmfb").write_bytes(program.build())
    result = command.jitree(
        "run", f"--module={library}@create_arrays", f"--module={tmp_path / 'program.vmfb'}",
        "--function=main", "--device=local-sync", f"--input=32xi32={' '.join(map(str, range(32)))}",
    )  # fmt: skip
    assert result.stdout == "EXEC @main\nresult[0]: hal.buffer_view\n3xi32=16 17 18\n", result.stderr


def test_objects_keep_their_identity(session: jitree.Session) -> None:
    vector = view(session, [1, 2])
    assert call(session, "same", vector) is vector
    assert call(session, "same", None) is None
    assert call(session, "keep", vector) is None
    assert call(session, "kept") is vector
    assert call(session, "kept") is None
    assert call(session, "buffer", vector) is vector.buffer


def test_changed_views_are_others(session: jitree.Session) -> None:
    matrix = view(session, [[1, 2, 3], [4, 5, 6]])
    changed = call(session, "transposed", matrix)
    assert matrix.shape == (2, 3) and changed.buffer is matrix.buffer
    assert numbers(changed) == [[1, 2], [3, 4], [5, 6]]


def test_nothing_is_kept_or_freed_too_early(session: jitree.Session) -> None:
    vector = view(session, np.arange(100))
    allocation = vector.buffer.allocation
    released: list[int] = []
    allocation.action = partial(released.append, 1)
    del allocation
    for _ in range(10):
        call(session, "drop", vector)
        call(session, "sum", vector)
    call(session, "keep", vector)
    del vector
    gc.collect()
    assert not released
    assert call(session, "sum", call(session, "kept")) == 4950
    gc.collect()
    assert released == [1]


def test_views_that_libraries_make(session: jitree.Session) -> None:
    made = call(session, "make", 5)
    assert numbers(made) == [0, 1, 2, 3, 4] and call(session, "live") == 1
    assert made.element_type == 0x10000020 and made.shape == (5,)
    call(session, "negate", made)
    assert numbers(made) == [0, -1, -2, -3, -4]
    assert call(session, "sum", made) == -10
    again = call(session, "same", made)
    array = made.buffer.host_array().view(np.int32)
    del made, again
    gc.collect()
    assert call(session, "live") == 1 and array.tolist() == [0, -1, -2, -3, -4]
    del array
    gc.collect()
    assert call(session, "live") == 0
    assert numbers(call(session, "make", 0)) == []


def test_ranges_that_libraries_make(session: jitree.Session) -> None:
    vector = view(session, np.arange(100))
    part = call(session, "part", vector, 16, 20)
    assert numbers(part) == [16, 17, 18, 19] and part.buffer.allocation is vector.buffer.allocation
    assert call(session, "live") == 0, "the structure is gone, the memory is the vector's"
    made = call(session, "part", call(session, "make", 100), 16, 48)
    gc.collect()
    assert numbers(made) == list(range(16, 48)) and call(session, "live") == 2
    del made
    gc.collect()
    assert call(session, "live") == 0


def test_results_outlive_their_session(library: Path) -> None:
    with jitree.Session("local-sync") as session:
        session.load_native(library, create="create_arrays")
        made = call(session, "make", 3)
    del session
    gc.collect()
    assert numbers(made) == [0, 1, 2]


def test_devices_allocate(session: jitree.Session) -> None:
    made = call(session, "allocate", session.device, 3)
    assert numbers(made) == [7, 7, 7] and call(session, "live") == 0
    assert call(session, "same", session.device) is session.device
    assert call(session, "same", session.device.device_allocator) is session.device.device_allocator
    with pytest.raises(StatusError, match="RESOURCE_EXHAUSTED"):
        call(session, "allocate", session.device, 1 << 60)
    with pytest.raises(UnimplementedError):
        call(session, "query", session.device)


@pytest.mark.parametrize(("written", "status", "left"), [(77, 0, 77), (8, 8, None), (None, 2, None)])
def test_interrupted_allocations_fail(written: int | None, status: int, left: int | None) -> None:
    def allocate(allocator: int, parameters: int, size: int, out: int) -> int:
        if written is None:
            raise KeyboardInterrupt
        ctypes.c_void_p.from_address(out).value = written
        return 0

    callback = Callback(allocate, 4, lambda *_: 0, 0)
    words = (ctypes.c_void_p * 5)()
    words[4] = callback.address
    called = ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_void_p] * 4)(machine_code().checked_at_32)
    out = ctypes.c_void_p(1)
    assert called(ctypes.addressof(words), None, 5, ctypes.addressof(out)) == status
    assert out.value == left


def test_interrupted_callbacks() -> None:
    """An allocation gives no address, a query says that nothing is possible, the end of an object is done all
    the same. The caller gets the interrupt."""
    objects = hal_objects.HalObjects(lambda name, destroy: 1)
    parameters = layout.BufferParameters()
    out = ctypes.c_void_p(0)
    place, wanted = ctypes.addressof(out), ctypes.addressof(parameters)
    ended: list[int] = []
    destroy = destructor(lambda *arguments: ended.extend(arguments), 4)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4)
    for address, arguments in (
        (objects._query.address, (1, wanted, 0, 0)),
        (objects._allocate.address, (1, wanted, 8, place)),
        (destroy.address, (1, 2, 3, 4)),
    ):
        steps: list[Callable[[], object]] = [interrupt_main, partial(kind(address), *arguments)]
        assert [*map(operator.methodcaller("__call__"), steps)] == [None, 0]
        assert isinstance(take_kept(), KeyboardInterrupt)
    assert (out.value, ended) == (int(StatusCode.UNKNOWN), [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("what", "error", "match"),
    [
        (0, OutOfRangeError, "16 bytes cannot be viewed as `5xi32`, which has 20"),
        (1, OutOfRangeError, "dimension 0 is negative"),
        (2, FailedPreconditionError, "a view of rank 1048576, which is not laid out as"),
        (3, OutOfRangeError, "cannot be viewed as `4x"),
        (4, FailedPreconditionError, "memory that the host cannot see"),
        (5, FailedPreconditionError, "20241104 to 3.13"),
        (6, InvalidArgumentError, "aligned to 64 bytes"),
        (7, FailedPreconditionError, "a buffer of 16 bytes, which is not laid out"),
        (8, OutOfRangeError, "4611686018427387904xi32`: its byte length overflows"),
    ],
)
def test_what_libraries_make_is_checked(
    session: jitree.Session, what: int, error: type[StatusError], match: str
) -> None:
    with pytest.raises(error, match=match):
        call(session, "wrong", what, 0)
    assert call(session, "live") == 0
    assert numbers(call(session, "make", 1)) == [0]


TYPES = ["hal.buffer_view", "hal.buffer", "hal.device", "hal.allocator", "hal.fence", "vm.list", "vm.buffer"]
"""In the order of the library's."""


@pytest.mark.parametrize("given", [*TYPES[:4], TYPES[-1]])
@pytest.mark.parametrize("name", TYPES)
def test_refs_have_the_type_of_their_object(session: jitree.Session, given: str, name: str) -> None:
    vector = view(session, [1, 2])
    device = session.device
    objects = dict(zip(TYPES, (vector, vector.buffer, device, device.device_allocator), strict=False))
    objects["vm.buffer"] = VmBuffer.alias(bytes(range(9)))
    value, count = objects[given], sys.getrefcount(objects[given])
    if given == name:
        assert call(session, "as", value, TYPES.index(name)) is value
    else:
        with pytest.raises(InvalidArgumentError, match=f"the C module gave a !{given} as a !{name}"):
            call(session, "as", value, TYPES.index(name))
    assert sys.getrefcount(value) == count, "the structure is gone"
    assert call(session, "as", None, TYPES.index(name)) is None
    assert call(session, "sum", vector) == 3


@pytest.mark.parametrize(("kinds", "left"), [((0, 4), 1), ((4, 0), 1), ((5, 0), 1), ((0, 5), 1), ((0, 0), 0)])
def test_a_result_that_is_refused_takes_no_other_with_it(
    session_apart: jitree.Session, kinds: tuple[int, int], left: int
) -> None:
    """Fences and lists are no one's to free, views are."""
    if left:
        with pytest.raises(UnimplementedError, match=f"the C module gave a !{TYPES[max(kinds)]}"):
            call(session_apart, "two", *kinds)
    else:
        assert len(session_apart.call_direct("arrays.two", *kinds)) == 2
    gc.collect()
    assert call(session_apart, "live") == left


def test_spans_of_views(session: jitree.Session) -> None:
    vector = view(session, [1, 2, 3])
    assert call(session, "total", [vector, None, vector, call(session, "make", 4)]) == 10
    assert call(session, "total", []) == 0
    for refused in (session.device.create_semaphore(0), 3):
        with pytest.raises(StatusError):
            call(session, "total", [vector, refused])
    with pytest.raises(InvalidArgumentError, match="expected a list"):
        call(session, "total", vector)


def test_bytes_that_are_nowhere_are_not_read(session_apart: jitree.Session) -> None:
    """A view that a library takes for a buffer of the VM has no address, and another one in place of the
    length."""
    with pytest.raises(FailedPreconditionError, match=r"a !vm.buffer of \d+ bytes, which is not laid out"):
        call(session_apart, "two", 6, 6)


def test_threads_use_one_library(library: Path) -> None:
    device = jitree.Instance().create_device("local-sync")
    with jitree.Session(device) as shared:
        shared.load_native(library, create="create_arrays")
        common = view(shared, np.arange(64))

        def work(session: jitree.Session) -> None:
            own = view(session, np.arange(32))
            for number in range(30):
                made = call(session, "make", 16)
                assert call(session, "sum", made) == 120
                assert call(session, "sum", call(session, "part", own, 16, 20)) == 16 + 17 + 18 + 19
                assert call(session, "same", common) is common
                call(session, "drop", common)
                assert call(session, "total", [common, own, None, made]) == 64 + 32 + 16
                with pytest.raises(InvalidArgumentError):
                    call(session, "as", own, 1 + number % 6)

        def work_alone(_: int) -> None:
            with jitree.Session(device) as session:
                session.load_native(library, create="create_arrays")
                work(session)

        with ThreadPoolExecutor(4) as pool:
            shares = [pool.submit(work, shared) for _ in range(2)]
            list(pool.map(work_alone, range(2)))
            for share in shares:
                share.result()


def test_code_of_earlier_releases_finds_what_it_looks_for(session: jitree.Session) -> None:
    """Before 3.1 the allocator and the access (read, write, discard), before 3.4 the access at the usage."""
    vector = view(session, [1, 2])
    allocator, pool, owners, usage = (call(session, "word", vector, offset) for offset in (56, 72, 80, 88))
    assert allocator == allocator_address() and pool == 0
    assert owners & 0xFFFF == 7 and usage & 7 == 7


@pytest.mark.parametrize("layout", [31, 30])
def test_buffers_of_earlier_releases(session: jitree.Session, layout: int) -> None:
    made = call(session, "wrong", 99, layout)
    assert isinstance(made.buffer, Buffer) and made.shape == (4,) and made.buffer.byte_length == 16
    assert (made.buffer.memory_type, made.buffer.allowed_access) == (0x56, 7)
    call(session, "negate", made)
    del made
    gc.collect()
    assert call(session, "live") == 0
