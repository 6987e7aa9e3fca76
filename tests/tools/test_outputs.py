"""Where results go: printed, dropped, numpy and raw files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jitree.errors import StatusError
from jitree.tools import values as hv
from jitree.tools.run import write_outputs
from jitree.tools.values import ValueFiles, array_tensor, parse_value
from jitree.types import is_packed


def value(text: str, kind: str = "r") -> hv.HostValue:
    with ValueFiles() as files:
        return parse_value(text, kind, files)[0]


def send(results: list[hv.HostValue], *specifications: str) -> str:
    texts: list[str] = []
    write_outputs(results, specifications, 1024, texts.append)
    return "".join(texts)


def test_printing() -> None:
    results = [value("2xf32=1,2"), value("7", "i")]
    assert send(results) == "result[0]: hal.buffer_view\n2xf32=1 2\nresult[1]: i32=7\n"
    assert send(results, "-", "-") == "hal.buffer_view\n2xf32=1 2\ni32=7\n"
    assert send(results, "", "-") == "i32=7\n"


def test_lists_and_buffers_print() -> None:
    items = (hv.Scalar("i32", 42), value("1xf32=2"), hv.NULL, hv.Opaque("hal.fence"))
    assert send([hv.HostList(items)]) == (
        "result[0]: vm.list\nchild_list[0]: i32=42\nchild_list[1]: hal.buffer_view\n1xf32=2\n"
        "child_list[2]: (null)\nchild_list[3]: hal.fence\n(no printer)\n\n"
    )
    data = np.arange(2000, dtype=np.uint16).view(np.uint8)
    text = send([hv.HostBuffer("vm.buffer", data)])
    assert text.startswith("result[0]: vm.buffer\n4000 bytes: 000001000200") and text.endswith("...\n")
    assert send([hv.HostBuffer("hal.buffer", data)]) == "result[0]: hal.buffer\n(no printer)\n"


@pytest.mark.parametrize(
    ("result", "array"),
    [
        (value("2x3xf32=1,2,3,4,5,6"), np.arange(1, 7, dtype=np.float32).reshape(2, 3)),
        (value("3xi8=-1,2,3"), np.array([-1, 2, 3], np.int8)),
        (value("2xui16=1,65535"), np.array([1, 65535], np.uint16)),
        (value("2xi1=1,0"), np.array([True, False])),
        (value("1xcf64=1+2j"), np.array([1 + 2j], np.complex64)),
        (value("3xi4=-8,7,1"), np.array([-8, 7, 1], np.int8)),
        (value("1x*24=010203"), np.frombuffer(b"\1\2\3", "V3")),
        (value("0x2xf64"), np.zeros((0, 2))),
        (value("7", "i"), np.array(7, np.int32)),
        (value("-7", "I"), np.array(-7, np.int64)),
        (value("1.5", "f"), np.array(1.5, np.float32)),
        (value("1.5", "F"), np.array(1.5, np.float64)),
        (hv.NULL, np.zeros(0, np.int8)),
        (value("&2xi32=1,2"), np.array([1, 2], np.int32).view(np.int8)),
        (hv.HostBuffer("vm.buffer", np.array([200], np.uint8)), np.array([-56], np.int8)),
    ],
)
def test_numpy_and_raw_files(result: hv.HostValue, array: np.ndarray, tmp_path: Path) -> None:
    assert send([result, result], f"@{tmp_path}/a.npy", f"@{tmp_path}/a.bin") == ""
    stored = np.load(tmp_path / "a.npy")
    assert stored.dtype == array.dtype and stored.shape == array.shape
    assert stored.tobytes() == array.tobytes()
    if not (isinstance(result, hv.HostTensor) and is_packed(result.element_type)):
        assert (tmp_path / "a.bin").read_bytes() == array.tobytes()


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", ml_dtypes.bfloat16), ("f8E4M3FN", ml_dtypes.float8_e4m3fn)]
)
def test_types_numpy_lacks_are_stored_as_bytes(name: str, dtype: type, tmp_path: Path) -> None:
    send([value(f"2x{name}=1,0.5")], f"@{tmp_path}/a.npy")
    stored = np.load(tmp_path / "a.npy")
    assert stored.dtype == np.dtype(f"V{np.dtype(dtype).itemsize}")
    assert stored.view(dtype).astype(np.float32).tolist() == [1, 0.5]


def test_plus_appends(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for number in range(3):
        send([array_tensor(np.array([number]))], f"+{path}")
    with path.open("rb") as file:
        assert [int(np.load(file)[0]) for _ in range(3)] == [0, 1, 2]


def test_archives_take_all_results_that_remain(tmp_path: Path) -> None:
    results = [value("2xf32=1,2"), value("7", "i"), value("2x2xi8=1,2,3,4")]
    path = tmp_path / "all.npz"
    assert send(results, f"@{path}") == ""
    with np.load(path) as archive:
        assert archive.files == ["arr_0", "arr_1", "arr_2"]
        assert archive["arr_0"].tolist() == [1, 2] and archive["arr_1"].shape == ()
    with ValueFiles() as files:
        read = parse_value(f"@{path}", "r", files)
    types = [found.shaped_type for found in read if isinstance(found, hv.HostTensor)]
    assert types == ["2xf32", "si32", "2x2xsi8"]
    assert send(results, "-", f"@{path}") == "hal.buffer_view\n2xf32=1 2\n"
    assert send(results, f"+{path}", "", f"+{path}") == ""
    with np.load(path) as archive:
        assert [archive[name].shape for name in archive.files] == [(), (2, 2), (2,), (2, 2)]


def test_what_is_no_archive_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"text")
    with pytest.raises(StatusError, match=r"a\.npz` is not a numpy archive"):
        send([value("2xf32=1,2")], f"+{tmp_path}/a.npz")
    assert (tmp_path / "a.npz").read_bytes() == b"text"
    assert send([value("2xf32=1,2")], f"@{tmp_path}/a.npz") == ""
    with np.load(tmp_path / "a.npz") as archive:
        assert archive["arr_0"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("specifications", "message"),
    [
        (["-", "@a.npz"], "OUT_OF_RANGE; 2 outputs specified but"),
        (["-", "-"], "OUT_OF_RANGE; 2 outputs specified but the provided variant list only has 1 elements"),
        (["x"], "UNIMPLEMENTED; unsupported output mode specification 'x'"),
        (["@/proc/nowhere/a.npy"], "UNAVAILABLE; unable to write file `/proc/nowhere/a.npy`"),
    ],
)
def test_bad_specifications(specifications: list[str], message: str) -> None:
    with pytest.raises(StatusError) as caught:
        send([hv.NULL], *specifications)
    assert message in str(caught.value)


def test_a_list_cannot_be_stored(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match=r"vm\.list cannot be written"):
        send([hv.HostList(())], f"@{tmp_path}/a.npy")
