"""The digit classifier: consistent files, right answers, clear errors, a quick first result."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import jitree
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits"


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, DIGITS / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


classify = load("classify")


@pytest.mark.parametrize("digit", range(10))
def test_every_image_is_classified_as_what_it_is(digit: int) -> None:
    module = jitree.load(DIGITS / "digits.llvm-cpu.vmfb", device="local-sync")
    probabilities = np.asarray(module.classify(classify.read_pgm(DIGITS / "images" / f"{digit}.pgm")))
    assert probabilities.argmax() == digit
    np.testing.assert_allclose(probabilities.sum(), 1, atol=1e-5)


def test_the_result_is_that_of_the_network_in_numpy() -> None:
    network = load("network")
    parameters = weights_in_mlir()
    assert sum(value.size for value in parameters.values()) == 1898
    module = jitree.load(DIGITS / "digits.llvm-cpu.vmfb", device="local-sync")
    for digit in range(10):
        image = classify.read_pgm(DIGITS / "images" / f"{digit}.pgm")
        expected = network.probabilities(parameters, image[None])[0]
        np.testing.assert_allclose(np.asarray(module.classify(image)), expected, rtol=1e-4, atol=1e-6)


def weights_in_mlir() -> dict[str, np.ndarray]:
    text = (DIGITS / "digits.mlir").read_text()
    rows = re.findall(r'%(\w+) = arith.constant dense<"0x(\w+)"> : tensor<([\dx]+)xf32>', text)
    return {
        name: np.frombuffer(bytes.fromhex(data), "<f4").reshape([int(side) for side in shape.split("x")])
        for name, data, shape in rows
    }


@pytest.mark.parametrize("target", ["llvm-cpu", "vmvx"])
def test_both_modules_declare_the_same_function(target: str) -> None:
    module = read_module(Archive.open(DIGITS / f"digits.{target}.vmfb"))
    export = module.export("classify")
    assert export is not None
    declaration = module.functions[export.ordinal].attrs["iree.abi.declaration"]
    assert declaration == "sync func @classify(%input0: tensor<8x8xf32>) -> (%output0: tensor<10xf32>)"


def test_gradients_agree_with_differences() -> None:
    network = load("network")
    rng = np.random.default_rng(3)
    parameters = {name: value.astype("f8") for name, value in network.initial_parameters(rng).items()}
    images, labels = rng.random((4, 8, 8)), np.array([1, 7, 0, 7])

    def loss() -> float:
        chosen = network.probabilities(parameters, images)[np.arange(4), labels]
        return float(-np.log(chosen).mean())

    gradients = network.gradients(parameters, images, labels)
    for name, value in parameters.items():
        for index in [tuple(rng.integers(0, side) for side in value.shape) for _ in range(5)]:
            kept = value[index]
            value[index] = kept + 1e-5
            above = loss()
            value[index] = kept - 1e-5
            below = loss()
            value[index] = kept
            assert gradients[name][index] == pytest.approx((above - below) / 2e-5, abs=1e-6), (name, index)


def test_binary_images_with_comments(tmp_path: Path) -> None:
    expected = classify.read_pgm(DIGITS / "images" / "3.pgm")
    path = tmp_path / "3.pgm"
    pixels = np.rint(expected * 16).astype(np.uint8)
    path.write_bytes(b"P5\n# drawn by hand\n8 8\n16\n" + pixels.tobytes())
    np.testing.assert_array_equal(classify.read_pgm(path), expected)


@pytest.mark.parametrize(
    "content", [b"", b"P2 8 8", b"P2 9 8 16\n", b"P2 8 8 16\n1 2", b"P2 8 8 16\n" + b"17 " * 64, b"\x89PNG"]
)
def test_wrong_images_end_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "wrong.pgm"
    path.write_bytes(content)
    result = run_classify(path)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and str(path) in result.stderr


def test_missing_module_ends_in_one_line() -> None:
    result = run_classify(DIGITS / "images" / "3.pgm", "--module", "/nowhere.vmfb")
    assert result.returncode == 1
    assert "NOT_FOUND" in result.stderr and "Traceback" not in result.stderr


def test_the_first_result_comes_quickly_with_cold_caches(tmp_path: Path) -> None:
    """Three seconds are promised; this machine is shared, so the best of three counts."""
    times = []
    for attempt in range(3):
        start = time.perf_counter()
        environment = {"JITREE_CACHE_DIR": str(tmp_path / str(attempt)), "PYTHONDONTWRITEBYTECODE": "1"}
        result = run_classify(DIGITS / "images" / "5.pgm", environment=environment)
        times.append(time.perf_counter() - start)
        assert "This is a 5" in result.stdout, result.stderr
    assert min(times) < 3


def run_classify(
    image: Path, *options: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DIGITS / "classify.py"), str(image), *options],
        env={**os.environ, "PYTHONPATH": str(DIGITS.parents[1]), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_function_is_an_operator_of_torch() -> None:
    pytest.importorskip("torch", reason="the example needs torch")
    script = DIGITS.parent / "torch_operator" / "digit_operator.py"
    environment = {**os.environ, "PYTHONPATH": str(DIGITS.parents[1])}
    made = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert made.stdout == "7\n"
