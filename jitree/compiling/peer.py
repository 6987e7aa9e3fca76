"""Asks onnxruntime for constants and results, as a script: it may crash.

    python peer.py fold model.onnx folded.onnx
    python peer.py run model.onnx arguments.npz results.npz

``fold`` writes the model with what is constant computed, ``run`` results for the first of several lots of
arguments (``0/x``, ``1/x`` …) that the model takes, with the number of that lot as ``lot``. What it refuses
is a line on standard error.
"""

from __future__ import annotations

import sys
from typing import Any


def fold(source: str, target: str) -> None:
    import onnxruntime

    options = _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = target
    _session(source, options)


def run(source: str, given: str, target: str) -> None:
    import numpy as np

    session = _session(source, _options())
    with np.load(given) as file:
        lots: dict[int, dict[str, Any]] = {} if file.files else {0: {}}
        for key in file.files:
            number, _, name = key.partition("/")
            lots.setdefault(int(number), {})[name] = file[key]
    refusals = []
    for number, arguments in sorted(lots.items()):
        try:
            results = session.run(None, arguments)
        except Exception as error:
            refusals.append(error)
            continue
        arrays = {str(index): np.asarray(result) for index, result in enumerate(results)}
        np.savez(target, lot=number, **arrays)  # type: ignore[arg-type]
        return
    raise refusals[0]


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return options


def _session(source: str, options: Any) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    try:
        (fold if sys.argv[1] == "fold" else run)(*sys.argv[2:])
    except Exception as error:
        sys.exit(" ".join(str(error).split()))
