"""Functions and objects of Python as models, with stand-ins for JAX."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.sources import opened
from jitree.errors import InvalidArgumentError, NotFoundError, UnavailableError
from tests.api.onnx_files import chain
from tests.compiling.conftest import SOURCE, ScriptedCompiler

NOTHING = ChosenInputs({}, {}, {})
ARTEFACT = b"ML\xefR\x0dStableHLO_v1.9.0" + bytes(range(50))

PROGRAMS = """
def double(x, scale=2): return x
def two(x, y): return x
class Exported:
    mlir_module_serialized = {artefact!r}
exported = Exported()
number = 7
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module beside where the command is given."""
    (tmp_path / "my_programs.py").write_text(PROGRAMS.format(artefact=ARTEFACT))
    (tmp_path / "broken_programs.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_programs", raising=False)
    return "my_programs"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What JAX is given."""
    given: list[Any] = []

    def export(function: Any) -> Any:
        def trace(*arguments: Any) -> Any:
            given.extend(arguments)
            if function.__name__ == "two":
                raise TypeError("shapes differ\nand more")
            return SimpleNamespace(mlir_module_serialized=ARTEFACT)

        return trace

    jax, exporting = ModuleType("jax"), ModuleType("jax.export")
    exporting.export = export  # type: ignore[attr-defined]
    jax.export, jax.jit = exporting, lambda function: function  # type: ignore[attr-defined]
    jax.ShapeDtypeStruct = lambda shape, dtype: (shape, str(dtype))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.export", exporting)
    return given


def content(source: Any) -> bytes:
    return Path(source.path).read_bytes()


def test_exported_programs_are_taken_as_they_are(programs: str, tmp_path: Path) -> None:
    for name in (f"{programs}:exported", f"{programs}.py:exported"):
        source = opened(name, NOTHING, str(tmp_path))
        assert content(source) == ARTEFACT
        assert not source.is_onnx
    given = SimpleNamespace(mlir_module_serialized=ARTEFACT, fun_name="f")
    assert content(opened(given, NOTHING, str(tmp_path))) == ARTEFACT


def test_the_artefact_is_found_in_what_jax_serializes(tmp_path: Path) -> None:
    flatbuffer = b"\x3c\0\0\0" + bytes(100) + len(ARTEFACT).to_bytes(4, "little") + ARTEFACT + bytes(8)
    assert content(opened(flatbuffer, NOTHING, str(tmp_path))) == ARTEFACT
    with pytest.raises(InvalidArgumentError, match="'bytes' cannot be compiled"):
        opened(flatbuffer[:-40], NOTHING, str(tmp_path))


def test_functions_are_traced_for_the_shapes(programs: str, traced: list[Any], tmp_path: Path) -> None:
    inputs = ChosenInputs({"x": (2, 3)}, {}, {})
    source = opened(f"{programs}:double", inputs, str(tmp_path))
    assert content(source) == ARTEFACT
    assert source.is_shaped
    assert traced == [((2, 3), "float32")]
    opened(f"{programs}:double", ChosenInputs({"x": (4,), "scale": ()}, {"scale": "i32"}, {}), str(tmp_path))
    assert traced[1:] == [((4,), "float32"), ((), "int32")]


