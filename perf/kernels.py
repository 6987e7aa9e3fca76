"""Times tensor kernels compiled for VMVX: jitree's native tier against iree.runtime in one process.

    python perf/kernels.py [--tier native] [--peer vmvx] [--device local-sync] [--seconds 0.5] [--only REGEX]
    python perf/kernels.py --start

The figure of a kernel is the median time of iree.runtime over the median time of jitree for a call with
arrays on the device whose result is read back, both measured alternately in one run (above 1: jitree is
faster). With `--peer llvm-cpu` iree.runtime runs the same program compiled to machine code for this
processor, which needs the extra `compile`. `--start` reports how long building the machine code takes, and
how long a first result with and without it. Needs the extra `perf`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from comparison import alternate, row, summary

import jitree
from jitree.tools.cache import warm

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = PROGRAMS / "kernels.mlir"
MODULE = PROGRAMS / "kernels_vmvx.vmfb"

Maker = Callable[[np.random.Generator], Any]


def floats(*shape: int) -> Maker:
    return lambda random: (random.standard_normal(shape) * 0.5).astype(np.float32)


def integers(low: int, high: int, *shape: int) -> Maker:
    return lambda random: random.integers(low, high, shape).astype(np.int32)


KERNELS: dict[str, tuple[Maker, ...]] = {
    "gelu": (floats(65536),),
    "silu": (floats(65536),),
    "matvec": (floats(512, 512), floats(512)),
    "batch_matmul": (floats(8, 64, 64), floats(8, 64, 64)),
    "matmul_transposed": (floats(96, 128), floats(80, 128)),
    "depthwise_conv": (floats(1, 34, 34, 32), floats(3, 3, 32)),
    "conv_planes": (floats(1, 96, 22, 22), floats(24, 96, 3, 3)),
    "max_pool": (floats(1, 64, 64, 32),),
    "column_sum": (floats(512, 512),),
    "requantize": (integers(-12000, 12000, 65536),),
    "axpy_dynamic": (floats(100_003), floats(100_003), lambda random: 1.5),
    "gather": (floats(1024, 64), integers(0, 1024, 512)),
}
"""Export and what makes its arguments."""


class Peer:
    """iree.runtime with one module."""

    def __init__(self, module: Path, device: str) -> None:
        import iree.runtime

        self._runtime = iree.runtime
        self._config = iree.runtime.Config(device)
        self._context = iree.runtime.SystemContext(config=self._config)
        self._context.add_vm_module(iree.runtime.VmModule.mmap(self._context.instance, str(module)))

    def call(self, name: str, arguments: list[Any]) -> Callable[[], Any]:
        function = self._context.modules["module"][name]
        placed = [
            self._runtime.asdevicearray(self._config.device, item) if isinstance(item, np.ndarray) else item
            for item in arguments
        ]
        return lambda: function(*placed).to_host()


def own_call(session: jitree.Session, module: Any, name: str, arguments: list[Any]) -> Callable[[], Any]:
    function = module[name]
    placed = [session.to_device(item) if isinstance(item, np.ndarray) else item for item in arguments]
    return lambda: np.asarray(function(*placed))


def compiled(source: Path, folder: Path) -> Path:
    """A program as machine code of IREE's compiler for this processor."""
    output = folder / f"{source.stem}_llvm-cpu.vmfb"
    command = [
        str(Path(sys.executable).with_name("iree-compile")), str(source), "-o", str(output),
        "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=120)
    return output


def compare(options: argparse.Namespace, peer: Peer) -> int:
    ratios = []
    warm([str(MODULE)])  # says what is in the cache and how long the rest took
    with jitree.Session(device=options.device, tier=options.tier) as session:
        module = session.load(MODULE)
        for name, makers in KERNELS.items():
            if not re.search(options.only, name):
                continue
            random = np.random.default_rng(0)
            arguments = [make(random) for make in makers]
            calls = [peer.call(name, arguments), own_call(session, module, name, arguments)]
            np.testing.assert_allclose(calls[1](), calls[0](), rtol=1e-4, atol=1e-4, err_msg=name)
            theirs, own = alternate(calls, options.seconds)
            ratios.append(theirs / own)
            print(row(name, theirs, own), flush=True)
    print(summary(ratios))
    return 0


FIRST_RESULT = """
import sys, time
import numpy
start = time.perf_counter()
import jitree
session = jitree.Session(device="local-sync", tier=sys.argv[2])
function = session.load(sys.argv[1])["gelu"]
numpy.asarray(function(numpy.zeros(65536, numpy.float32)))
print(time.perf_counter() - start)
"""


def start_times() -> int:
    """Prints what machine code costs a new process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JITREE_CACHE_DIR": folder, "PYTHONPYCACHEPREFIX": f"{folder}/pyc"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        run = partial(
            subprocess.run, check=True, env=environment, capture_output=True, text=True, timeout=300
        )
        first = [sys.executable, "-c", FIRST_RESULT, str(MODULE)]
        cold = min(float(run([*first, "plain"]).stdout) for _ in range(2))
        begin = time.perf_counter()
        built = run([sys.executable, "-m", "jitree", "cache", "warm", str(MODULE)]).stdout
        elapsed = time.perf_counter() - begin
        warm = min(float(run([*first, "native"]).stdout) for _ in range(3))
        size = sum(path.stat().st_size for path in Path(folder).glob("*.image"))
    print(built, end="")
    print(f"everything built in {elapsed:.2f} s, {size / 1024:.0f} KiB")
    print(
        f"first result beyond `import numpy`: plain {cold * 1e3:.0f} ms, from the cache {warm * 1e3:.0f} ms"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="times VMVX kernels: jitree against iree.runtime")
    parser.add_argument("--tier", default="native")
    parser.add_argument("--peer", default="vmvx", choices=("vmvx", "llvm-cpu"))
    parser.add_argument("--device", default="local-sync")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    parser.add_argument("--start", action="store_true")
    options = parser.parse_args()
    if options.start:
        return start_times()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(SOURCE, Path(folder)) if options.peer == "llvm-cpu" else MODULE
        return compare(options, Peer(program, options.device))


if __name__ == "__main__":
    sys.exit(main())
