"""Rows a second of `map_batches` on Ray against the same number of plain processes.

python perf/ray_rows.py --rows=1000000 --processes=2        # needs pip install '.[ray]'
python perf/ray_rows.py --kill                              # one of the actors, by SIGKILL, in the middle

Both are given numbers of rows that are made where they are used, and give back one number for each row.
Starting processes and opening the program is not counted: on Ray the time begins when each actor has given
rows. Each row has to be there once, with the digit that this process finds. Blocks of the source have four
batches: each is a task of Ray, which has some 0.1 s beside its work, so that actors waited for half of
the time when a block was one batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import jitree
from jitree.integrations.ray import Predictor

BLOCK = 8192
SOURCE = 4 * BLOCK
"""Rows of a block of the source."""


def images(ids: Any) -> dict[str, Any]:
    """Rows made of their numbers."""
    ids = np.asarray(ids)
    return {
        "id": ids,
        "image": ((ids[:, None] + np.arange(64)) % 17 / 16).astype(np.float32).reshape(-1, 8, 8),
    }


def answered(predictor: Predictor, batch: dict[str, Any]) -> dict[str, Any]:
    made = predictor(images(batch["id"]))
    return {"id": made["id"], "digit": made["output0"].argmax(1)}


class Actor:
    def __init__(self, program: jitree.Program) -> None:
        self._predictor = Predictor(program, "classify", inputs=("image",))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return answered(self._predictor, batch)


class NamedActor(Actor):
    """Says which process it is."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        made = super().__call__(batch)
        return made | {"process": np.full_like(made["id"], os.getpid())}


def check(program: jitree.Program, rows: int, blocks: list[dict[str, Any]]) -> None:
    """AssertionError unless each row is there once, with its digit."""
    ids, digits = (np.concatenate([block[name] for block in blocks]) for name in ("id", "digit"))
    assert np.array_equal(np.sort(ids), np.arange(rows))
    different = images(np.arange(17))["image"]
    expected = np.array(
        [np.asarray(program.open()["module.classify"](image)).argmax() for image in different]
    )
    assert np.array_equal(digits, expected[ids % 17])


def part(predictor: Predictor, start: int, end: int) -> dict[str, Any]:
    return answered(predictor, {"id": np.arange(start, end)})


def plain(program: jitree.Program, rows: int, processes: int) -> float:
    predictor = Predictor(program, "classify", inputs=("image",))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        work = partial(part, predictor)
        list(pool.map(work, [0] * 4 * processes, [2] * 4 * processes))
        begun = time.perf_counter()
        starts = range(0, rows, BLOCK)
        made = list(pool.map(work, starts, [min(start + BLOCK, rows) for start in starts]))
        seconds = time.perf_counter() - begun
    check(program, rows, made)
    return rows / seconds


def on_ray(program: jitree.Program, rows: int, processes: int, kills: bool) -> float:
    import ray

    ray.init(num_cpus=processes + 1, include_dashboard=False, log_to_driver=False)  # one makes the numbers
    ray.data.DataContext.get_current().enable_progress_bars = False
    source = ray.data.range(rows, override_num_blocks=-(-rows // SOURCE))
    strategy = ray.data.ActorPoolStrategy(size=processes)
    done = source.map_batches(
        NamedActor, fn_constructor_args=(program,), compute=strategy, batch_size=BLOCK, num_cpus=1
    )
    blocks: list[dict[str, Any]] = []
    count, first, warm = 0, 0.0, 0
    seen: set[int] = set()
    for block in done.iter_batches(batch_size=None):
        blocks.append(block)
        count += len(block["id"])
        seen.update(np.unique(block["process"]).tolist())
        if not first and len(seen) >= processes:
            first, warm = time.perf_counter(), count
        if kills and count > rows // 2:
            os.kill(int(block["process"][0]), signal.SIGKILL)
            print(f"killed process {block['process'][0]} after {count} rows", flush=True)
            kills = False
    seconds = time.perf_counter() - first
    ray.shutdown()
    assert first, "not all actors had rows; state more of them"
    check(program, rows, blocks)
    print(f"{count} rows of {len(seen)} processes, each once and right", flush=True)
    return (count - warm) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    examples = Path(__file__).resolve().parent.parent / "examples"
    program = jitree.Program(examples / "digits" / "digits.llvm-cpu.vmfb", device="local-sync")
    for _ in range(options.rounds):
        alone = plain(program, options.rows, options.processes)
        there = on_ray(program, options.rows, options.processes, options.kill)
        print(f"plain {alone:.0f} rows/s, Ray {there:.0f} rows/s, ratio {there / alone:.3f}", flush=True)


if __name__ == "__main__":
    main()