REFUSALS: dict[str, tuple[dict[str, tuple[int | None, ...]], str]] = {
    "double": ({}, "argument 'x' needs a shape: --input-shape=x=2x3, input_shapes="),
    "two": ({"x": (1,), "y": (2,)}, "JAX cannot export it: TypeError: shapes differ"),
    "number": (
        {},
        "'my_programs:number' cannot be compiled: int is no path, bytes, function or exported program",
    ),
    "double ": ({"z": (1,)}, "has no argument 'z'; it has x, scale"),
    "double  ": ({"x": (None, 1)}, "argument 'x' needs a shape: --input-shape=x=2x3"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_functions_that_cannot_be_traced(name: str, programs: str, traced: list[Any], tmp_path: Path) -> None:
    shapes, expected = REFUSALS[name]
    with pytest.raises(InvalidArgumentError) as caught:
        opened(f"{programs}:{name.strip()}", ChosenInputs(shapes, {}, {}), str(tmp_path))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_lead_nowhere(programs: str, tmp_path: Path) -> None:
    for name, expected in {
        f"{programs}:none": "'my_programs' has no 'none'",
        "no_such_module:f": "'no_such_module' cannot be imported: ModuleNotFoundError: No module named ",
        "no_such_file.py:f": "'no_such_file.py' cannot be imported: ",
    }.items():
        with pytest.raises(NotFoundError) as caught:
            opened(name, NOTHING, str(tmp_path))
        assert expected in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="'broken_programs' cannot be imported: ZeroDivisionError"):
        opened("broken_programs:f", NOTHING, str(tmp_path))
    assert "" not in sys.path[:1]
    assert str(tmp_path) not in sys.path


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """The importer reads a file: what a pipe had is kept in one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    data = SOURCE.read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    source = opened(pipe, NOTHING, str(tmp_path))
    writer.join()
    assert source.name == str(pipe) and Path(source.path).read_bytes() == data and not source.is_onnx


def test_modules_that_do_more_than_define(
    programs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that changes the folder or the path of the process, or raises an error of several lines."""
    for name, text in {
        "long": "raise ValueError('at once\\nand more')",
        "moves": "import os, sys; os.chdir('/'); sys.path.clear(); number = 7",
    }.items():
        (tmp_path / f"{name}_programs.py").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"cannot be imported: ValueError: at once$"):
        jitree.compile("long_programs:f")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(InvalidArgumentError, match=r"'moves_programs:number' cannot be compiled: int is no"):
        jitree.compile("moves_programs:number", "x.vmfb")
    assert not list(tmp_path.glob("x.vmfb*"))


def test_a_path_with_a_colon_is_a_path(scripted: ScriptedCompiler, tmp_path: Path) -> None:
    path = tmp_path / "a:b"
    path.write_text(SOURCE.read_text())
    jitree.compile(str(path))
    assert scripted.arguments[0] == str(path)


def test_without_jax(programs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(
        UnavailableError, match=r"'my_programs:double': JAX cannot be imported \(.*\): pip install jax"
    ):
        opened(f"{programs}:double", ChosenInputs({"x": (1,)}, {}, {}), str(tmp_path))


def test_inputs_of_functions_have_element_types(programs: str, traced: list[Any], tmp_path: Path) -> None:
    for text, name in (("i8", "int8"), ("bf16", "bfloat16"), ("f64", "float64")):
        opened(f"{programs}:double", ChosenInputs({"x": (2,)}, {"x": text}, {}), str(tmp_path))
        assert traced.pop()[1] == name
    with pytest.raises(InvalidArgumentError, match="argument 'x': there is no element type 'f33'"):
        opened(f"{programs}:double", ChosenInputs({"x": (2,)}, {"x": "f33"}, {}), str(tmp_path))


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What PyTorch is given to export; it writes an ONNX file."""
    given: list[Any] = []

    class Net:
        def forward(self, x: Any, k: Any = None) -> Any: ...

        def eval(self) -> Any:
            return self

    def export(model: Any, arguments: Any, path: str, **options: Any) -> None:
        given.append(arguments)
        if arguments and arguments[0][0] == (7,):
            raise RuntimeError("cannot do this\nbecause")
        Path(path).write_bytes(chain([np.ones((4, 4), np.float32)], 2))

    Net.__module__ = "torch.nn.modules.module"
    torch, nn, onnx = ModuleType("torch"), ModuleType("torch.nn"), ModuleType("torch.onnx")
    onnx.export, nn.Module = export, Net  # type: ignore[attr-defined]
    torch.nn, torch.onnx = nn, onnx  # type: ignore[attr-defined]
    torch.zeros = lambda shape, dtype: (shape, dtype)  # type: ignore[attr-defined]
    torch.float32 = "float32"  # type: ignore[attr-defined]
    for module in (torch, nn, onnx):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return given


def test_modules_of_pytorch_are_exported_to_onnx(exports: list[Any], tmp_path: Path) -> None:
    net = sys.modules["torch.nn"].Module()
    source = opened(net, ChosenInputs({"x": (2, 4)}, {}, {}), str(tmp_path))
    assert (source.name, source.is_onnx, source.is_shaped) == ("Net", True, True)
    assert exports == [(((2, 4), "float32"),)]
    with pytest.raises(
        InvalidArgumentError, match=r"'Net': PyTorch cannot export it: RuntimeError: cannot do"
    ):
        opened(net, ChosenInputs({"x": (7,)}, {}, {}), str(tmp_path))


def test_programs_that_pytorch_has_exported_need_no_shapes(exports: list[Any], tmp_path: Path) -> None:
    program = type("ExportedProgram", (), {"__module__": "torch.export.exported_program"})()
    assert opened(program, NOTHING, str(tmp_path)).is_onnx
    assert exports == [()]
