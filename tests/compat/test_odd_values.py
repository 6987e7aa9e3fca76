"""Odd values given to functions of iree.runtime's names: a status, or an error that says which argument is
wrong. Nothing that Python raised where it met the value comes out. (What iree.runtime writes in Python raises
there, and so here, what Python raises: ``transcripts``.)"""

from __future__ import annotations

import collections.abc
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
import jitree.compat.iree_runtime as rt
from jitree.errors import ResourceExhaustedError, StatusError
from tests.api.programs import ARITHMETIC

_PACKAGE = str(Path(jitree.__file__).parent)


class Own(Exception):
    """What methods of a value raise."""


class Lying(np.ndarray[Any, Any]):
    """An array that says nonsense of itself."""

    shape: Any = "nonsense"
    dtype: Any = None
    nbytes: Any = None


class Raising:
    def _fail(self, *_: object) -> Any:
        raise Own

    __len__ = __getitem__ = __iter__ = __index__ = __float__ = __fspath__ = __repr__ = __array__ = _fail


class Nonsense:
    shape, dtype = ("a",), "none"

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        return "x"

    def __index__(self) -> int:
        return 10**40

    def __fspath__(self) -> bytes:
        return b"\xff"

    def __array__(self, *_: object) -> str:
        return "text"

    def __dlpack__(self, **_: object) -> int:
        return 5

    def __dlpack_device__(self) -> str:
        return "cpu"


class Endless(collections.abc.Sequence[int]):
    def __len__(self) -> int:
        return 10**30

    def __getitem__(self, index: Any) -> Any:
        return 1


RELEASED = memoryview(bytearray(16))
RELEASED.release()

ODD: tuple[Any, ...] = (
    None, -1, 1 << 70, 1.5, float("nan"), "x", "\udcff", "a\0b", b"\xff\xfe", [], [1.5, "x"], (-1,),
    (1 << 62,) * 2, {}, {"\udcff": "\udcff"}, object(), int, np.array(["a"]), np.array([object()]),
    np.zeros(4, "i4,f4"), np.zeros(3, ">f4"), np.zeros((4, 4), np.float32)[::2, ::2],
    np.broadcast_to(np.int64(1), (1 << 45,)),
    np.zeros(3, np.float32).view(Lying), Raising(), Nonsense(), Endless(), RELEASED,
    memoryview(b"\xff" * 16)[::-1], np.zeros(2, "M8[s]"), iter([0.5]), rt.HalElementType.FLOAT_32,
)  # fmt: skip


class Things:
    """What functions are called with besides."""

    def __init__(self) -> None:
        self.config = rt.Config(device=rt.get_device("local-sync"))
        self.device: Any = self.config.device
        self.allocator: Any = self.device.allocator
        self.instance: Any = self.config.vm_instance
        self.module: Any = rt.VmModule.mmap(self.instance, str(ARITHMETIC))
        self.context = rt.SystemContext(config=self.config)
        self.context.add_vm_module(self.module)
        self.list = rt.VmVariantList(2)
        self.index = rt.ParameterIndex()
        self.array = rt.asdevicearray(self.device, np.arange(4, dtype=np.float32))


CALLS: dict[str, Callable[[Things, Any], object]] = {
    "get_device": lambda t, odd: rt.get_device(odd),
    "get_driver": lambda t, odd: rt.get_driver(odd),
    "argument": lambda t, odd: t.context.modules.arithmetic["scale"](odd, odd),
    "mmap": lambda t, odd: rt.VmModule.mmap(t.instance, odd),
    "VmModule": lambda t, odd: rt.VmModule.copy_buffer(t.instance, odd),
    "lookup_function": lambda t, odd: t.module.lookup_function(odd),
    "list": lambda t, odd: rt.VmVariantList(odd),
    "push_float": lambda t, odd: t.list.push_float(odd),
    "push_int": lambda t, odd: t.list.push_int(odd),
    "push_list": lambda t, odd: t.list.push_list(odd),
    "get_variant": lambda t, odd: t.list.get_variant(odd),
    "get_as_ref": lambda t, odd: t.list.get_as_ref(odd),
    "buffer": lambda t, odd: rt.VmBuffer(odd),
    "HalFence": lambda t, odd: rt.HalFence(odd),
    "Shape": lambda t, odd: rt.Shape(odd),
    "asarray shape": lambda t, odd: t.array._buffer_view.map().asarray(odd, np.float32),
    "asarray dtype": lambda t, odd: t.array._buffer_view.map().asarray((4,), odd),
    "asdevicearray": lambda t, odd: rt.asdevicearray(t.device, odd),
    "allocate_buffer_copy": lambda t, odd: t.allocator.allocate_buffer_copy(1, 1, t.device, odd),
    "save_archive_file value": lambda t, odd: rt.save_archive_file({"a": odd}, "a.irpa"),
    "add_splat": lambda t, odd: t.index.add_splat("s", odd, 8),
    "add_buffer": lambda t, odd: t.index.add_buffer("b", odd),
    "load": lambda t, odd: rt.ParameterIndex().load(odd),
    "wrap_memory": lambda t, odd: rt.FileHandle.wrap_memory(odd),
}  # fmt: skip


def is_said(error: BaseException) -> bool:
    """Whether the package, or the value itself, has raised it on purpose."""
    if isinstance(error, (StatusError, Own)) or isinstance(error.__cause__, Own):
        return True
    if isinstance(error, OSError):
        return error.filename is not None
    place = error.__traceback__
    assert place is not None
    while place.tb_next is not None:
        place = place.tb_next
    file = place.tb_frame.f_code.co_filename
    line = linecache.getline(file, place.tb_lineno).strip()
    is_raised = file.startswith(_PACKAGE) and line.startswith("raise")
    return is_raised and isinstance(error, (TypeError, ValueError, KeyError, RuntimeError))


@pytest.mark.parametrize("name", CALLS)
def test_an_odd_value_is_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a name may be one of a file
    things = Things()
    refused = 0
    for place, odd in enumerate(ODD):
        try:
            CALLS[name](things, odd)
        except Exception as error:
            assert is_said(error), (place, type(odd).__name__, error)
            refused += 1
    assert refused > 3


def test_elements_that_are_not_there() -> None:
    """An array may show a few bytes as more elements than there is memory for."""
    huge = np.broadcast_to(np.float32(1), (1 << 30, 1 << 30))
    with pytest.raises(ResourceExhaustedError, match="device"):
        rt.asdevicearray(rt.get_device("local-sync"), huge)
    with pytest.raises(ResourceExhaustedError, match="parameter 'huge'"):
        rt.parameter_index_add_numpy_ndarray(rt.ParameterIndex(), "huge", huge)


def test_a_part_of_a_buffer_has_a_text() -> None:
    assert "size 2" in repr(rt.VmBuffer(4)[1:3]) and "size 1" in repr(rt.VmBuffer(4).max())
