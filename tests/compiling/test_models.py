"""``jitree.compile`` and ``jitree compile`` as a whole, with a compiler that is a script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.compiling import models, programs
from jitree.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)
from tests.api.onnx_files import chain
from tests.compiling.conftest import MODULE, ScriptedCompiler
from tests.tools.command import jitree as command

pytestmark = pytest.mark.filterwarnings("error")

REFUSAL = (
    "/tmp/m.mlir:3:10: error: failed to legalize operation 'torch.operator' that was explicitly marked "
    'illegal: %1 = "torch.operator"(%0) <{name = "onnx.Loop"}> : …\n'
)
X = np.arange(16, dtype=np.float32)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "bin")


def test_a_path_gets_the_module(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "made.vmfb"
    assert jitree.compile(model, output) == str(output)
    assert output.read_bytes() == MODULE.read_bytes()
    assert names(tmp_path) == ["call.mlir", "made.vmfb"]
    assert scripted.arguments[0] == str(model)
    assert scripted.arguments[3:] == [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=vmvx",
    ]


def test_without_a_path_it_gives_bytes(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    data = jitree.compile(model.read_bytes())
    assert isinstance(data, bytes)
    with jitree.Session("local-sync") as session:
        assert np.array_equal(session.load(data).add(X, X), X + X)
    assert names(tmp_path) == ["call.mlir"]


def test_several_targets_are_one_file(scripted: ScriptedCompiler, model: Path) -> None:
    jitree.compile(model, target=["vmvx", "llvm-cpu", "cuda"], flags=["--iree-cuda-target=sm_90", "--x"])
    assert scripted.arguments[3:] == [
        "--iree-hal-target-device=local,cuda",
        "--iree-hal-local-target-device-backends=vmvx",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-hal-link-executables=false",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-cuda-target=sm_90",
        "--x",
    ]


def test_executables_of_several_kinds_are_not_linked(scripted: ScriptedCompiler, model: Path) -> None:
    """The compiler drops those of one kind, also where the other is for a GPU."""
    jitree.compile(model, target="llvm-cpu,cuda")
    assert "--iree-hal-link-executables=false" in scripted.arguments
    jitree.compile(model, target="cuda")
    assert scripted.arguments[3:] == ["--iree-hal-target-device=cuda", "--iree-cuda-target=sm_80"]


def test_f64_stays_f64(scripted: ScriptedCompiler, model: Path) -> None:
    scripted.warns(
        "WARNING: ConvertTypesPass (--iree-input-demote-*-to-*) changed public function signatures; callers\n"
    )
    jitree.compile(model)
    assert scripted.arguments[-1] == "--iree-input-demote-f64-to-f32=false"
    jitree.compile(model, flags=["--iree-input-demote-f64-to-f32=true"])
    assert scripted.arguments[-1] == "--iree-input-demote-f64-to-f32=true"


def test_the_command_line_says_what_was_made(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "made.vmfb"
    flags = ["--target=llvm-cpu", "--processor=znver4", "--compiler-flag=--iree-opt-level=O3"]
    outcome = command("compile", model, "-o", output, *flags)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert f"{output}: llvm-cpu: sync func @add(" in outcome.stdout
    assert outcome.stdout.endswith(f"{output}: not compared with onnxruntime: the model is no ONNX file\n")
    assert scripted.arguments[-2:] == ["--iree-llvmcpu-target-cpu=znver4", "--iree-opt-level=O3"]
    silent = command("compile", model, "-o", output, "--check=false")
    assert silent.stdout.endswith("not compared with onnxruntime: it was not asked for\n")


def test_a_refusal_keeps_the_old_module_and_the_messages(
    scripted: ScriptedCompiler, model: Path, tmp_path: Path
) -> None:
    output = tmp_path / "made.vmfb"
    output.write_bytes(b"the old one")
    scripted.says(REFUSAL)
    with pytest.raises(UnimplementedError) as caught:
        jitree.compile(model, output)
    assert str(caught.value) == (
        f"UNIMPLEMENTED; the compiler refuses '{model}': Loop at /tmp/m.mlir:3:10: the compiler does not "
        "take this control flow; give the shapes of all inputs (--input-shape=) and the values of those "
        "that choose a branch (--input-value=), so that onnxruntime computes the condition beforehand; or "
        "export the model without it; "
        f"its messages are in '{output}.log'"
    )
    assert output.read_bytes() == b"the old one"
    assert (tmp_path / "made.vmfb.log").read_text() == REFUSAL
    assert names(tmp_path) == ["call.mlir", "made.vmfb", "made.vmfb.log"]
    outcome = command("compile", model, "-o", output)
    assert outcome.code == 1
    assert outcome.stderr.count("\n") == 1
    assert "UNIMPLEMENTED; the compiler refuses" in outcome.stderr


def test_messages_of_a_module_given_as_bytes_are_kept(
    scripted: ScriptedCompiler, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scripted.says(REFUSAL)
    with pytest.raises(UnimplementedError) as caught:
        jitree.compile(model)
    found = re.search("its messages are in '(.*)'", str(caught.value))
    assert found is not None
    assert Path(found[1]).read_text() == REFUSAL
    assert re.fullmatch(r"jitree-compile-call-[0-9a-f]+\.log", Path(found[1]).name)
    Path(found[1]).unlink()
    scripted.says("")
    with pytest.raises(InternalError, match=r"gives no reason$"):
        jitree.compile(model)
    (tmp_path / "bin" / "says").unlink()
    jitree.compile(model)
    assert names(tmp_path) == ["call.mlir"], "no empty log, and none of what succeeds"


def test_a_compiler_that_gives_no_reason(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    scripted.says("Killed\n")
    with pytest.raises(
        InternalError, match=r"the compiler fails with '.*' and gives no reason; its messages"
    ):
        jitree.compile(model, tmp_path / "made.vmfb")


def test_a_compiler_that_takes_too_long_ends_with_its_children(
    scripted: ScriptedCompiler, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        """Time is over as soon as there is a child."""
        if timeout is None:
            return real(process)
        while not scripted.has_child:
            time.sleep(0.01)
        raise subprocess.TimeoutExpired("iree-compile", timeout)

    real = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    scripted.sleeps()
    with pytest.raises(DeadlineExceededError, match=r"the compiler has not ended in time; give it"):
        jitree.compile(model, tmp_path / "made.vmfb")
    while is_running(scripted.child):  # until the system has ended it
        time.sleep(0.01)
    assert names(tmp_path) == ["call.mlir"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(
    number: signal.Signals, scripted: ScriptedCompiler, model: Path, tmp_path: Path
) -> None:
    """No compiler that goes on, and no file."""
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from jitree.compiling import programs; programs._spec = lambda name: None\n"
        "from jitree.tools.main import main; main()"
    )
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(MODULE.parents[2]), "TMPDIR": str(tmp_path / "tmp")}
    scripted.sleeps()
    command_line = [sys.executable, "-c", code, "compile", str(model), "-o", f"{tmp_path}/made.vmfb"]
    with subprocess.Popen(command_line, env=environment) as process:
        while not scripted.has_child:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait() == 128 + number
    while is_running(scripted.child):
        time.sleep(0.01)
    assert names(tmp_path) == ["call.mlir", "tmp"]
    assert not [name for name in os.listdir(tmp_path / "tmp") if name.startswith("jitree-compile-")]


def test_time_may_be_over_before_the_compiler_starts(scripted: ScriptedCompiler, model: Path) -> None:
    scripted.sleeps()
    with pytest.raises(DeadlineExceededError, match=r"the compiler has not ended in time"):
        jitree.compile(model, timeout=0)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_compiler_that_cannot_be_started(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "iree-compile").write_text("no program")
    with pytest.raises(UnavailableError, match=r"cannot start '.*/iree-compile': Exec format error"):
        jitree.compile(model)


def test_what_cannot_be_written_is_said_first(
    scripted: ScriptedCompiler, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnavailableError, match=r"cannot write '.*/none/x.vmfb': No such file or directory"):
        jitree.compile(model, tmp_path / "none" / "x.vmfb")
    with pytest.raises(InvalidArgumentError, match=r"cannot write '.*': it is a folder; name a file in it"):
        jitree.compile(model, tmp_path)
    assert not (tmp_path / "bin" / "arguments").exists()


def test_a_module_does_not_take_the_place_of_its_model(scripted: ScriptedCompiler, model: Path) -> None:
    data = model.read_bytes()
    link = model.with_name("link.mlir")
    link.symlink_to(model)
    for path in (model, link):
        with pytest.raises(InvalidArgumentError, match=r"mlir' is the model itself; name another file"):
            jitree.compile(model, path)
    assert model.read_bytes() == data and link.is_symlink()


def test_two_models_on_a_command_line(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    outcome = command("compile", model, model, "-o", tmp_path / "x.vmfb")
    assert (
        outcome.code == 1 and f"unexpected argument '{model}': there is one model already" in outcome.stderr
    )


def test_a_compiler_that_crashes(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "iree-compile").write_text("#!/bin/sh\nkill -SEGV $$\n")
    with pytest.raises(
        InternalError, match=r"the compiler crashes \(SIGSEGV\) with '.*' and gives no reason"
    ):
        jitree.compile(model, tmp_path / "x.vmfb")


def test_a_compiler_that_writes_no_module(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    """As with flags that have it print its help."""
    (tmp_path / "bin" / "iree-compile").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(InvalidArgumentError, match=r"has written no module: look at the flags that it is"):
        jitree.compile(model, tmp_path / "x.vmfb")
    assert names(tmp_path) == ["call.mlir"]


def test_a_log_that_cannot_be_put_there(scripted: ScriptedCompiler, model: Path, tmp_path: Path) -> None:
    scripted.says("x.mlir:1:1: error: it is refused\n")
    (tmp_path / "x.vmfb.log").mkdir()
    with pytest.raises(
        UnimplementedError, match=r"it is refused; its messages are lost: cannot write '.*log'"
    ):
        jitree.compile(model, tmp_path / "x.vmfb")
    assert names(tmp_path) == ["call.mlir", "x.vmfb.log"]
    with pytest.raises(UnavailableError, match=r"cannot write '.*log': File name too long"):
        jitree.compile(model, tmp_path / ("x" * 236))


def test_files_that_are_no_models(scripted: ScriptedCompiler, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no such file: 'nothing.onnx'"):
        jitree.compile("nothing.onnx")
    weights = tmp_path / "w.safetensors"
    weights.write_bytes((8).to_bytes(8, "little") + b'{"w":{}}' + bytes(64))
    with pytest.raises(
        InvalidArgumentError, match=r"w.safetensors' cannot be compiled: the file is a safetensors"
    ):
        jitree.compile(weights)
    with pytest.raises(
        InvalidArgumentError, match=r"'bytes' cannot be compiled: it is no ONNX, StableHLO or MLIR"
    ):
        jitree.compile(b"\xff\xfe" * 40)
    with pytest.raises(
        InvalidArgumentError, match=r"'int' cannot be compiled: int is no path, bytes, function"
    ):
        jitree.compile(7)
    for given in ({"input_shapes": {"x": (1,)}}, {"input_values": {"x": 1}}, {"opset": 17}):
        with pytest.raises(InvalidArgumentError, match=r"can be chosen of ONNX files only"):
            jitree.compile(b"module {}\n", **given)


def test_targets_that_there_are_not(scripted: ScriptedCompiler, model: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"target: there is no 'gpu'; there are vmvx, llvm-cpu, cuda"
    ):
        jitree.compile(model, target="vmvx,gpu")
    with pytest.raises(InvalidArgumentError, match=r"target: name one or more of vmvx, llvm-cpu, cuda"):
        jitree.compile(model, target=())


@pytest.mark.parametrize("shape", ["12", (1.5,), 3, (0, 2), (-1,), ("2",)])
def test_shapes_that_are_none(shape: Any, model: Path) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        jitree.compile(model, input_shapes={"x": shape})
    assert caught.value.message == (
        f"input_shapes: the shape of 'x' is {shape!r}; it is to have whole numbers above 0, None for a size "
        "that stays open"
    )


FLAGS = {
    "--input-shape=x=1xq": "flag '--input_shape': 'x=1xq' is no shape; one is x=1x3x48x192",
    "--input-shape=x=0": "flag '--input_shape': 'x=0' is no shape",
    "--input-value=x=one": "'one' is not a number; flag '--input_value': 'x=one'",
    "--input-value=x=--1": "'--1' is not a number",
    "--target=tpu": "target: there is no 'tpu'",
}


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_that_make_no_sense(flag: str, model: Path, tmp_path: Path) -> None:
    outcome = command("compile", model, "-o", tmp_path / "x.vmfb", flag)
    assert outcome.code == 1
    assert f"INVALID_ARGUMENT; {FLAGS[flag]}" in outcome.stderr


def test_flags_that_are_missing_or_given_twice(model: Path) -> None:
    usage = "name a model and a file: jitree compile model.onnx -o model.vmfb"
    assert usage in command("compile", model).stderr
    assert usage in command("compile", "-o", "x.vmfb").stderr
    twice = command("compile", model, "-o", "x.vmfb", "--input-dtype=x=f32", "--input-dtype=x=f16")
    assert "flag '--input_dtype': input 'x' is given twice" in twice.stderr


def test_packages_that_are_not_installed(no_packages: None, model: Path, tmp_path: Path) -> None:
    outcome = command("compile", model, "-o", tmp_path / "x.vmfb")
    assert "UNAVAILABLE; there is no iree-compile: pip install 'jitree[compile]'\n" in outcome.stderr
    onnx = tmp_path / "m.onnx"
    onnx.write_bytes(chain([np.ones((4, 4), np.float32)], 2))
    outcome = command("compile", onnx, "-o", tmp_path / "x.vmfb")
    assert (
        "UNAVAILABLE; the Python package iree-base-compiler is not installed: pip install 'jitree[compile]'\n"
        in outcome.stderr
    )
    assert outcome.stderr.count("\n") == 1
    assert names(tmp_path) == ["call.mlir", "m.onnx"]


def test_onnx_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(
        UnavailableError, match=r"onnx cannot be imported \(.*\): pip install 'jitree\[compile\]'"
    ):
        jitree.compile(chain([np.ones((4, 4), np.float32)], 2), tmp_path / "x.vmfb")
    assert names(tmp_path) == []


def test_importing_jitree_loads_none_of_it() -> None:
    """The command line neither, before it compiles."""
    code = "import jitree, sys, jitree.tools.main; print([n for n in sys.modules if 'compiling' in n])"
    environment = {**os.environ, "PYTHONPATH": str(MODULE.parents[3])}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True) == "[]\n"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/2nd-model.v1.vmfb", "_2nd_model"),
        ("hal.vmfb", "_hal"),
        ("chain.onnx", "chain"),
    ],
)
def test_a_module_has_the_name_of_its_file(path: str, name: str) -> None:
    """None that a module of the runtime has, which a session would refuse beside it."""
    assert models.module_name(path) == name
