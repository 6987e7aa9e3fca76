"""Tries which operators of ONNX `jitree compile` takes, for each target: one test case of onnx for each.

    python perf/operators.py [--only REGEX] [--targets vmvx,llvm-cpu,cuda]

A line has the operator, and for each target the largest error against onnxruntime, "yes" where there is no
comparison (cuda, and what onnxruntime refuses), or the first words of the reason. Integers and truth values
of one dimension are constants, as they are in models. Test cases whose results depend on values may differ
for no fault of the compiler. Needs the extra `compile` and onnxruntime; ten to twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from jitree.compiling.models import CompileOptions, compile_model
from jitree.compiling.onnx_inputs import ChosenInputs
from jitree.compiling.programs import target_of
from jitree.errors import StatusError

SECONDS = 120.0
WORDS = 60


def cases() -> dict[str, Any]:
    """The case with the shortest name of each operator of ONNX itself."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, Any] = {}
    for case in sorted(load_model_tests(kind="node"), key=lambda case: len(case.name)):
        if case.model is not None and len(case.model.graph.node) == 1 and not case.model.graph.node[0].domain:
            found.setdefault(case.model.graph.node[0].op_type, case)
    return dict(sorted(found.items()))


def constants(case: Any) -> dict[str, Any]:
    """Values of inputs that are constants in models: axes, sizes, places."""
    given = zip(case.model.graph.input[1:], case.data_sets[0][0][1:], strict=False)
    return {
        value.name: array
        for value, array in given
        if isinstance(array, np.ndarray) and array.ndim <= 1 and array.dtype.kind in "ib"
    }


def outcome(case: Any, target: str, folder: str) -> str:
    options = CompileOptions(
        target_of(target), ChosenInputs({}, {}, constants(case)), 0, SECONDS, target != "cuda", ()
    )
    try:
        path = str(Path(folder, f"{case.name}.vmfb"))
        error = compile_model(case.model, path, options, lambda text: None).check.error
    except StatusError as failure:
        return failure.message.rpartition("): ")[2][:WORDS]
    return "yes" if error is None else f"{error:.0e}"


def main() -> int:
    parser = argparse.ArgumentParser(description="tries which operators compile")
    parser.add_argument("--only", default="")
    parser.add_argument("--targets", default="vmvx,llvm-cpu,cuda")
    options = parser.parse_args()
    targets = options.targets.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for operator, case in cases().items():
            if re.search(options.only, operator):
                found = [f"{target}: {outcome(case, target, folder)}" for target in targets]
                print(f"{operator:24}", "  ".join(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
