"""Values from text and to text: against iree-run-module's output, and round trips."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.base import elements
from jitree.errors import StatusCode, StatusError
from jitree.tools import values as hv
from jitree.tools.element_parsing import integer_range
from jitree.tools.inputs import parse_values
from jitree.tools.run import value_text
from jitree.tools.values import ValueFiles, array_tensor, parse_value
from jitree.types import BY_NAME, ELEMENT_TYPES, format_shaped_type

GOLDENS = json.loads((Path(__file__).parent / "goldens.json").read_text())
KINDS = {"s_i32": "i", "s_i64": "I", "s_f32": "f", "s_f64": "F"}


def read(text: str, kind: str = "r") -> hv.HostValue:
    with ValueFiles() as files:
        (value,) = parse_values([text], [kind], files)
    return value


def read_tensor(text: str) -> hv.HostTensor:
    value = read(text)
    assert isinstance(value, hv.HostTensor)
    return value


def read_error(text: str, kind: str = "r") -> StatusError:
    with pytest.raises(StatusError) as caught:
        read(text, kind)
    assert caught.value.contexts == [f"parsing input `{text}`", "parsing function inputs"]
    return caught.value


@pytest.mark.parametrize("golden", GOLDENS["values"], ids=lambda golden: str(golden["input"]))
def test_text_of_a_parsed_value_is_the_one_of_the_reference_tool(golden: dict[str, Any]) -> None:
    function = golden["function"]
    budget = int(golden["flags"][0].split("=")[1]) if golden["flags"] else 1024
    text = value_text(read(golden["input"], KINDS.get(function, "r")), budget)
    assert f"EXEC @{function}\nresult[0]: {text}" == golden["stdout"]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "INVALID_ARGUMENT", "no value specified for input"),
        ("   ", "INVALID_ARGUMENT", "no value specified for input"),
        ("hello", "INVALID_ARGUMENT", "requires at least a shape/type (`4x2xf32=...`)"),
        ("4xf32=1,2", "OUT_OF_RANGE", "input data string underflow: dst_i=2 < element_capacity=4"),
        ("2xf32=1,2,3", "OUT_OF_RANGE", "output data overflow: element_capacity=2 < dst_i=3"),
        ("0xf32=1", "OUT_OF_RANGE", "output data overflow: element_capacity=0"),
        ("axf32=1", "INVALID_ARGUMENT", "shape[0] invalid value 'a'"),
        ("?xf32=1", "INVALID_ARGUMENT", "shape[0] invalid value '?'"),
        ("2x-1xf32=1", "INVALID_ARGUMENT", "shape[1] invalid value '-1'"),
        ("4xq32=1", "INVALID_ARGUMENT", "unknown element type 'q32'"),
        ("4x", "INVALID_ARGUMENT", "unknown element type ''"),
        ("4xi33=1", "INVALID_ARGUMENT", "unknown element type 'i33'"),
        ("4x*9=1", "INVALID_ARGUMENT", "in whole bytes"),
        ("4xf32=1,x,1,1", "INVALID_ARGUMENT", "'x' is not a number"),
        ("2xf32=1.5x", "INVALID_ARGUMENT", "'1.5x' is not a number"),
        ("2xf32=1_0", "INVALID_ARGUMENT", "'1_0' is not a number"),
        ("2xi32=3.7", "INVALID_ARGUMENT", "'3.7' is not an integer"),
        ("2xi32=99999999999", "INVALID_ARGUMENT", "between -2147483648 and 4294967295"),
        ("4xi8=256", "INVALID_ARGUMENT", "between -128 and 255"),
        ("4xsi8=255", "INVALID_ARGUMENT", "between -128 and 127"),
        ("4xui8=-1", "INVALID_ARGUMENT", "between 0 and 255"),
        ("4xi1=2", "INVALID_ARGUMENT", "'2'"),
        ("1xcf64=zz", "INVALID_ARGUMENT", "neither a complex number"),
        ("1xcf64=1_0+2j", "INVALID_ARGUMENT", "neither a complex number"),
        ("1xcf64=\u0661+2j", "INVALID_ARGUMENT", "neither a complex number"),
        ("1x*32=0102", "INVALID_ARGUMENT", "has 4 digits, expected 8"),
        ("99999999999x99999999999xf32", "OUT_OF_RANGE", "overflows 64 bits"),
        ("99999999999x99999999999xf32=1", "OUT_OF_RANGE", "overflows 64 bits"),
        ("999999x99999999xf32=1", "RESOURCE_EXHAUSTED", "does not fit in memory"),
        ("@absent.npy", "NOT_FOUND", "`absent.npy`"),
        ("@values.txt", "UNIMPLEMENTED", "only .npy, .npz, .safetensors and .json files"),
        ("4xf32=@absent.bin", "NOT_FOUND", "`absent.bin`"),
    ],
)
def test_a_bad_tensor_text_says_what_is_wrong(text: str, code: str, message: str) -> None:
    error = read_error(text)
    assert error.code is StatusCode[code]
    assert message in error.message


@pytest.mark.parametrize("name", ["sizes.npy", "sizes.npz"])
@pytest.mark.parametrize(
    ("shape", "code"),
    [
        ((10**30,), "INVALID_ARGUMENT"),
        ((2**63, 0), "INVALID_ARGUMENT"),
        ((2**32, 2**32), "INVALID_ARGUMENT"),
        ((2**45,), "RESOURCE_EXHAUSTED"),
    ],
)
def test_files_that_claim_impossible_sizes(
    tmp_path: Path, name: str, shape: tuple[int, ...], code: str, recwarn: pytest.WarningsRecorder
) -> None:
    data = io.BytesIO()
    np.lib.format.write_array_header_1_0(data, {"descr": "<f4", "fortran_order": False, "shape": shape})
    data.write(bytes(64))
    path = tmp_path / name
    if name.endswith(".npy"):
        path.write_bytes(data.getvalue())
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", data.getvalue())
    error = read_error(f"@{path}")
    assert error.code is StatusCode[code]
    assert str(path) in error.message
    assert not recwarn.list


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("3.7", "i", "'3.7' is not an integer"),
        ("1.5x", "f", "'1.5x' is not a number"),
        ("99999999999", "i", "out of range"),
        ("9223372036854775808", "I", "must be between -9223372036854775808 and 9223372036854775807"),
        ("0xFFFFFFFFFFFFFFFF", "I", "0xFFFFFFFFFFFFFFFF is out of range"),
        ("1xi64=9223372036854775808", "r", "is out of range"),
        ("abc", "I", "'abc' is not an integer"),
        ("4xi32=1", "i", "the parameter is a scalar"),
        ("4xf32", "f", "'4xf32' is not a number"),
    ],
)
def test_a_bad_scalar_text_says_what_is_wrong(text: str, kind: str, message: str) -> None:
    error = read_error(text, kind)
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert message in error.message


def test_where_the_grammar_goes_beyond_the_reference() -> None:
    assert read_tensor("4xi1=1 0 true false").text() == "4xi1=01 00 01 00"
    assert read_tensor("4xi32=010").text() == "4xi32=10 10 10 10"
    assert read_tensor("3xi4=-8 7 15").text() == "3xi4=-8 7 -1"
    assert read_tensor("1xcf64=1+2j").text() == "1xcf64=0000803F00000040"
    assert read_tensor("2xcomplex<f32>").shaped_type == "2xcf64"
    assert read_tensor("f32").shape == ()
    assert read("i32=7", "i") == hv.Scalar("i32", 7)
    assert read("4294967295", "i") == hv.Scalar("i32", -1)


def test_too_many_values_are_refused() -> None:
    with ValueFiles() as files, pytest.raises(StatusError, match="function expected fewer input values"):
        parse_values(["1", "2"], ["i"], files)


def test_files(tmp_path: Path) -> None:
    raw, arrays = tmp_path / "f.bin", tmp_path / "two.npy"
    np.arange(6, dtype=np.float32).tofile(raw)
    with arrays.open("wb") as file:
        np.save(file, np.array([1, 2], np.float32))
        np.save(file, np.asfortranarray(np.array([[3, 4], [5, 6]], np.int16)))
    with ValueFiles() as files:
        values = parse_values(
            [f"2xf32=@{raw}", f"2xf32=+{raw}", f"2xf32=@{raw}", f"@{arrays}", f"+{arrays}", f"*{arrays}"],
            ["r"] * 6,
            files,
        )
        assert [value_text(value).splitlines()[1] for value in values] == [
            "2xf32=0 1", "2xf32=2 3", "2xf32=0 1", "2xf32=1 2", "2x2xsi16=[3 4][5 6]",
        ]  # fmt: skip
        assert len(parse_values([f"@{arrays}"], ["r"], files)) == 1
        assert len(parse_values([f"*{arrays}"], ["r"], files)) == 1  # the second one
        with pytest.raises(StatusError, match="OUT_OF_RANGE; end-of-file"):
            parse_values([f"+{arrays}"], ["r"], files)
        with pytest.raises(StatusError, match="OUT_OF_RANGE; end-of-file"):
            parse_values([f"7xf32=@{raw}"], ["r"], files)
        with pytest.raises(StatusError, match="INVALID_ARGUMENT"):
            parse_values([f"2xi32=@{arrays}"], ["r"], files)


def test_one_text_may_name_all_arrays_of_a_file(tmp_path: Path) -> None:
    path, archive = tmp_path / "three.npy", tmp_path / "three.npz"
    contents = [np.array([k], np.uint8) for k in range(3)]
    with path.open("wb") as file:
        for array in contents:
            np.save(file, array)
    np.savez(archive, a=contents[0], b=contents[1])
    with ValueFiles() as files:
        assert len(parse_values([f"*{path}"], ["r"] * 3, files)) == 3
        assert len(parse_values([f"@{archive}"], ["r"] * 3, files)) == 2
        (value,) = parse_value(f"@{archive}:b", "r", files)
        assert isinstance(value, hv.HostTensor) and value.data.tolist() == [1]
        with pytest.raises(StatusError, match="no array `z`"):
            parse_value(f"@{archive}:z", "r", files)
    with ValueFiles() as files, pytest.raises(StatusError, match="function expected fewer input values"):
        parse_values([f"*{path}"], ["r"] * 2, files)


def test_arrays_of_archives_as_contents_and_as_scalars(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, vector=np.array([1.5, 2], np.float32), number=np.array(-7, np.int32))
    np.savez(tmp_path / "one.npz", np.array([3, 4], np.int16))
    with ValueFiles() as files:
        values = parse_values([f"@{path}"], ["r", "i"], files)
        assert values[1] == hv.Scalar("i32", -7)
        (vector,) = parse_values([f"2xf32=@{path}:vector"], ["r"], files)
        assert isinstance(vector, hv.HostTensor) and vector.values.tolist() == [1.5, 2]
        (short,) = parse_values([f"2xi16=@{tmp_path / 'one.npz'}"], ["r"], files)
        assert isinstance(short, hv.HostTensor) and short.shaped_type == "2xi16"
        for text, kind, message in (
            (f"2xf32=@{path}", "r", "holds 2 arrays; name one"),
            (f"2xi32=@{path}:vector", "r", "holds a 2xf32 array, not 2xi32"),
            (f"@{path}:vector", "f", "the parameter is a scalar f32, the file holds a 2xf32 array"),
            (f"@{path}:number", "I", "the parameter is a scalar i64, the file holds a si32 array"),
        ):
            with pytest.raises(StatusError, match=f"INVALID_ARGUMENT; .*{message}"):
                parse_values([text], [kind], files)


EXTENDED = {
    "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "bf16": ml_dtypes.bfloat16,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}  # fmt: skip


@pytest.mark.parametrize("name", EXTENDED)
def test_extended_types_are_read_by_the_declared_type(tmp_path: Path, name: str) -> None:
    """Also the last array of several, whose bytes look as the header of one."""
    array = np.array([1, 2, 4], EXTENDED[name])
    likeness = np.frombuffer(b"{'descr': '<f1'}", EXTENDED[name])
    path, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, array)
        np.save(file, likeness)
    np.savez(archive, a=array)
    for text in (f"3x{name}=@{path}", f"3x{name}=@{archive}:a", f"3x{name}=@{archive}"):
        assert read_tensor(text).data.tobytes() == array.tobytes()
    with ValueFiles() as files:
        first, second = parse_values([f"*{path}"], ["r", "r"], files)
    assert isinstance(first, hv.HostTensor) and first.data.tobytes() == array.tobytes()
    assert isinstance(second, hv.HostTensor) and second.data.tobytes() == likeness.tobytes()


def array_bytes(array: np.ndarray) -> bytes:
    """A numpy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "checksum", "no array", "size"])
