"""Results of ``jitree run``: as text, in files, and compared with what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import StatusError
from jitree.tools import values as hv
from jitree.tools.run import EXACT, Tolerances, compare, write_outputs
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


APPROXIMATE = Tolerances({"f16": 0.001, "bf16": 0.01, "f32": 0.0001, "f64": 0.0001}, 1e-5)


def differences(actual: str, wanted: str, kind: str = "r", tolerances: Tolerances = APPROXIMATE) -> list[str]:
    return compare([value(actual, kind)], [value(wanted, kind)], tolerances, 1024)


def matches(actual: str, wanted: str, kind: str = "r", tolerances: Tolerances = APPROXIMATE) -> bool:
    return not differences(actual, wanted, kind, tolerances)


@pytest.mark.parametrize(
    ("actual", "wanted", "equal"),
    [
        ("2xf32=1,2", "2xf32=1,2.0001", True),
        ("2xf32=1,2", "2xf32=1,2.001", False),
        ("1xf32=1e6", "1xf32=1000009", True),
        ("1xf32=1e6", "1xf32=1000020", False),
        ("1xf16=1", "1xf16=1.001", True),
        ("1xf16=1", "1xf16=1.01", False),
        ("1xbf16=1", "1xbf16=1.0078125", True),
        ("1xf64=1", "1xf64=1.00005", True),
        ("2xf32=nan,inf", "2xf32=nan,inf", True),
        ("1xf32=nan", "1xf32=1", False),
        ("1xf32=1", "1xf32=nan", False),
        ("1xf32=inf", "1xf32=-inf", False),
        ("1xf32=3e38", "1xf32=inf", False),
        ("1xf32=-0", "1xf32=0", True),
        ("1xf8E5M2=1", "1xf8E5M2=1.25", False),
        ("1xcf64=1+2j", "1xcf64=1.00001+2j", False),
        ("2xi32=1,2", "2xi32=1,2", True),
        ("2xi32=1,2", "2xi32=1,3", False),
        ("2xi32=1,-2", "2xsi32=1,-2", True),
        ("2xui32=1,2", "2xsi32=1,2", False),
        ("3xi4=1,2,-3", "3xi4=1,2,-3", True),
        ("3xi4=1,2,-3", "3xi4=1,2,3", False),
        ("2xf32=1", "1x2xf32=1", False),
        ("2xf32=1", "2xi32=1", False),
        ("(null)", "(null)", True),
        ("(null)", "2xf32", False),
        ("2xf32", "(null)", False),
        ("&2xf32=1", "&2xf32=1", True),
        ("&2xf32=1", "&2xf32=2", False),
        ("0xf32", "0xf32", True),
    ],
)
def test_which_values_match(actual: str, wanted: str, equal: bool) -> None:
    assert matches(actual, wanted) is equal


def test_exact_mode_compares_bytes() -> None:
    assert not matches("1xf32=1", "1xf32=1.00000012", tolerances=EXACT)
    assert not matches("1xf32=0", "1xf32=-0", tolerances=EXACT)
    assert matches("1xf32=nan", "1xf32=nan", tolerances=EXACT)


def test_ignored_accepts_any_result() -> None:
    for actual, kind in (("7", "i"), ("2xf32=1", "r"), ("(null)", "r")):
        assert matches(actual, "(ignored)", kind)


@pytest.mark.parametrize(("actual", "wanted", "kind", "equal"), [
    ("7", "7", "i", True), ("7", "8", "i", False), ("7", "7", "I", True), ("1.5", "1.50001", "f", True),
    ("1.5", "1.6", "f", False), ("nan", "nan", "F", True),
])  # fmt: skip
def test_scalars(actual: str, wanted: str, kind: str, equal: bool) -> None:
    assert matches(actual, wanted, kind) is equal


def test_texts() -> None:
    assert differences("7", "8", "i") == [
        "[FAILED] result[0]: i32 values differ\n  expected: 8\n  actual: 7\n"
    ]
    assert differences("2x2xf32=1,2,3,4", "2x2xf32=1,2,3.5,9") == [
        "[FAILED] result[0]: element at index 2 (3) does not match the expected (3.5); "
        "expected that the view is equal to contents of a view of 2x2xf32\n"
        "  expected:\n2x2xf32=[1 2][3.5 9]\n  actual:\n2x2xf32=[1 2][3 4]\n"
        "  2 of 4 elements differ; largest |a-e| = 5 at [1,1]\n"
    ]
    assert differences("2xf32=1", "2xf16=1")[0].startswith(
        "[FAILED] result[0]: metadata is 2xf32; expected that the view matches 2xf16; "
        "expected that the view is equal to contents of a view of 2xf16\n  expected:\n"
    )
    assert differences("(null)", "2xf32") == [
        "[FAILED] result[0]: variant types mismatch; expected hal.buffer_view but got empty\n"
    ]
    assert compare([], [hv.NULL], EXACT, 9) == ["[FAILED] expected 1 list elements but 0 provided\n"]


def test_every_differing_result_is_reported() -> None:
    results = [value("1xi32=1"), value("1xi32=2"), value("1xi32=3")]
    wanted = [value("1xi32=9"), value("1xi32=2"), value("1xi32=9")]
    texts = compare(results, wanted, EXACT, 1024)
    assert [text[:20] for text in texts] == ["[FAILED] result[0]: ", "[FAILED] result[2]: "]


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=6))
def test_the_rule_is_the_one_of_the_specification(pairs: list[tuple[float, float]]) -> None:
    def passes(a: float, e: float) -> bool:
        if np.isnan(a) or np.isnan(e) or np.isinf(a) or np.isinf(e):
            return a == e or bool(np.isnan(a) and np.isnan(e))
        return abs(a - e) <= 0.0001 + 1e-5 * abs(e)

    actual, wanted = (np.array([pair[side] for pair in pairs], np.float32) for side in (0, 1))
    failures = compare([array_tensor(actual)], [array_tensor(wanted)], APPROXIMATE, 1024)
    bad = [index for index, pair in enumerate(pairs) if not passes(*pair)]
    assert bool(failures) == bool(bad)
    if bad:
        assert f"element at index {bad[0]} (" in failures[0]
        assert f"{len(bad)} of {len(pairs)} elements differ" in failures[0]


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float64])
def test_the_largest_difference_is_found(dtype: Any) -> None:
    wanted = np.arange(24).reshape(2, 3, 4).astype(dtype)
    actual = wanted.copy()
    actual[0, 1, 2] += 3
    actual[1, 2, 0] += 5
    (text,) = compare([array_tensor(actual)], [array_tensor(wanted)], EXACT, 4)
    assert "2 of 24 elements differ; largest |a-e| = 5 at [1,2,0]" in text
