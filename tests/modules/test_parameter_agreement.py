"""Parameters of another length or element type than the program was compiled for are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Session
from jitree.errors import InvalidArgumentError, OutOfRangeError
from jitree.modules.io_parameters.agreement import named
from jitree.params import open_providers, splat_entry
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry
from jitree.types import BY_NAME
from tests.assembler import Assembler
from tests.params.archives import gguf, gguf_tensor, safetensors, write_irpa

PROGRAM = Path(__file__).parent.parent / "data" / "programs" / "parameters.vmfb"
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
BIAS = np.array([10, 20, 30], np.float32)
INPUT = np.arange(8, dtype=np.float32).reshape(2, 4)
LONGER = (
    r"'model::w' has 96 bytes \(.*f64\), and the program takes 48 bytes.* f32; .*astype\(numpy\.float32\)"
)
OTHER = r"'model::w' has 48 bytes \(.*i32\), and of that size the program has f32 elements only; convert it"


def run(*sources: Any, sandbox: bool | str = False) -> np.ndarray[Any, Any]:
    """The result of the program with parameters for ``w`` besides its others."""
    others = {"model": {"b": BIAS}, "scale": np.ones(3, np.float32)}
    with Session("local-sync", parameters=open_providers([*sources, others]), sandbox=sandbox) as session:
        return np.array(session.load(PROGRAM).linear(INPUT))


@pytest.mark.parametrize(
    ("weight", "error", "says"),
    [
        (WEIGHT.astype(np.float64), InvalidArgumentError, LONGER),
        (WEIGHT.astype(np.int32), InvalidArgumentError, OTHER),
        (WEIGHT.astype(np.uint32), InvalidArgumentError, OTHER),
        (np.ones((5, 3), np.float32), InvalidArgumentError, r"60 bytes \(5x3xf32\).* takes 48 bytes"),
        (WEIGHT.astype(np.int64), InvalidArgumentError, r"96 bytes \(4x3xi64\).* takes 48 bytes.*f32"),
        (WEIGHT.astype(np.complex64), InvalidArgumentError, r"96 bytes \(4x3xcf64\).* takes 48 bytes"),
        (WEIGHT.astype(np.float16), OutOfRangeError, r"bytes 0 to 48, .* has 24 bytes \(4x3xf16\)"),
        (np.ones((3, 3), np.float32), OutOfRangeError, r"has 36 bytes \(3x3xf32\)"),
    ],
)  # fmt: skip
def test_arrays_that_disagree(weight: np.ndarray[Any, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        run({"model": {"w": weight}})


@pytest.mark.parametrize(
    "weight", [WEIGHT, WEIGHT.reshape(12), WEIGHT.view(np.uint8), WEIGHT.astype(">f4"), WEIGHT.tobytes()]
)
def test_what_agrees(weight: Any) -> None:
    """Another shape of the same elements, and bytes without a type."""
    assert np.array_equal(run({"model": {"w": weight}}), INPUT @ WEIGHT + BIAS)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (b"a_dispatch_0\0a_dispatch_0_vmvx_bytecode_fb\0a_dispatch_0_elementwise_4_f32\0", True),
        (b"a_dispatch_0_slow_memcpy\0", False),
        (b"a_dispatch_0_elementwise_4_f32\0a_dispatch_1\0a_dispatch_1_embedded_elf_x86_64\0", False),
    ],
)
def test_kernels_whose_names_say_nothing(names: bytes, known: bool) -> None:
    """They may be what takes the parameter."""
    other = Assembler("other")
    other.rodata(names)
    model = {"w": WEIGHT, "b": BIAS.view(np.int32)}
    parameters = {"model": model, "scale": np.ones(3, np.float32)}
    with Session("local-sync", parameters=[parameters]) as session:
        session.load(other.build())
        if known:
            with pytest.raises(InvalidArgumentError, match=r"'model::b' has 12 bytes \(3xi32\), and of that"):
                session.load(PROGRAM)
        else:
            assert np.array_equal(session.load(PROGRAM).linear(INPUT), INPUT @ WEIGHT + BIAS)


LOOKUP = PROGRAM.parent / "lookup.vmfb"
TABLE = np.arange(100, dtype=np.int32)
ONES = np.ones(4, np.float32)


def test_tables_that_kernels_look_numbers_up_in() -> None:
    """Their type is in no name. An operand's is."""
    with Session("local-sync", parameters=[{"model": {"table": TABLE, "scale": ONES}}]) as session:
        assert np.array_equal(session.load(LOOKUP).scaled(ONES), [0, 1, 2, 3])
    model = {"table": TABLE, "scale": ONES.astype(np.int32)}
    with (
        Session("local-sync", parameters=[{"model": model}]) as session,
        pytest.raises(InvalidArgumentError, match=r"'model::scale' .*f32 elements only"),
    ):
        session.load(LOOKUP)