def test_damaged_archives(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, np.arange(4))
    content = path.read_bytes()
    if damage == "no array":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("notes", "text")
    elif damage == "size":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("arr_0.npy", array_bytes(np.arange(1)).replace(b"(1,), }   ", b"(True,), }"))
    else:
        damaged = {"empty": b"", "cut": content[:-30], "text": b"text"}
        path.write_bytes(damaged.get(damage, content.replace(b"NUMPY", b"NUMPX")))
    with ValueFiles() as files, pytest.raises(StatusError, match=r"INVALID_ARGUMENT; .* is not a numpy arch"):
        parse_values([f"@{path}"], ["r"], files)


@pytest.mark.parametrize("name", ["bool", "int8", "uint64", "float16", "complex128", ">i4", ">f8"])
def test_arrays_keep_their_type_and_contents(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(name)
    tensor = array_tensor(array)
    assert tensor.shape == (2, 3)
    assert np.array_equal(tensor.data.view(tensor.element_type.dtype).reshape(2, 3), array)


SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
INTEGER_TYPES = [row for row in ELEMENT_TYPES if elements.is_integer(row)]
HEX_TYPES = [row for row in ELEMENT_TYPES if not elements.is_integer(row) and not elements.is_float(row)]
FLOAT_TYPES = [row for row in ELEMENT_TYPES if elements.is_float(row)]


@given(st.data(), SHAPES, st.sampled_from(INTEGER_TYPES))
def test_integers_print_as_text_that_reads_back(
    data: st.DataObject, shape: tuple[int, ...], row: Any
) -> None:
    low, high = integer_range(row)
    count = elements.count_elements(shape)
    values = data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    tensor = read_tensor(f"{format_shaped_type(shape, row)}={' '.join(map(str, values))}")
    again = read_tensor(tensor.text())
    assert again.shape == shape and again.element_type == row
    assert np.array_equal(again.data, tensor.data)
    signless = row.name.startswith("i")
    wrapped = [
        value - (1 << row.bits) if signless and value >= 1 << (row.bits - 1) else value for value in values
    ]
    assert [int(value) for value in tensor.values] == wrapped


@given(st.data(), SHAPES, st.sampled_from(HEX_TYPES))
def test_hex_types_print_as_text_that_reads_back(
    data: st.DataObject, shape: tuple[int, ...], row: Any
) -> None:
    size = row.byte_length(shape)
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    again = read_tensor(hv.HostTensor(row, shape, raw).text())
    assert again.shape == shape and again.element_type == row
    assert np.array_equal(again.data, raw)


@given(st.sampled_from(FLOAT_TYPES), st.lists(st.floats(width=32), min_size=2, max_size=8))
def test_floats_are_rounded_to_the_type_as_ml_dtypes_does(row: Any, values: list[float]) -> None:
    tensor = read_tensor(f"{len(values)}x{row.name}={' '.join(map(repr, values))}")
    with np.errstate(all="ignore"):
        want = np.array(values, np.float32).astype(row.dtype)
    assert np.array_equal(
        tensor.data.view(row.dtype).astype(np.float64), want.astype(np.float64), equal_nan=True
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 70))
def test_elision_prints_as_many_elements_as_the_budget_allows(shape: list[int], budget: int) -> None:
    count = elements.count_elements(tuple(shape))
    tensor = array_tensor(np.full(shape, 7, np.int32))
    text = tensor.text(budget)
    assert text.split("=")[1].count("7") == min(budget, count)
    assert ("..." in text) == (budget < count)


