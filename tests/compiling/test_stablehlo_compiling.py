"""Programs of JAX as modules: with the compiler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.errors import UnimplementedError

pytest.importorskip("iree.compiler", reason="the compiler is not installed: pip install 'jitree[compile]'")

FOLDER = Path(__file__).parent
PYTREE = FOLDER / "pytree.mlirbc"
"""What ``jax.export`` makes of ``def f(p, x): return {"y": p["w"] * x, "sum": jnp.sum(x)}``."""
OPEN_SIZE = FOLDER / "open_size.mlirbc"
"""Of ``lambda x, w: x @ w`` with an open number of rows, which it checks first."""
TRUTH = FOLDER / "truth.mlirbc"
"""Of ``jnp.logical_not``."""
TEXT = """
func.func public @f(%a: tensor<2xf32> loc("a")) -> (tensor<2xf32> {jax.result_info = "result"}) {
  return %a : tensor<2xf32>
}
func.func public @g(%a: tensor<2xf32> loc("b[0].c")) -> tensor<2xf32> { return %a : tensor<2xf32> }
"""
WEIGHTS, X = np.arange(3, dtype=np.float32), np.ones((2, 3), np.float32)


def declarations(data: bytes | str) -> list[str]:
    return [signature.declaration for signature in jitree.inspect(data).functions.values()]


def test_arguments_and_results_of_jax_keep_their_names() -> None:
    data = jitree.compile(PYTREE)
    assert declarations(data) == [
        "sync func @main(%p_w: tensor<3xf32>, %x: tensor<2x3xf32>) -> "
        "(%sum: tensor<f32>, %y: tensor<2x3xf32>)"
    ]
    with jitree.Session("local-sync") as session:
        total, product = session.load(data).main(p_w=WEIGHTS, x=X)
        assert np.asarray(total) == 6
        np.testing.assert_array_equal(product, WEIGHTS * X)


def test_names_are_found_behind_checks_of_sizes() -> None:
    data = jitree.compile(OPEN_SIZE)
    assert declarations(data) == [
        "sync func @main(%x: tensor<?x3xf32>, %w: tensor<3x4xf32>) -> (%output0: tensor<?x4xf32>)"
    ]
    with jitree.Session("local-sync") as session:
        product = session.load(data).main(X, np.ones((3, 4), np.float32))
        np.testing.assert_array_equal(product, np.full((2, 4), 3, np.float32))


def test_truth_values_are_those_of_the_runtime() -> None:
    """A portable artefact has a type of its own for them."""
    [declaration] = declarations(jitree.compile(TRUTH))
    assert declaration == "sync func @main(%x: tensor<2xi1>) -> (%output0: tensor<2xi1>)"


def test_a_program_without_a_name_is_called_like_its_file(tmp_path: Path) -> None:
    named = tmp_path / "other.mlir"
    named.write_text(f"module @own {{ {TEXT} }}")
    assert jitree.inspect(jitree.compile(TEXT.encode(), tmp_path / "plain.vmfb")).name == "plain"
    assert jitree.inspect(jitree.compile(named)).name == "own"
    assert jitree.inspect(jitree.compile(named, name="chosen")).name == "chosen"


def test_places_of_a_text_without_a_name_are_those_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(
        "func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
        "  %y = math.acos %x : tensor<2xf32>\n  return %y : tensor<2xf32>\n}\n"
    )
    with pytest.raises(UnimplementedError, match=rf"math\.acos at {path}:2:8: the target vmvx has no acos"):
        jitree.compile(path, tmp_path / "m.vmfb")


def test_text_keeps_names_too() -> None:
    assert declarations(jitree.compile(TEXT.encode())) == [
        "sync func @f(%a: tensor<2xf32>) -> (%output0: tensor<2xf32>)",
        "sync func @g(%b_0_c: tensor<2xf32>) -> (%output0: tensor<2xf32>)",
    ]


def test_f64_stays_f64() -> None:
    text = "func.func @f(%a: tensor<2xf64>) -> tensor<2xf64> { return %a : tensor<2xf64> }"
    assert declarations(jitree.compile(text.encode())) == [
        "sync func @f(%input0: tensor<2xf64>) -> (%output0: tensor<2xf64>)"
    ]


def test_what_the_compiler_refuses_has_its_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {\n  return %b : tensor<2xf32>\n}\n")
    with pytest.raises(NotImplementedError) as caught:
        jitree.compile(path, tmp_path / "bad.vmfb")
    expected = f"the compiler refuses '{path}': at {path}:2:10: use of undeclared SSA value name"
    assert expected in str(caught.value)
