"""Parameters by iree.runtime's names."""

from __future__ import annotations

import array
import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import jitree.compat.iree_runtime as rt
from jitree.compat.iree_runtime.function import Abi, ArgumentError


def saved(path: Path) -> rt.ParameterIndex:
    rt.save_archive_file(
        {"weight": rt.SplatValue(np.int8(2), [30, 20]), "array": np.array([[1], [2]], np.int64)}, path
    )
    index = rt.ParameterIndex()
    index.load(str(path), mmap=False)
    return index


def test_an_archive_comes_back(tmp_path: Path) -> None:
    index = saved(tmp_path / "a.irpa")
    entries = dict(index.items())
    assert len(index) == 2 and index[0].key == "weight"
    assert repr(entries["weight"]) == "<ParameterIndexEntry 'weight' splat b'\\x02':600>"
    np.testing.assert_array_equal(np.frombuffer(entries["array"].file_view, np.int64), [1, 2])
    with pytest.raises(ValueError, match="not file storage based"):
        entries["weight"].file_storage  # noqa: B018
    with pytest.raises(ValueError, match="not splat"):
        entries["array"].splat_pattern  # noqa: B018
    with pytest.raises(IndexError, match="entry 7 out of range"):
        index[7]
    assert "Parameter scope <global> (2 entries" in repr(index)


def test_an_open_file_is_read_by_its_descriptor(tmp_path: Path) -> None:
    saved(tmp_path / "a.irpa")
    index = rt.ParameterIndex()
    with open(tmp_path / "a.irpa", "rb") as file:
        index.load_from_file_handle(rt.FileHandle.wrap_fd(file.fileno()), "irpa")
    handle, offset = dict(index.items())["array"].file_storage
    assert handle.is_fd and bytes(handle.bytes[offset : offset + 1]) == b"\x01"


def test_arrays_keep_shape_and_type() -> None:
    index = rt.ParameterIndex()
    for value in (np.arange(6, dtype=np.float16).reshape(2, 3), np.array(7, np.int32)):
        rt.parameter_index_add_numpy_ndarray(index, "key", value)
        got = rt.parameter_index_entry_as_numpy_ndarray(index[len(index) - 1])
        np.testing.assert_array_equal(got, value, strict=True)
    assert json.loads(index[0].metadata.split(b":", 1)[1])["shape"] == [2, 3]


def test_patterns_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="1, 2, 4, 8 or 16"):
        rt.ParameterIndex().add_splat("weight", array.array("f", [1.0] * 5), 600)
    with pytest.raises(NotImplementedError, match="unsupported file format `xyz`"):
        rt.ParameterIndex().load_from_file_handle(rt.FileHandle.wrap_memory(b"abc"), "xyz")
    with pytest.raises(IndexError, match="outside a file of 3 bytes"):
        rt.ParameterIndex().add_from_file_handle("key", rt.FileHandle.wrap_memory(b"abc"), 3, 1)


class Recorder:
    """A context that gives results without a program."""

    def __init__(self, *results: Any) -> None:
        self.results = results
        self.arguments = ""

    def invoke(self, function: Any, arguments: rt.VmVariantList, results: rt.VmVariantList) -> None:
        self.arguments = repr(arguments)
        for value in self.results:
            push = {int: results.push_int, rt.VmVariantList: results.push_list}
            push.get(type(value), results.push_ref)(value)


def invoker(context: Recorder, arguments: list[Any], results: list[Any]) -> Any:
    class Described:
        reflection: ClassVar = {"iree.abi": json.dumps({"a": arguments, "r": results})}

    return rt.FunctionInvoker(context, rt.get_device("local-sync"), Described())


def test_arguments_follow_their_descriptions() -> None:
    context = Recorder(3)
    call = invoker(context, ["i32", ["sdict", ["a", "i32"], ["b", "f32"]], ["named", "n", "i64"]], ["i32"])
    assert call(-1, {"b": 2.5, "a": 2}, n=9) == 3
    assert context.arguments == "<VmVariantList(3): [-1, List[2, 2.500000], 9]>"
    with pytest.raises(ValueError, match="mismatched call arity"):
        call(-1, {"a": 1, "b": 2.0})
    with pytest.raises(ValueError, match="specified kwarg 'm' is unknown"):
        call(-1, {"a": 1, "b": 2.0}, m=1)
    with pytest.raises(ArgumentError, match="could not get item 'b'"):
        call(-1, {"a": 1, "c": 2.0}, n=1)
    with pytest.raises(ArgumentError, match=r"expected a number of type i32 but got 1\.5"):
        call(1.5, {"a": 1, "b": 2.0}, n=1)


def test_arrays_of_other_shapes_and_kinds_are_refused() -> None:
    call = invoker(Recorder(1), [["ndarray", "i32", 1, 2]], ["i32"])
    assert call(np.array([1, 2])) == 1
    with pytest.raises(ArgumentError, match="shape"):
        call(np.array([1, 2, 3], np.int32))
    with pytest.raises(ArgumentError, match="int32 but got one of float64"):
        call(np.array([1.5, 2.5]))


def test_results_follow_their_descriptions() -> None:
    inner = rt.VmVariantList(2)
    inner.push_int(100)
    inner.push_int(200)
    call = invoker(Recorder(3, inner), [], ["i32", ["sdict", ["bar", "i32"], ["foo", "i32"]]])
    assert call() == (3, {"bar": 100, "foo": 200})
    inlined = invoker(Recorder(3, 4), [], [["stuple", "i32", "i32"]])
    assert inlined() == (3, 4)
    with pytest.raises(ValueError, match="mismatched return arity"):
        invoker(Recorder(3, 4), [], ["i32"])()
    with pytest.raises(RuntimeError, match="not valid JSON"):
        Abi.read("{")
    for text in ("[" * 100_000, '{"a": [["named"]], "r": []}', '{"a": [["named", {}, 1]], "r": []}'):
        with pytest.raises(RuntimeError, match=r"not valid JSON|Malformed function reflection"):
            Abi.read(text)


@pytest.mark.parametrize("place", ["a", "r"])
@pytest.mark.parametrize(
    "description",
    [
        "ndarray", "slist", "stuple", "sdict", "py_homogeneous_list", "named", ["ndarray"],
        ["ndarray", "f32"], ["ndarray", 1, 1, 2], ["ndarray", "f32", "1", 2],
        ["ndarray", "f32", 1, "2"], ["sdict", "a"],
        ["sdict", ["a"]], ["sdict", [["a"], "i32"]], ["py_homogeneous_list"], ["slist", ["ndarray"]],
        ["py_homogeneous_list", ["sdict", 1]], ["named", "x", ["ndarray"]],
    ],
    ids=str,
)  # fmt: skip
def test_descriptions_that_lack_parts(place: str, description: Any) -> None:
    with pytest.raises(RuntimeError, match="Malformed function reflection"):
        Abi.read(json.dumps({"a": [], "r": []} | {place: [description]}))


@pytest.mark.parametrize("kind", [["py_homogeneous_list", "i32"], ["slist", "i32"], ["sdict", ["a", "i32"]]])
def test_values_of_compound_descriptions_that_are_none(kind: Any) -> None:
    call = invoker(Recorder(3), [kind], ["i32"])
    for value in ("ab", b"ab", np.zeros(2)):
        with pytest.raises(ArgumentError, match="expected a"):
            call(value)
    for odd in (None, 3, object()):  # whose length iree.runtime asks for where the description says none
        with pytest.raises(TypeError if kind[0] == "py_homogeneous_list" else ArgumentError):
            call(odd)
