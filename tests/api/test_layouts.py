"""Tensors that another build keeps in another layout: found by values, unpacked, compared where they are
counterparts; and what made the results."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.compare import differences
from jitree.compare.differences import Difference
from jitree.compare.peers import CallablePeer
from jitree.compare.sides import extents_of
from jitree.observe.export_names import TensorKind
from jitree.observe.first_difference import UNKNOWN_ORDER, Comparison
from jitree.observe.layouts import MANY, MOST, MatrixLayout, find, nearness
from jitree.observe.lockstep import Arrival
from jitree.observe.observation import Makers
from jitree.observe.tensors import ObservedDispatch, ObservedTensor
from jitree.observe.tolerance import EXACT
from jitree.types import BY_NAME
from tests.api.programs import PROGRAMS

LAYERS = PROGRAMS / "layers.vmfb"
TILED, PACKED = PROGRAMS / "layers_tiled.vmfb", PROGRAMS / "layers_packed.vmfb"
MATMUL = "layers_dispatch_0_matmul_16x16x16_f32"
X = np.linspace(-2, 2, 256, dtype=np.float32).reshape(16, 16) ** 3
NEAR: Final[dict[str, Any]] = {"rtol": 1e-4, "atol": 1e-5}
ROW, COLUMN = 5, 7


def with_weight(layer: int, add: float) -> bytes:
    """The module with a weight of a layer changed, which changes one column of what the layer makes."""
    data = bytearray(LAYERS.read_bytes())
    text = (PROGRAMS / "layers.mlir").read_text().split('"0x')[layer + 1].split('"')[0]
    place = data.index(bytes.fromhex(text)) + 4 * (16 * ROW + COLUMN)
    value = np.frombuffer(data[place : place + 4], np.float32)[0] + np.float32(add)
    data[place : place + 4] = value.tobytes()
    return bytes(data)


@pytest.mark.parametrize("is_tiled_first", [False, True])
def test_a_tensor_in_tiles_is_unpacked(
    is_tiled_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides: list[tuple[Any, str]] = [(with_weight(1, 0.5), "local-sync"), (TILED, "local-sync")]
    one, other = sides[::-1] if is_tiled_first else sides
    d = jitree.diff(one, other, "layers", [X], **NEAR)
    assert d.first is not None and (d.first.dispatch, d.first.coordinate) == (MATMUL, (0, COLUMN))
    side = "ab"[not is_tiled_first]
    assert d.first.reason.startswith(f"unpacked: {side} has it in tiles of 8x1; ")
    activations, weights = d.first.inputs
    assert activations.is_known and activations.first is None, "those of the layer before agree"
    assert not weights.is_known, "constants lie in another order"
    row = next(row for row in d.rows if row.ordinals == d.first.ordinals)
    assert row.closeness.differing <= 16 and row.type == f"16x16xf32, unpacked: {side} has it in tiles of 8x1"
    d.save(tmp_path)
    runpy.run_path(str(tmp_path / "run.py"))
    printed = capsys.readouterr().out
    assert f"unpacked: {side} has it in tiles of 8x1) departs at (0, {COLUMN})" in printed, (
        "as in the program"
    )


def test_nothing_departs_in_other_layouts() -> None:
    for other in (TILED, PACKED):
        assert jitree.diff((LAYERS, "local-sync"), (other, "local-sync"), "layers", [X], **NEAR).equal


def test_what_a_compiler_made_wrong_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a part of the tensor departs, and the dispatches of the two builds have nothing else in common."""
    random = np.random.default_rng(1)
    inputs = [(random.standard_normal((16, 16)) / 2).astype(np.float32) for _ in range(3)]
    wrong, right = ((PROGRAMS / f"{name}.vmfb", "local-sync") for name in ("masked_wrong", "masked"))
    d = jitree.diff(wrong, right, "scores", inputs, **NEAR)
    assert d.first is not None and d.first.dispatch == "scores_dispatch_1_matmul_16x16x16_f32"
    assert d.first.other == "scores_dispatch_6_unpack_elementwise_16x16_f32"
    assert (d.first.ordinals, d.first.coordinate, d.first.values[1]) == ((4, 6), (0, 1), -1e9)
    d.save(tmp_path)
    runpy.run_path(str(tmp_path / "run.py"))
    assert "departs at (0, 1)" in capsys.readouterr().out