TYPED = PROGRAM.parent / "typed.vmfb"
TYPES: dict[str, np.ndarray[Any, Any]] = {
    "w": np.arange(4, dtype=np.float32),
    "i": np.arange(4, dtype=np.int32),
    "n": np.arange(4, dtype=np.int32),
    "b": np.arange(4, dtype=np.int32),
    "q": np.arange(16, dtype=np.uint8),
}


def load_typed(name: str, value: np.ndarray[Any, Any], program: Path = TYPED) -> None:
    with Session("local-sync", parameters=[{"model": TYPES | {name: value}}]) as session:
        session.load(program)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("w", np.ones(4, np.int32), r"4xi32.*_elementwise_4_f32', which takes it.*astype\(numpy\.float32\)"),
        ("w", np.ones(4, np.uint32), r"4xui32.* computes with 4 elements of f32; convert it"),
        ("w", np.ones(2), r"2xf64.* computes with 4 elements of f32; pass 4 elements of f32, or"),
        ("w", np.ones(8, np.float16), r"8xf16.* computes with 4 elements of f32; pass 4 elements"),
        ("w", np.ones(8, np.int16), r"8xi16.* computes with 4 elements of f32; pass 4 elements"),
        ("w", np.ones(16, np.bool_), r"16xi1.* computes with 4 elements of f32; pass 4 elements"),
        ("i", np.ones(16, ml_dtypes.float8_e5m2), r"16xf8E5M2.* computes with 4 elements of i32"),
        ("i", np.ones(4, np.float32), r"4xf32.*_elementwise_4_i32', which takes it.*astype\(numpy\.int32\)"),
        ("i", np.ones(2, np.int64), r"2xi64.* computes with 4 elements of i32; pass 4 elements"),
        ("w", np.ones(4, np.int64), r"takes 16 bytes.*such as f32; .* by array\.astype\(numpy\.float32\)"),
        ("w", np.ones(4, np.complex64), r"takes 16 bytes.*such as f32; .*numpy\.float32\)(?!.*numpy\.int32)"),
        ("i", np.ones(4), r"takes 16 bytes.*such as i32; .* by array\.astype\(numpy\.int32\)"),
        (
            "n",
            np.ones(4),
            r"takes 16 bytes.*such as f32 or i32; .*float32\) or array\.astype\(numpy\.int32\)",
        ),
    ],
)
def test_each_parameter_has_the_types_of_its_own_kernels(
    name: str, value: np.ndarray[Any, Any], says: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        load_typed(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("w", np.ones((2, 2), np.float32)),
        ("w", np.ones(16, np.uint8)),
        ("i", np.ones(4, np.uint32)),
        ("b", np.ones(4, np.float32)),  # its kernel takes both
        ("q", np.ones(4, np.int32)),  # which may hold the program's smaller integers
        ("q", np.ones(16, np.int8)),
    ],
)
def test_what_the_kernels_of_a_parameter_may_mean(name: str, value: np.ndarray[Any, Any]) -> None:
    load_typed(name, value)


HALVES = PROGRAM.parent / "halves.vmfb"


