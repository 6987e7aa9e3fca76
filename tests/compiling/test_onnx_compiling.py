"""ONNX files as modules: with the compiler, its importer and onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitree
from tests.api.onnx_files import chain
from tests.tools.command import jitree as command

pytest.importorskip("iree.compiler.extras.onnx_importer", reason="needs pip install 'jitree[compile]'")
pytest.importorskip("onnxruntime", reason="onnxruntime, which results are compared with, is not installed")

WEIGHTS = [np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) for _ in range(2)]
X = np.ones((3, 4), np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "chain.onnx"
    path.write_bytes(chain(WEIGHTS, 3))
    return path


def test_one_command_makes_a_module(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "chain.vmfb"
    outcome = command("compile", model, "-o", output)
    assert outcome.code == 0, outcome.stderr
    declaration = "sync func @main(%x: tensor<3x4xf32>) -> (%soft_1: tensor<3x4xf32>)"
    assert f"{output}: vmvx: {declaration}\n{output}: largest error against onnxruntime " in outcome.stdout
    module = jitree.load(output, device="local-sync")
    assert declaration in repr(module)
    assert np.asarray(module.main(x=X)).sum(axis=1) == pytest.approx(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.onnx", "chain.vmfb"]
