"""Runs ONNX models by other runtimes of the index, for `trained.py` and what compares with it.

Each takes the file, arguments and a number of threads, and gives a function that runs the model once and
gives its first result as a numpy array. All of them compute in 32 bits where the model does: OpenVINO and MNN
take bfloat16 or fewer bits on processors that have these, unless told not to. MNN is here twice: without and
with Winograd's convolutions, which have larger errors and which it takes unless told not to.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]
Call = Callable[[], Any]
_WINOGRAD_MEMORY: Final = 3
"""MNN's number of the hint; without memory for them there are no convolutions by Winograd's way."""


def of_onnxruntime(model: Path, values: Sequence[Array], threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    named = {given.name: value for given, value in zip(session.get_inputs(), values, strict=True)}
    return lambda: session.run(None, named)[0]


def of_openvino(model: Path, values: Sequence[Array], threads: int) -> Call:
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY",
    }  # fmt: skip
    request = core.compile_model(core.read_model(str(model)), "CPU", settings).create_infer_request()
    return lambda: request.infer([*values])[0]


def of_mnn_winograd(model: Path, values: Sequence[Array], threads: int) -> Call:
    return _of_mnn(model, values, threads, {})


def of_mnn(model: Path, values: Sequence[Array], threads: int) -> Call:
    return _of_mnn(model, values, threads, {_WINOGRAD_MEMORY: 0})


def _of_mnn(model: Path, values: Sequence[Array], threads: int, hints: Mapping[int, int]) -> Call:
    import _tools  # MNN's own, without its wrapper, which installs packages for its log
    import MNN
    import onnx

    converted = model.with_suffix(".mnn")
    with silent():
        if not converted.exists():
            _tools.mnnconvert(
                ["", "-f", "ONNX", "--modelFile", str(model), "--MNNModel", str(converted), "--bizCode", "_"]
            )
        graph = onnx.load(model, load_external_data=False).graph
        settings = {"backend": "CPU", "precision": "high", "numThread": threads}
        manager = MNN.nn.create_runtime_manager((settings,))
        for hint, level in hints.items():
            manager.set_hint(hint, level)
        module = MNN.nn.load_module_from_file(
            str(converted), [given.name for given in graph.input], [graph.output[0].name],
            runtime_manager=manager,
        )  # fmt: skip
    elements = {"float32": MNN.expr.float, "int32": MNN.expr.int}
    variables = []
    for value in values:
        value = value.astype(np.int32) if value.dtype == np.int64 else value
        element = elements[value.dtype.name]
        variables.append(MNN.expr.const(value, list(value.shape), MNN.expr.NCHW, element))
    return lambda: np.array(module.forward(variables)[0].read())


RUNTIMES: Final[dict[str, tuple[str, Callable[[Path, Sequence[Array], int], Call]]]] = {
    "onnxruntime": ("onnxruntime", of_onnxruntime),
    "OpenVINO": ("openvino", of_openvino),
    "MNN": ("MNN", of_mnn),
    "MNN-Winograd": ("MNN", of_mnn_winograd),
}
"""Name → package, and what makes a call. The first says what a result should be."""


def installed() -> dict[str, Callable[[Path, Sequence[Array], int], Call]]:
    return {name: make for name, (package, make) in RUNTIMES.items() if importlib.util.find_spec(package)}


@contextmanager
def silent() -> Any:
    """MNN writes to the process's standard output."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
