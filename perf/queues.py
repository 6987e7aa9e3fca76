"""Simulates requests that wait for replicas: how long, by how each finds its replica, and how many there are.

    python perf/queues.py [--replicas 10 1000 100000] [--load 0.7] [--batch 8] [--row 0.1]

A replica does a batch at a time, in 1 + row * (rows - 1) units of time: what waits when it is free, as
batches of `jitree.integrations.batching` are made. Requests come at random (Poisson), at `load` of what
replicas with full batches can do. Each looks at some replicas chosen at random and joins the shortest queue.
Times are from arrival to reply, in units of what a call with one row takes.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque


def times(
    replicas: int, load: float, looks: int, requests: int, batch: int = 1, row: float = 0.0, seed: int = 0
) -> list[float]:
    """Of each request, in the order of the replies, less the first tenth: queues are short then."""
    chance = random.Random(seed)
    rate = load * replicas * batch / (1 + row * (batch - 1))
    waiting: list[deque[float]] = [deque() for _ in range(replicas)]
    lengths = [0] * replicas  # with the rows of the batch in progress
    ends: list[tuple[float, int, list[float]]] = []
    found: list[float] = []

    def begin(replica: int, now: float) -> None:
        queue = waiting[replica]
        rows = [queue.popleft() for _ in range(min(batch, len(queue)))]
        heapq.heappush(ends, (now + 1 + row * (len(rows) - 1), replica, rows))

    def finish() -> None:
        now, replica, rows = heapq.heappop(ends)
        found.extend(now - arrival for arrival in rows)
        lengths[replica] -= len(rows)
        if waiting[replica]:
            begin(replica, now)

    now = 0.0
    for _ in range(requests):
        now += chance.expovariate(rate)
        while ends and ends[0][0] <= now:
            finish()
        replica = min((int(chance.random() * replicas) for _ in range(looks)), key=lengths.__getitem__)
        waiting[replica].append(now)
        lengths[replica] += 1
        if lengths[replica] == 1:
            begin(replica, now)
    while ends:
        finish()
    return found[requests // 10 :]


def share(found: list[float], part: float) -> float:
    """The time that this part of the requests does not exceed."""
    return sorted(found)[int(part * (len(found) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 1000, 100_000])
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--row", type=float, default=0.1)
    options = parser.parse_args()
    for replicas in options.replicas:
        for looks in (1, 2):
            requests = max(100_000, 20 * replicas)
            found = times(replicas, options.load, looks, requests, options.batch, options.row)
            p50, p99 = share(found, 0.5), share(found, 0.99)
            print(
                f"{replicas:7} replicas, looks at {looks}: p50 {p50:5.2f}, p99 {p99:5.2f}, {p99 / p50:4.2f} x"
            )


if __name__ == "__main__":
    main()