def test_a_result_that_departs_names_what_made_it() -> None:
    d = jitree.diff((with_weight(1, 0.5), "local-sync"), (PACKED, "local-sync"), "layers", [X], **NEAR)
    assert d.first is not None and d.first.operand == "result 0"
    assert d.first.dispatch.startswith("layers_dispatch_") and d.first.other.startswith("layers_dispatch_")
    assert "what both make before agrees, so it is made after dispatches 0 and " in d.first.reason


def test_of_results_that_depart_the_one_made_first_is_named() -> None:
    makers = Makers(), Makers()
    made = [step("dispatch", [], [(64, 4)], ordinal) for ordinal in (2, 0)]
    makers[0].results = [*made, None]
    found = Difference(
        (CallablePeer(print), CallablePeer(print)), (), EXACT, ([X, X, X], [X + 1, X + 2, X + 3])
    )
    differences._compare_results(found, makers)
    assert found.first is not None and (found.first.operand, found.first.ordinal) == ("result 1", 0)
    assert [row.operand for row in found.rows] == ["result 0", "result 1", "result 2"]


def test_where_results_lie() -> None:
    """On other devices that is another place than the one of the arrays that are compared."""
    with Session("local-sync") as session:
        result = session.load(LAYERS).layers(X)
        assert extents_of([result, X, None]) == [(result.buffer_view.buffer.address, 1024), None]
        d = jitree.diff(session["module.layers"], lambda x: x, inputs=[X])
    assert d.first is not None and d.first.ordinals == (2, None)
    assert d.first.dispatch.startswith("layers_dispatch_")


def step(
    kind: str, inputs: list[tuple[int, int]], outputs: list[tuple[int, int]], ordinal: int = 0
) -> ObservedDispatch:
    tensors = ([SimpleNamespace(extent=extent) for extent in extents] for extents in (inputs, outputs))
    reads, writes = tensors
    dispatch = SimpleNamespace(
        kind=kind, inputs=reads, outputs=writes, ordinal=ordinal, name="name", location="", call_site=""
    )
    return cast("ObservedDispatch", dispatch)


def test_copies_are_made_by_what_made_their_source() -> None:
    makers, dispatch = Makers(), step("dispatch", [(0, 8)], [(64, 16), (128, 8)])
    for each in (dispatch, step("copy", [(64, 8)], [(256, 8)]), step("write", [], [(128, 4)])):
        makers.looks_at(each)
    assert makers.of((256, 4)) is makers.of((72, 8)) is makers.of((132, 4)) is dispatch
    assert makers.of((128, 4)) is None is makers.of((0, 8))


# -- layouts ---------------------------------------------------------------------------------------------


def layouts() -> Iterator[MatrixLayout]:
    for tile in ((1, 1), (8, 8), (8, 1), (16, 4), (7, 16)):
        for is_transposed in (False, True):
            for has_columns in (False, True):
                if tile != (1, 1) or is_transposed:
                    yield MatrixLayout(tile, is_transposed, has_columns)


