"""Integers of which several share a byte, as sessions show them: one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import LoneDispatch, Session
from jitree.base.elements import pack_integers
from jitree.observe import tensors
from jitree.observe.export_names import TensorKind
from jitree.observe.tensors import NAMED, ObservedTensor
from jitree.types import BY_NAME
from tests.api.programs import PROGRAMS

NIBBLES = PROGRAMS / "nibbles.vmfb"
RANDOM = np.random.default_rng(0)
LEFT = RANDOM.integers(-7, 8, (4, 7)).astype(np.int8)
RIGHT = RANDOM.integers(-7, 8, (20, 7)).astype(np.int8)


def product(left: npt.NDArray[np.int8], right: npt.NDArray[np.int8]) -> npt.NDArray[np.int32]:
    narrow = (right << 4) >> 4
    return left.astype(np.int32) @ narrow.astype(np.int32).T


def test_taps_show_elements(tmp_path: Path) -> None:
    with Session("local-sync") as session:
        program = session.load(NIBBLES).product
        with session.tap(keep="tensors") as taps:
            program(LEFT, RIGHT)
        packed = taps[0].outputs[0]
        assert packed.type == "20x7xi4" and packed.array is not None
        assert packed.array.dtype == np.int8 and (packed.array == RIGHT).all()
        taps.save(tmp_path / "taps.npz")
        assert (np.load(tmp_path / "taps.npz")[f"{taps[0].name}.0.output0"] == RIGHT).all()
        with session.tap() as taps:
            program(LEFT, RIGHT)
        assert taps[0].stats is not None and (taps[0].stats.min, taps[0].stats.max) == (-7, 7)
        alone = LoneDispatch.of_call(program, [LEFT, RIGHT], 0)
    alone.save(tmp_path)
    loaded = LoneDispatch.load(tmp_path)
    assert (loaded.run()[0] == RIGHT).all() and (loaded.expected()[0] == RIGHT).all()


def test_what_a_compiler_made_wrong_of_them_is_found(tmp_path: Path) -> None:
    """The program departs from numpy, not where it packs them but where it reads them."""
    d = jitree.diff((NIBBLES, "local-sync"), product, "product", [LEFT, RIGHT])
    assert d.first is not None and d.first.ordinal == 1
    assert d.first.dispatch == "product_dispatch_1_matmul_like_4x20x7_i8xi4xi32"
    assert "made after dispatch 0 and value 0: by product_dispatch_1" in d.first.reason
    assert not d.first.reason.endswith("in b")
    d.save(tmp_path)
    assert (LoneDispatch.load(tmp_path / "a").expected()[0] == product(LEFT, RIGHT)).all()


@pytest.mark.parametrize("name", ["i4", "ui4", "i2", "si4"])
def test_elements_come_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row, shape = BY_NAME[name], (7, 5)
    low = 0 if name.startswith("u") else -(1 << row.bits - 1)
    values = RANDOM.integers(low, low + (1 << row.bits), shape)
    data = pack_integers(values.reshape(-1), row)
    monkeypatch.setattr(tensors, "_PIECE", 4)
    tensor = ObservedTensor(0, (data.ctypes.data, data.nbytes), TensorKind(row, shape), NAMED, "")
    assert tensor.array is not None and (tensor.array == values).all()
    assert (np.concatenate(list(tensor.pieces())) == values.reshape(-1)).all()
    tensor.keep()
    tensor.end()
    assert (tensor.array == values).all() and tensor.array_bytes == values.size