def load_halves(w: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    with Session("local-sync", parameters=[{"model": {"w": w, "b": b}}]) as session:
        session.load(HALVES)


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, ml_dtypes.bfloat16])
def test_integers_hold_the_bits_of_no_type_that_numpy_has(dtype: Any) -> None:
    """Those of bfloat16 they may."""
    half, integers = np.ones(6, np.float16), np.ones(6, np.uint16)
    with pytest.raises(InvalidArgumentError, match=r"'model::w' has .*_elementwise_6_f16', which takes it"):
        load_halves(np.ones(6, dtype), integers)
    load_halves(half, integers)
    load_halves(half.view(np.uint8), np.ones(6, ml_dtypes.bfloat16))


SUMMED = PROGRAM.parent / "summed.vmfb"
"""A program that computes with f32 and i32."""
SUMS: dict[str, np.ndarray[Any, Any]] = {
    "w": np.ones((32, 16), np.float32),
    "k": np.ones((3, 3, 4, 8), np.float32),
    "tab": np.ones((100, 16), np.float32),
}


def load_summed(name: str, value: np.ndarray[Any, Any]) -> None:
    with Session("local-sync", parameters=[{"m": SUMS | {name: value}}]) as session:
        session.load(SUMMED)


@pytest.mark.parametrize(("name", "kernel"), [("w", "matmul_8x16x32_f32"), ("k", "conv_8x8x8x3x3x4_f32")])
def test_operands_of_sums(name: str, kernel: str) -> None:
    for kind in (np.int32, np.uint32):
        says = rf"_{kernel}', which takes it, computes with \d+ elements of f32; convert it.*numpy\.float32"
        with pytest.raises(InvalidArgumentError, match=says):
            load_summed(name, SUMS[name].astype(kind))
    with pytest.raises(InvalidArgumentError, match=r"such as f32; convert it"):
        load_summed(name, SUMS[name].astype(np.float64))
    load_summed(name, SUMS[name])
    load_summed(name, SUMS[name].view(np.uint8))