def test_element_types_agree_with_ml_dtypes() -> None:
    assert BY_NAME["f8E8M0FNU"].dtype == np.dtype(ml_dtypes.float8_e8m0fnu)


@pytest.mark.parametrize(
    ("text", "same"), [("xf32=3", "f32=3"), ("xf32", "f32"), ("xcomplex<f32>=1+2j", "cf64=1+2j")]
)
def test_no_dimensions_in_the_spelling_of_the_reference_tool(text: str, same: str) -> None:
    value = read_tensor(text)
    assert value.shape == () and value_text(value) == value_text(read_tensor(same))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4xf32=1,2,x", "'x' is not a number"), ("2xi32=1,2,x", "'x' is not an integer"),
        ("2xcomplex<f32>=1 2 3 4", r"dst_i=4; an element of type cf64 is one word: `1\+2j`"),
        ("3xcomplex<f64>=1 2", r"dst_i=2 < element_capacity=3; .* `1\+2j`.* 16 bytes"),
        ("xxf32=1", "shape.0. invalid value ''"), ("x4xf32=1", "shape.0. invalid value ''"),
        ("2complex<f32>=1", "unknown element type '2complex<f32>'"),
    ],
)  # fmt: skip
def test_what_a_text_is_refused_for(text: str, says: str) -> None:
    assert re.search(says, str(read_error(text)))


@pytest.mark.parametrize("member", [b"\xff\xfe", b"\xc3("])
def test_names_in_archives_that_are_no_text(tmp_path: Path, member: bytes) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        array = io.BytesIO()
        np.save(array, np.arange(3))
        archive.writestr("\u00e9.npy", array.getvalue())
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), member))
    assert read_error(f"@{path}").code == StatusCode.INVALID_ARGUMENT
