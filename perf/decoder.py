"""Times the steps of a decoder on a GPU: jitree against the cuda driver of iree.runtime, the same module.

    python perf/decoder.py [--device cuda] [--module FILE] [--steps 40] [--rounds 15] [--only-own]

A step takes a token, its position and the caches of six layers, and gives the next token's logits and new
caches. The position lies on the device, where the program reads it; it moves in each step, the caches are
those that the last step gave, and only the logits are read back. The figure is the median time of a step of
iree.runtime over that of jitree, measured in turn in one run (above 1: jitree is faster). `busy` is the part
of jitree's time in which the GPU works: the launches of a step, made again and again without a break.
Needs the extras `perf` and `cuda`, and an NVIDIA GPU; with another device a `--module` that
`programs/decoder.mlir` was compiled to for it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, peer_function
from comparison import row

import jitree

MODULE = Path(__file__).parent / "programs" / "decoder_cuda.vmfb"
LAYERS, WIDTH, HIDDEN, LENGTH, TOKENS = 6, 384, 1536, 256, 2048
_WARM_STEPS = 20
"""After which a step takes the way that it takes from then on."""

Place = Callable[[Any], Any]


def weights() -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    shapes = ((TOKENS, WIDTH), (WIDTH,), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    return [(random.standard_normal(shape) * 0.05).astype(np.float32) for shape in shapes]


class Decoder:
    """The state of one sequence."""

    def __init__(self, function: Callable[..., Sequence[Any]], place: Place, read: Place) -> None:
        self._function = function
        self._place = place
        self._read = read
        self._weights = [place(array) for array in weights()]
        self._caches = [place(np.zeros((LENGTH, WIDTH), np.float32)) for _ in range(2 * LAYERS)]
        self._token = 1
        self.position = 0

    def step(self) -> np.ndarray[Any, Any]:
        """The logits after one more token."""
        token, position = np.array([self._token], np.int32), np.array(self.position % LENGTH, np.int32)
        logits, *self._caches = self._function(
            self._place(token), self._place(position), *self._weights, *self._caches
        )
        found: np.ndarray[Any, Any] = self._read(logits)
        self._token = int(found.argmax())
        self.position += 1
        return found

    def times(self, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            start = time.perf_counter()
            self.step()
            found.append(time.perf_counter() - start)
        return found


def busy_seconds(session: jitree.Session) -> float:
    """Of the graph that steps are launched as, per launch."""
    pool: Any = session.context.table.handle_pool
    device: Any = session.device
    graphs = [graph for entry in pool._programs._programs.values() for graph in entry[2].kept[0]]
    graph = max(graphs, key=lambda graph: len(graph._nodes[0]))
    api, stream, count = device.context.api, device.stream.handle, 20
    device.context.enter()
    times = []
    for _ in range(5):
        api.synchronize_stream(stream)
        start = time.perf_counter()
        for _ in range(count):
            api.launch_graph(graph._executable, stream)
        api.synchronize_stream(stream)
        times.append((time.perf_counter() - start) / count)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description="times a decoder on a GPU: jitree against iree.runtime")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--module", type=Path, default=MODULE)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only-own", action="store_true")
    options = parser.parse_args()
    with jitree.Session(device=options.device) as session:
        own = Decoder(session.load(options.module).step, session.to_device, np.asarray)
        decoders = [own]
        if not options.only_own:
            function, place = peer_function(Case("decoder", options.module, "step", ()), options.device)
            decoders.append(Decoder(function, place, lambda array: array.to_host()))
        for _ in range(_WARM_STEPS):
            logits = [decoder.step() for decoder in decoders]
            np.testing.assert_allclose(logits[0], logits[-1], rtol=2e-3, atol=2e-3)
        times: list[list[float]] = [[] for _ in decoders]
        for _ in range(options.rounds):
            for decoder, found in zip(decoders, times, strict=True):
                found += decoder.times(options.steps)
        medians = [statistics.median(found) for found in times]
        print(row("decoder", medians[-1], medians[0]))
        if options.device.startswith("cuda"):
            busy = busy_seconds(session)
            print(f"busy {busy * 1e6:.1f} us, {busy / medians[0]:.0%} of a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
