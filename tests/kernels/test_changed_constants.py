"""Kernels of users in place of dispatches that store to a constant: other kernels read what is there then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import jitree
from jitree.kernels import Kernel, replacement
from jitree.vmfb.archive import _MAPPED_SIZE
from tests.params.archives import write_irpa

PROGRAM = Path(__file__).parent / "changed_constant.vmfb"
LINEAR = Path(__file__).parents[1] / "data" / "programs" / "parameters.vmfb"
CONSTANT = -(np.arange(16 * 64) % 37).astype(np.float32).reshape(16, 64)
SORTED = np.sort(CONSTANT, axis=1)
X = np.arange(64, dtype=np.float32).reshape(1, 64)


def sort(constant: Any) -> None:
    for row in range(constant.shape[0]):
        constant[row, :] = np.sort(constant[row, :])


def mapped(program: Path, folder: Path) -> Path:
    """A file so long that its pages become the process's own as they are written."""
    path = folder / program.name
    path.write_bytes(program.read_bytes() + bytes(_MAPPED_SIZE))
    return path


def copied(session: jitree.Session) -> int:
    return sum(executable.copied for executable in session.device.executables)


@pytest.mark.parametrize("kernel", [None, sort, numba.njit(sort)], ids=["own", "python", "numba"])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_products_read_no_copy_of_what_was_there(tmp_path: Path, uri: str, kernel: Any) -> None:
    with jitree.Session(uri, tier="native") as session:
        module = session.load(mapped(PROGRAM, tmp_path))
        for _ in range(3):
            assert np.array_equal(np.asarray(module.product(X)), X @ CONSTANT.T)
        assert copied(session) == CONSTANT.nbytes, "it is kept in another order"
        if kernel is not None:
            session.replace("*sort*", Kernel(kernel, ["16x64xf32"]))
        module.change()
        for _ in range(3):
            assert np.array_equal(np.asarray(module.product(X)), X @ SORTED.T)


def test_a_program_that_is_loaded_later(tmp_path: Path) -> None:
    """What was replaced before it was there makes no copies either."""
    with jitree.Session("local-sync", tier="native") as session:
        path = mapped(PROGRAM, tmp_path)
        first, kernel = session.load(path), Kernel(sort, ["16x64xf32"])
        session.replace("*sort*", kernel)
        (second,) = session.link(path)
        for module in (first, second):
            for _ in range(3):
                assert np.array_equal(np.asarray(module.product(X)), X @ CONSTANT.T)
            module.change()
            assert np.array_equal(np.asarray(module.product(X)), X @ SORTED.T)
        assert not copied(session)


def test_programs_that_change_no_constant_keep_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "may_store_to_constants", lambda modules, loaders: False)
    with jitree.Session("local-sync", tier="native") as session:
        module = session.load(mapped(PROGRAM, tmp_path))
        session.replace("*sort*", Kernel(sort, ["16x64xf32"]))
        for _ in range(3):
            module.product(X)
        assert copied(session) == CONSTANT.nbytes


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_parameters_of_a_file_are_shown_read_only(tmp_path: Path, uri: str, verify: bool) -> None:
    """They lie in pages at which a store would end the process."""
    weights, bias, scale = np.ones((4, 3), np.float32), np.zeros(3, np.float32), np.ones(3, np.float32)
    model = write_irpa(tmp_path / "model.irpa", {"w": weights, "b": bias})
    parameters = {"model": model, "": write_irpa(tmp_path / "scale.irpa", {"scale": scale})}
    shown: list[bool] = []

    def product(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
        shown.append(w.flags.writeable)
        out[:] = (x @ w + b) * factor

    def storing(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
        w[:] = 0

    types = ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"]
    with jitree.Session(uri, parameters=parameters) as session:
        module = session.load(LINEAR)
        with session.replace("*matmul*", Kernel(product, types), verify=verify):
            assert np.asarray(module.linear(X[:, :8].reshape(2, 4))).tolist() == [[6.0] * 3, [22.0] * 3]
        with (
            session.replace("*matmul*", Kernel(storing, types), verify=verify),
            pytest.raises(ValueError, match="read-only"),
        ):
            module.linear(X[:, :8].reshape(2, 4))
    assert shown == [False]