@pytest.mark.parametrize(
    "value",
    [
        SUMS["tab"],
        SUMS["tab"].astype(np.int32),  # the kernel's name does not say what it looks up
    ],
)
def test_tables_may_have_any_type_of_the_program(value: np.ndarray[Any, Any]) -> None:
    load_summed("tab", value)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("f_dispatch_0_matmul_8x16x32_f32", (32, 16), "f32"),
        ("f_dispatch_0_matmul_Dx16x32_f32", (16, 1, 32), "f32"),
        ("f_dispatch_12_batch_matmul_4x8x16x32_f16xf16xf32", (4, 8, 32), "f16"),
        ("f_dispatch_0_matmul_transpose_b_8x16x32_bf16xbf16xf32", (16, 32), "bf16"),
        ("_encoding_3_encode_16x32xbf16_to_16x32xbf16", (512,), "bf16"),
        ("f_dispatch_0_conv_2d_nhwc_hwcf_1x8x8x8x3x3x4_f32", (3, 3, 4, 8), "f32"),
        ("f_dispatch_0_matmul_8x16x32_f32", (16,), None),  # a fused bias
        ("f_dispatch_0_matmul_8x16x32_f32", (8, 16), None),
        ("f_dispatch_0_matmul_16x16x16_f32", (16,), None),
        ("f_dispatch_0_matmul_16x16x16_f32", (16, 16), None),  # which may be added to the result
        ("f_dispatch_0_matmul_8x32x32_f32", (32,), None),
        ("f_dispatch_0_matmul_8x32x32_f32", (32, 32), "f32"),
        ("f_dispatch_0_matmul_8x64x32_f32", (4, 64), None),  # eight numbers in each element
        ("f_dispatch_0_matmul_8x16x32_i8xf32xf32", (32, 16), None),
        ("f_dispatch_0_matmul_like_8x16x32_f32", (32, 16), None),
        ("f_dispatch_0_elementwise_broadcast_8x16_i64xf32", (8, 16), None),
        ("f_dispatch_0_matmul_8x16x32_f32_something", (32, 16), None),
        ("f_dispatch_0_elementwise_DxD_f32", (32, 16), None),
    ],
)
def test_what_names_say_of_operands(name: str, shape: tuple[int, ...], expected: str | None) -> None:
    operation = named(name)
    types = () if operation is None else [*operation.types, BY_NAME["i32"]]
    found = {
        row.name
        for kind in types
        for row in operation.types_of(shape, math.prod(shape) * kind.bits // 8)  # type: ignore[union-attr]
    }
    assert found == (set() if expected is None else {expected})


def test_uses_that_cannot_be_followed() -> None:
    """A variable is bound by the call that runs the commands, not by a dispatch."""
    from jitree.modules.io_parameters.requests import find_uses
    from jitree.vmfb.decode import BytecodeModule

    uses = find_uses([BytecodeModule.load(PROGRAM)])
    assert uses.kernels == {
        ("model", "w"): {"linear_dispatch_0_matmul_2x3x4_f32"},
        ("", "scale"): {"linear_dispatch_0_matmul_2x3x4_f32"},
    }
    unknown = Assembler("unknown").import_function("io_parameters.load", "0rIrrrIiirrr_r")
    assert find_uses([BytecodeModule.load(unknown.build())]).kernels == {}


def test_nothing_is_known_of_what_the_host_reads() -> None:
    host = Assembler("host").import_function("hal.buffer.load", "0rIi_i")
    model = {"w": WEIGHT, "b": BIAS.view(np.int32)}
    parameters = {"model": model, "scale": np.ones(3, np.float32)}
    with Session("local-sync", parameters=[parameters]) as session:
        session.load(host.build())
        assert np.array_equal(session.load(PROGRAM).linear(INPUT), INPUT @ WEIGHT + BIAS)


def archive(path: Path, array: np.ndarray[Any, Any]) -> Path:
    """``w`` in the format of the name's extension."""
    shape = list(array.shape)
    if path.suffix == ".npz":
        np.savez(path, w=array)
    elif path.suffix == ".irpa":
        write_irpa(path, {"w": array})
    elif path.suffix == ".safetensors":
        name = {"float64": "F64", "float32": "F32", "int32": "I32"}[array.dtype.name]
        header = {"w": {"dtype": name, "shape": shape, "data_offsets": [0, array.nbytes]}}
        path.write_bytes(safetensors(header, array.tobytes()))
    else:
        kind = {"float64": 28, "float32": 0, "int32": 26}[array.dtype.name]
        path.write_bytes(gguf([], [gguf_tensor("w", tuple(reversed(shape)), kind, 0)], array.tobytes()))
    return path


@pytest.mark.parametrize(
    ("dtype", "says"),
    [("V2", None), ("V4", None), ("M8[s]", "datetime64"), ([("a", "i4"), ("b", "f4")], "void")],
)
def test_arrays_of_no_element_type(tmp_path: Path, dtype: Any, says: str | None) -> None:
    """numpy writes bfloat16 as V2; nothing is known of such bytes. Elements that no program has are none of a
    kernel's, however many bytes they have."""
    path = tmp_path / "a.npz"
    arrays: dict[str, Any] = TYPES | {"w": np.zeros(16 // np.dtype(dtype).itemsize, dtype)}
    np.savez(path, **arrays)
    with Session("local-sync", parameters=f"model={path}") as session:
        if says is None:
            session.load(TYPED)
            return
        with pytest.raises(InvalidArgumentError, match=rf"{says}.*computes with 4 elements"):
            session.load(TYPED)


@pytest.mark.parametrize("suffix", ["npz", "irpa", "safetensors", "gguf"])
def test_archives(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    assert np.array_equal(run(f"model={archive(path, WEIGHT)}"), INPUT @ WEIGHT + BIAS)
    if suffix != "irpa":  # which does not say what the elements are
        with pytest.raises(
            InvalidArgumentError, match=r"'model::w' has 96 bytes.* the program takes 48 bytes"
        ):
            run(f"model={archive(path, WEIGHT.astype(np.float64))}")
        with pytest.raises(InvalidArgumentError, match=OTHER.replace("i32", "s?i32")):
            run(f"model={archive(path, WEIGHT.astype(np.int32))}")


@pytest.mark.parametrize("sandbox", [False, "process"])
def test_bytes_without_a_type_may_be_more_than_the_program_takes(tmp_path: Path, sandbox: bool | str) -> None:
    """It takes the first ones. Whoever says what the elements are, in a sandbox as well, is held to it."""
    path = write_irpa(tmp_path / "a.irpa", {"w": np.concatenate([WEIGHT, WEIGHT + 1])})
    assert np.array_equal(run(f"model={path}", sandbox=sandbox), INPUT @ WEIGHT + BIAS)
    says = {"type": "Tensor", "dtype": "float32", "shape": [8, 3]}
    entry = array_entry("w", np.concatenate([WEIGHT, WEIGHT]))
    write(path, plan([replace(entry, metadata=b"TENSORv0:" + json.dumps(says).encode())]))
    np.savez(tmp_path / "v.npz", w=np.zeros(24, "V4"))
    for source in (f"model={path}", {"model": {"w": np.zeros(24, "V4")}}, f"model={tmp_path / 'v.npz'}"):
        with pytest.raises(
            InvalidArgumentError, match=r"'model::w' has 96 bytes \(.*\*?32\).* takes 48 bytes"
        ):
            run(source, sandbox=sandbox)


def test_splats(tmp_path: Path) -> None:
    path = tmp_path / "a.irpa"
    write(path, plan([splat_entry("w", np.float32(2).tobytes(), 44)]))
    with pytest.raises(OutOfRangeError, match=r"'model::w'.* has 44 bytes"):
        run(f"model={path}")
    for length in (48, 96):
        write(path, plan([splat_entry("w", np.float32(2).tobytes(), length)]))
        assert np.array_equal(run(f"model={path}"), INPUT @ np.full((4, 3), 2, np.float32) + BIAS)


def test_a_variable_that_starts_with_a_parameter() -> None:
    model = {"w": WEIGHT, "b": BIAS.astype(np.float64)}
    with (
        pytest.raises(InvalidArgumentError, match=r"'model::b' has 24 bytes \(3xf64\).* takes 12 bytes"),
        Session("local-sync", parameters=[{"model": model, "scale": BIAS}]) as session,
    ):
        session.load(PROGRAM)


def test_bits_of_floats_that_numpy_does_not_have() -> None:
    """16-bit integers may be those of bf16: nothing is said of them, only of what numpy can state."""
    from jitree.modules.io_parameters.agreement import ReadingProgram, require_agreement
    from jitree.modules.io_parameters.requests import ParameterRequest
    from jitree.params.provider import array_entry
    from jitree.types import BY_NAME

    class Bf16(ReadingProgram):
        def __init__(self) -> None:
            pass

        types = frozenset({BY_NAME["bf16"], BY_NAME["i64"]})

        def may_compute_with(self, count: int) -> bool:
            return count == 4

        def may_be_taken_for_others(self, element: object, shape: object, length: int) -> bool:
            return False

        def may_be_shown_as_others(self, element: object, length: int) -> bool:
            return False

    def read(array: np.ndarray[Any, Any]) -> None:
        entry = array_entry("w", array)
        require_agreement(Bf16(), "m", [ParameterRequest(entry, 0, 0, entry.length)])

    for dtype in (np.uint16, np.int16, ml_dtypes.bfloat16, np.int8, np.float32, np.uint64, np.complex64):
        read(np.zeros(4, dtype))
    for dtype in (np.float16, np.float64):
        with pytest.raises(InvalidArgumentError, match="'m::w' has"):
            read(np.zeros(4, dtype))
