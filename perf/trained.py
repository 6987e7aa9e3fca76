"""Times trained models that people use: jitree on portable VMVX files that `jitree compile` makes, against
onnxruntime, OpenVINO and MNN on the ONNX file, and iree.runtime on files compiled for this processor.

    python perf/trained.py [--threads 1] [--seconds 2] [--only REGEX] [--folder DIRECTORY] [--dispatches 5]
        [--runtimes onnxruntime,OpenVINO,MNN,MNN-Winograd,llvm-cpu]

The models come with packages of the index (magika, rapidocr-onnxruntime, ddddocr, nudenet); those that are
not installed are left out. Each is compiled once and kept in the folder. A figure is the median time of the
other runtime over that of jitree for numpy arrays in and out, all measured alternately in one run, each in a
process of its own that is stopped while others are measured (above 1: jitree is faster); `best` is the
fastest of onnxruntime, OpenVINO and MNN, as far as they are installed, take the model, and are about as exact
as jitree (`exact.py`): beside each time is the error, with `!` where it is larger. `--dispatches` lists those
with the most time. Needs the extra `compile` with `iree-base-compiler[onnx]`, onnxruntime, and
the packages.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from apart import Make, Timed, measured
from comparison import summary
from exact import compared, reference
from peers import installed

import jitree
from jitree.tools.cache import warm

COMPILER_SECONDS = 600
_LOCAL = "--iree-hal-target-device=local"
_BACKEND = "--iree-hal-local-target-device-backends="
TARGETS: dict[str, tuple[str, ...]] = {
    "vmvx": (),
    "llvm-cpu": (_LOCAL, f"{_BACKEND}llvm-cpu", "--iree-llvmcpu-target-cpu=host"),
}
"""Flags of the compiler; none for `jitree compile`."""

Measure = Callable[[str, dict[str, Path], np.ndarray[Any, Any], argparse.Namespace], dict[str, float]]
"""(name of a model, its files by kind, argument, options) → what is compared with jitree, and its ratio."""


class Model(NamedTuple):
    """An ONNX file of a package, and the shape of its one input."""

    package: str
    file: str
    shape: tuple[int, ...]


MODELS = {
    "magika": Model("magika", "models/standard_v3_3/model.onnx", (1, 2048)),
    "PP-OCR cls": Model(
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", (1, 3, 48, 192)
    ),
    "PP-OCR rec": Model("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", (1, 3, 48, 160)),
    "PP-OCR det": Model("rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx", (1, 3, 160, 160)),
    "ddddocr": Model("ddddocr", "common.onnx", (1, 1, 64, 128)),
    "nudenet": Model("nudenet", "320n.onnx", (1, 3, 320, 320)),
}


def available(only: str, folder: Path) -> Iterator[tuple[str, Path, tuple[int, ...]]]:
    """Models of installed packages, and those that the folder has already."""
    for name, model in MODELS.items():
        if not re.search(only, name):
            continue
        found = importlib.util.find_spec(model.package)
        kept = stem(folder, name).with_suffix(".onnx")
        if found is not None and found.origin is not None:
            yield name, Path(found.origin).parent / model.file, model.shape
        elif kept.exists():
            yield name, kept, model.shape
        else:
            print(f"{name}: {model.package} is not installed")


def stem(folder: Path, name: str) -> Path:
    """The path of a model's files, without their suffix."""
    return folder / re.sub(r"\W+", "_", name)


def with_shape(source: Path, shape: tuple[int, ...], target: Path) -> None:
    """Writes the model for one shape, and has its results' as they are: ddddocr's file has others."""
    import onnx
    import onnxruntime

    model = onnx.load(source)
    (argument,) = model.graph.input
    for dimension, size in zip(argument.type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    element = onnx.helper.tensor_dtype_to_np_dtype(argument.type.tensor_type.elem_type)
    results = session.run(None, {argument.name: np.zeros(shape, element)})
    for output, result in zip(model.graph.output, results, strict=True):
        kind = output.type.tensor_type.elem_type
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, kind, result.shape))
    del model.graph.value_info[:]
    onnx.save(model, target)


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=COMPILER_SECONDS)


def make_module(model: Path, program: Path, module: Path, flags: tuple[str, ...]) -> None:
    """By IREE's compiler with the flags, or by `jitree compile` where there are none."""
    if not flags:
        jitree.compile(model, module)
        return
    if not program.exists():
        run("iree-import-onnx", str(model), "--opset-version=17", "-o", str(program))
    run("iree-compile", str(program), "-o", str(module), *flags)