@pytest.mark.parametrize("shape", [(64, 64), (3, 37, 53), (128, 10)])
def test_packing_and_unpacking(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    plain = random.standard_normal(shape).astype(np.float32)
    numbers = np.arange(plain.size)
    for layout in layouts():
        packed = np.zeros(layout.size(shape), np.float32)
        packed[layout.places(numbers, shape)] = plain.reshape(-1)
        assert (layout.unpacked(packed, shape) == plain).all()
        rounded = packed * (1 + random.standard_normal(packed.size).astype(np.float32) * np.float32(1e-6))
        found = find(plain, rounded, shape)
        assert found is not None
        assert (found.places(numbers, shape) == layout.places(numbers, shape)).all(), (layout, found)
        assert nearness(plain, rounded[: plain.size]) < MANY
        column = layout.unpacked(np.array(packed), shape)
        column[..., 3] += 1
        assert nearness(plain, column) >= MANY, "one column departs"


def test_what_values_do_not_tell() -> None:
    random = np.random.default_rng(0)
    one, other = random.standard_normal((2, 64, 64))
    assert nearness(one, other) < MANY and find(one, other.reshape(-1), (64, 64)) is None
    assert find(one, np.ones(4096), (64, 64)) is None and find(one, other, (4096,)) is None
    assert nearness(np.ones(64), np.zeros(64)) == 1 and nearness(one[0, :8], other[0, :8]) == 1
    broken = one.copy()
    broken[::4] = np.nan
    assert nearness(one, broken) >= MANY
    assert str(MatrixLayout((1, 1), True, False)) == "transposed"
    assert str(MatrixLayout((8, 4), True, True)) == "in tiles of 8x4, tiles and elements by column"


def test_a_layout_is_found_where_most_elements_are_alike() -> None:
    """Functions that saturate have one value at most places."""
    random = np.random.default_rng(0)
    plain = np.tanh(random.standard_normal((64, 64)) + 4).astype(np.float32)
    layout = MatrixLayout((8, 1), False, True)
    packed = np.zeros(layout.size(plain.shape), np.float32)
    packed[layout.places(np.arange(plain.size), plain.shape)] = plain.reshape(-1) * np.float32(1 + 1e-6)
    assert MANY < nearness(plain, packed) < MOST
    comparison = Comparison(EXACT._replace(rtol=1e-4), is_one_program=False)
    _, closeness, order = comparison.counterparts((plain, packed, plain.shape))
    assert closeness.first is None and order.startswith("unpacked: b has it in tiles of 8x1")
    masked = np.where(np.arange(64) % 3 == 0, np.float32(-9), plain)
    _, closeness, order = comparison.counterparts((plain, masked, plain.shape))
    assert closeness.first is not None and closeness.first.coordinate == (0, 0) and order == ""


def tensor(array: np.ndarray[Any, Any]) -> SimpleNamespace:
    kind = TensorKind(BY_NAME["f32"], array.shape)
    return SimpleNamespace(array=array, kind=kind, type=str(kind), origin="", binding=0, extent=(0, 1))


@pytest.mark.parametrize("is_one_order", [False, True])
def test_a_departure_without_known_order_says_so(is_one_order: bool) -> None:
    random = np.random.default_rng(0)
    one, other = (random.standard_normal((64, 64)).astype(np.float32) for _ in "ab")
    if is_one_order:
        other = one.copy()
        other[3, 4] = 7
    arrivals = []
    for array in (one, other):
        read, made = tensor(array), tensor(array)
        dispatch = SimpleNamespace(
            name="name", label="label", what="dispatch", ordinal=0, inputs=[read], outputs=[made],
            bound=tuple, location="", call_site="",
        )  # fmt: skip
        read.extent = (64, 1)
        arrivals.append(Arrival(cast("ObservedDispatch", dispatch), (cast("ObservedTensor", made),)))
    comparison = Comparison(EXACT, is_one_program=False)
    assert comparison.meet(0, arrivals[0], arrivals[1])
    assert comparison.first is not None
    assert ("may be no counterparts" in comparison.first.reason) is not is_one_order
    assert comparison.rows[0].type.endswith(UNKNOWN_ORDER) is not is_one_order
    assert comparison.first.inputs[0].is_known is is_one_order
    assert is_one_order == (comparison.first.coordinate == (3, 4))
    unsure = Comparison(EXACT, is_one_program=False)
    unsure.rearranged = {0}
    assert unsure.meet(0, arrivals[0], arrivals[1]) and len(unsure.rows) == is_one_order
    assert (unsure.first is not None) is is_one_order, "what seems to be in another order is no departure"
