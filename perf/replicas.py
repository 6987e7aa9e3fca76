"""What limits many replicas: what one costs on this node, what a store must send, how long requests wait.

python perf/replicas.py                     # measures one node, then computes 10, 1,000 and 100,000 replicas
python perf/replicas.py --simulate-only     # the queues alone

Only the node is measured. Times of transfers are arithmetic; waits are simulated with requests that come at
random and take equal time.
"""

from __future__ import annotations

import argparse
import heapq
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jitree

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
REPLICAS = 10, 1_000, 100_000
_START = """
import sys, jitree, numpy
session = jitree.Program(sys.argv[1], device="local-sync").open()
numpy.asarray(session.modules["module"].classify(numpy.zeros((8, 8), numpy.float32)))
"""


def start(module: Path, cache: str) -> float:
    """Seconds of a process from its start to its end, with one result."""
    begun = time.perf_counter()
    environment = os.environ | {"JITREE_CACHE_DIR": cache}
    subprocess.run([sys.executable, "-c", _START, str(module)], check=True, env=environment)
    return time.perf_counter() - begun


def read_rate(size: int) -> tuple[float, float]:
    """Bytes a second of a file that is read: from the disk, and from memory that the node has it in."""
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        rates = []
        for _ in range(2):
            begun = time.perf_counter()
            with open(file.name, "rb", buffering=0) as again:
                while again.read(1 << 20):
                    pass
            rates.append(size / (time.perf_counter() - begun))
    return rates[0], rates[1]


def measure() -> None:
    for kind in ("llvm-cpu", "vmvx"):
        module = EXAMPLES / "digits" / f"digits.{kind}.vmfb"
        program = jitree.Program(module, device="local-sync")
        with tempfile.TemporaryDirectory() as cache:
            start(module, cache)  # Python's own files are in memory after it
            cold = min(start(module, cache) for _ in range(3))
            begun = time.perf_counter()
            warm = [sys.executable, "-m", "jitree", "cache", "warm", str(module)]
            environment = os.environ | {"JITREE_CACHE_DIR": cache}
            subprocess.run(warm, check=True, stdout=subprocess.DEVNULL, env=environment)
            compiled = time.perf_counter() - begun
            kept = sum(path.stat().st_size for path in Path(cache).rglob("*") if path.is_file())
            again = min(start(module, cache) for _ in range(3))
        print(
            f"{kind}: module {module.stat().st_size} bytes, pickle {len(pickle.dumps(program))} bytes; "
            f"a process with one result {cold:.2f} s, `jitree cache warm` {compiled:.2f} s and {kept} bytes, "
            f"then {again:.2f} s"
        )
    disk, memory = read_rate(256 << 20)
    print(f"a file of 256 MiB is read at {disk / 1e9:.2f} GB/s, again at {memory / 1e9:.2f} GB/s")


def from_store(nodes: int, size: float, node_rate: float, store_rate: float) -> float:
    """Seconds until all nodes have ``size`` bytes that one store sends; rates in bytes a second."""
    return max(size / node_rate, nodes * size / store_rate)


def by_doubling(nodes: int, size: float, node_rate: float) -> float:
    """The same where each node that has all bytes sends them to one that has none."""
    return nodes.bit_length() * size / node_rate


def arrivals(replicas: int, requests: int, load: float, source: random.Random) -> Iterator[float]:
    """Times of requests, in units of what one takes."""
    now = 0.0
    for _ in range(requests):
        now += source.expovariate(load * replicas)
        yield now


def routed(replicas: int, requests: int, load: float, choices: int, seed: int = 1) -> list[float]:
    """How long requests wait that go to the replica that is free first of ``choices`` taken at random."""
    source = random.Random(seed)
    free = [0.0] * replicas
    waits = []
    for now in arrivals(replicas, requests, load, source):
        chosen = min((source.randrange(replicas) for _ in range(choices)), key=free.__getitem__)
        begin = max(now, free[chosen])
        free[chosen] = begin + 1
        waits.append(begin - now)
    return waits


def queued(replicas: int, requests: int, load: float, seed: int = 1) -> list[float]:
    """How long requests wait in one queue of all replicas."""
    free = [0.0] * replicas
    waits = []
    for now in arrivals(replicas, requests, load, random.Random(seed)):
        begin = max(now, free[0])
        heapq.heapreplace(free, begin + 1)
        waits.append(begin - now)
    return waits


def percentile(waits: list[float], part: float) -> float:
    return sorted(waits)[int(part * (len(waits) - 1))]


def simulate(load: float) -> None:
    for replicas in REPLICAS:
        requests = max(100_000, 20 * replicas)
        ways = {
            "at random": routed(replicas, requests, load, 1),
            "better of two": routed(replicas, requests, load, 2),
            "one queue": queued(replicas, requests, load),
        }
        steady = {name: waits[requests // 2 :] for name, waits in ways.items()}
        shown = ", ".join(
            f"{name} p50 {1 + percentile(waits, 0.5):.2f} p99 {1 + percentile(waits, 0.99):.2f}"
            for name, waits in steady.items()
        )
        print(f"{replicas} replicas at {load:.0%}, in times of one request: {shown}", flush=True)


def transfer(size: float, node_rate: float, store_rate: float) -> None:
    for nodes in REPLICAS:
        store, doubling = from_store(nodes, size, node_rate, store_rate), by_doubling(nodes, size, node_rate)
        print(
            f"{size / 1e9:g} GB to {nodes} nodes: {store:.0f} s from a store, {doubling:.0f} s node to node"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--size", type=float, default=16e9, help="bytes of parameters")
    parser.add_argument("--node_rate", type=float, default=1.25e9, help="bytes a second that a node takes")
    parser.add_argument(
        "--store_rate", type=float, default=12.5e9, help="bytes a second that the store sends"
    )
    parser.add_argument("--simulate-only", action="store_true")
    options = parser.parse_args()
    if not options.simulate_only:
        measure()
        transfer(options.size, options.node_rate, options.store_rate)
    simulate(options.load)


if __name__ == "__main__":
    main()