def compiled(
    folder: Path, name: str, source: Path, shape: tuple[int, ...], targets: dict[str, tuple[str, ...]]
) -> dict[str, Path]:
    """The files of a model by kind; one that the compiler refuses is not among them."""
    files = {"onnx": stem(folder, name).with_suffix(".onnx")}
    if not files["onnx"].exists():
        with_shape(source, shape, files["onnx"])
    program = stem(folder, name).with_suffix(".mlir")
    for target, flags in targets.items():
        module = stem(folder, name).with_suffix(f".{target}.vmfb")
        try:
            if not module.exists():
                make_module(files["onnx"], program, module, flags)
            files[target] = module
        except (subprocess.SubprocessError, OSError, jitree.StatusError) as error:
            print(f"{name}: no {target} module: {error}")
    return files


def of_iree(module: Path, value: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    import iree.runtime

    iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    context = iree.runtime.SystemContext(
        config=iree.runtime.Config("local-sync" if threads == 1 else "local-task")
    )
    loaded = iree.runtime.VmModule.mmap(context.instance, str(module))
    context.add_vm_module(loaded)
    name = next(name for name in loaded.function_names if "$async" not in name and name[:2] != "__")
    function = context.modules[loaded.name][name]
    return lambda: function(value).to_host()


def of_jitree(session: jitree.Session, module: Path, value: np.ndarray[Any, Any]) -> Callable[[], Any]:
    loaded = session.load(module)
    function = loaded[program_name(loaded)]
    return lambda: np.asarray(function(value))


def program_name(loaded: jitree.Module) -> str:
    """Of the one function that the importer makes."""
    return next(name for name in loaded.names if "$async" not in name)


def argument(shape: tuple[int, ...], name: str) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(0)
    if name == "magika":
        return random.integers(0, 256, shape, np.int32)
    return random.standard_normal(shape).astype(np.float32)


def of_jitree_alone(module: Path, value: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    return of_jitree(jitree.Session(device(threads)), module, value)


def device(threads: int) -> str:
    return "local-sync" if threads == 1 else f"local-task://?threads={threads}"


def measure(
    name: str, files: dict[str, Path], value: np.ndarray[Any, Any], options: argparse.Namespace
) -> dict[str, float]:
    """The ratio to each other runtime."""
    with contextlib.redirect_stdout(sys.stderr):
        warm([str(files["vmvx"])])
    found = measured(runtimes(files, value, options), options.seconds)
    timed = {}
    for runtime, what in found.items():
        if isinstance(what, Timed):
            timed[runtime] = what
        else:
            print(f"{name}: {runtime} does not run it: {what}")
    text, ratios = compared(timed, reference(files["onnx"], [value]))
    print(f"{name:12s}", text, flush=True)
    if options.dispatches:
        print_dispatches(files["vmvx"], value, options)
    return ratios


def print_dispatches(module: Path, value: np.ndarray[Any, Any], options: argparse.Namespace) -> None:
    """Lists those that take the most time of a call."""
    with jitree.Session(device(options.threads)) as session:
        own = of_jitree(session, module, value)
        own()
        with session.profile() as profile:
            own()
        print("\n".join(str(profile.table()).splitlines()[: options.dispatches + 1]), flush=True)


def runtimes(
    files: dict[str, Path], value: np.ndarray[Any, Any], options: argparse.Namespace
) -> dict[str, Make]:
    """What is compared: jitree, and of the others those that are wanted and installed."""
    wanted = options.runtimes.split(",")
    makes: dict[str, Make] = {
        "jitree": partial(of_jitree_alone, files["vmvx"], value, options.threads),
        **{
            runtime: partial(make, files["onnx"], [value], options.threads)
            for runtime, make in installed().items()
            if runtime in wanted
        },
    }
    if "llvm-cpu" in files and "llvm-cpu" in wanted:
        makes["llvm-cpu"] = partial(of_iree, files["llvm-cpu"], value, options.threads)
    return makes


def arguments_of(description: str, **numbers: int) -> argparse.Namespace:
    """The command line of a benchmark of these models: what all of them have, and flags for numbers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    parser.add_argument("--runtimes", default="onnxruntime,OpenVINO,MNN,MNN-Winograd,llvm-cpu")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    return options


def measure_all(
    targets: dict[str, tuple[str, ...]], needed: str, measure: Measure, options: argparse.Namespace
) -> None:
    """Measures each model that is there for the target ``needed``, and prints the ratios of all."""
    ratios: dict[str, list[float]] = {}
    for name, source, shape in available(options.only, options.folder):
        files = compiled(options.folder, name, source, shape, targets)
        if needed in files:
            for what, ratio in measure(name, files, argument(shape, name), options).items():
                ratios.setdefault(what, []).append(ratio)
    for what, found in ratios.items():
        print(f"{what}: {summary(found)}")


def main() -> int:
    measure_all(TARGETS, "vmvx", measure, arguments_of("times trained models", threads=1, dispatches=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
