"""Parameters that no kernel binds have the element types that callers of the program get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Session
from jitree.errors import InvalidArgumentError

SHOWN = Path(__file__).parent.parent / "data" / "programs" / "shown.vmfb"
Tensor = np.ndarray[Any, Any]
MODEL: dict[str, Tensor] = {
    "o": np.arange(5),
    "h": np.arange(4, dtype=np.float16),
    "i": np.arange(4, dtype=np.int16),
    "d": np.arange(4, dtype=np.float64),
    "c": np.arange(9, dtype=np.int16),
    "l": np.arange(9, dtype=np.float32),
    "m": np.arange(6, dtype=np.int16),
    "a": np.arange(3, dtype=np.int16),
}


@pytest.mark.parametrize(
    ("name", "dtype", "element"),
    [
        ("o", np.float64, "i64"),  # a view of the parameter itself
        ("h", np.int16, "f16"),  # copies
        ("h", np.uint16, "f16"),
        ("h", ml_dtypes.bfloat16, "f16"),
        ("i", np.float16, "i16"),
        ("d", np.int64, "f64"),
        ("d", np.uint64, "f64"),
        ("c", np.float16, "i16"),  # beside a kernel of other sizes
        ("l", np.int32, "f32"),
    ],
)
def test_other_elements_than_callers_get(name: str, dtype: Any, element: str) -> None:
    other = MODEL | {name: MODEL[name].astype(dtype)}
    says = rf"'model::{name}' has .* gives it to its callers as elements of {element}; .*\.astype\(numpy\."
    with (
        Session("local-sync", parameters={"model": other}) as session,
        pytest.raises(InvalidArgumentError, match=says),
    ):
        session.load(SHOWN)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("o", MODEL["o"].astype(np.uint64)),
        ("i", MODEL["i"].astype(np.uint16)),
        ("i", MODEL["i"].reshape(2, 2)),
        ("d", MODEL["d"].view(np.uint8)),
        ("h", MODEL["h"].view(np.uint8)),
        ("m", MODEL["m"].astype(np.float16)),  # a kernel may compute with what it is copied to
        ("a", MODEL["a"].astype(np.float16)),  # a kernel does
    ],
)
def test_what_passes(name: str, value: Tensor) -> None:
    x, y = np.ones(8, np.float32), np.ones(3, np.int16)
    with Session("local-sync", parameters={"model": MODEL | {name: value}}) as session:
        program = session.load(SHOWN)
        found = [program.one(), *program.whole(), *program.beside(x)[:2], program.joined(y)[1]]
    bits = MODEL | {name: value}
    for key, result in zip("ohidclm", found, strict=True):
        assert np.asarray(result).tobytes() == bits[key].tobytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("o", np.arange(12)),
        ("o", np.arange(10).reshape(2, 5)),
        ("o", np.arange(12, dtype=np.uint64)),
        ("h", np.arange(7, dtype=np.float16)),
    ],
)
def test_callers_get_the_first_of_more_elements(name: str, value: Tensor) -> None:
    """As in the reference, of just the elements that they are said to get."""
    with Session("local-sync", parameters={"model": MODEL | {name: value}}) as session:
        program = session.load(SHOWN)
        found = dict(zip("ohi", [program.one(), *program.whole()], strict=False))
    size = MODEL[name].size
    assert np.asarray(found[name]).tobytes() == value.ravel()[:size].tobytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("o", np.arange(12, dtype=np.float64)),
        ("o", np.arange(12, dtype=np.int32)),
        ("o", np.arange(12, dtype=np.complex64)),
        ("h", np.arange(7, dtype=np.int16)),
        ("a", np.arange(12, dtype=np.int16)),  # which a kernel takes
    ],
)
def test_the_first_of_other_elements_are_refused(name: str, value: Tensor) -> None:
    with (
        Session("local-sync", parameters={"model": MODEL | {name: value}}) as session,
        pytest.raises(InvalidArgumentError, match=rf"'model::{name}' has .* the program takes \d+ bytes"),
    ):
        session.load(SHOWN)
