"""The serving example under load: lost, crossed and failed replies, and how long replies take.

python perf/serving.py --clients=200 --seconds=60

First as many requests as are answered, then Poisson arrivals at 70 % of that rate, with a reload in the
middle of each. The server runs on that of this process's processors which others use least, the clients on
the others. The time of a reply is from the system call that sends the request to the arrival at the client's
socket, as the kernel notes it: what clients do before and after is not in it. On a machine that is shared,
other programs take time of the server's processor: figures of the seconds in which they took less than a
twentieth of it are printed apart.
"""

from __future__ import annotations

import argparse
import heapq
import http.client
import json
import multiprocessing
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

import jitree

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_ARRIVED = getattr(socket, "SO_TIMESTAMPNS", 35)
_TIME = struct.Struct("=qq")
_SECOND = 1_000_000_000
_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET = 0.05
"""Of a processor: others may use so much."""


def now() -> int:
    """As the kernel's timestamps."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


def request(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body


class Client:
    """One connection: a request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.SOL_SOCKET, _ARRIVED, 1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.asked = -1
        """The number of the image that it waits for the answer to."""
        self.due = 0
        self._sent = 0
        self._received = b""

    def send(self, number: int, data: bytes) -> None:
        self.asked, self._received, self._sent = number, b"", now()
        self.socket.sendall(data)

    def receive(self) -> tuple[int, bytes] | None:
        """(time in ns, reply); None as long as some of it is to come."""
        data, known, _, _ = self.socket.recvmsg(1 << 16, 64)
        if not data:
            raise ConnectionError("the server has closed a connection")
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            return None
        (arrived,) = (_TIME.unpack(value) for _, kind, value in known if kind == _ARRIVED)
        return arrived[0] * _SECOND + arrived[1] - self._sent, self._received


class Load:
    """Requests of many clients, at a rate or as many as are answered."""

    def __init__(self, port: int, clients: int, seconds: float, rate: float | None) -> None:
        """``rate``: requests a second of all clients."""
        self._random = np.random.default_rng(0)
        self._clients = [Client(port) for _ in range(clients)]
        self._between = clients / rate * _SECOND if rate else 0.0
        self._seconds = seconds
        images = np.random.default_rng(1).random((256, 8, 8), np.float32)
        self._requests = [
            request("/classify", json.dumps({"image": image.tolist()}).encode()) for image in images
        ]
        with jitree.Session("local-sync") as session:
            classify = session.load(EXAMPLES / "digits" / "digits.llvm-cpu.vmfb").classify
            self._right = [np.array(classify(image)) for image in images]
        self.times: list[int] = []
        self.ends: list[int] = []
        """When each reply was taken."""
        self._replies: list[tuple[int, bytes]] = []

    def _waits(self) -> Iterator[int]:
        while True:
            yield from self._random.exponential(self._between, 4096).astype(np.int64).tolist()

    def run(self) -> float:
        """How many seconds it took until all were answered."""
        waits, begun = self._waits(), now()
        end = begun + int(self._seconds * _SECOND)
        idle: list[tuple[int, int]] = []
        with selectors.DefaultSelector() as selector:
            for number, client in enumerate(self._clients):
                selector.register(client.socket, selectors.EVENT_READ, number)
                client.due = begun + next(waits)
                heapq.heappush(idle, (client.due, number))
            while idle or any(client.asked >= 0 for client in self._clients):
                while idle and idle[0][0] <= now():
                    due, number = heapq.heappop(idle)
                    if due < end:
                        chosen = len(self._replies) * 7 + number
                        self._clients[number].send(chosen % 256, self._requests[chosen % 256])
                until = min(0.1, max(0.0, (idle[0][0] - now()) / _SECOND)) if idle else 0.1
                for key, _ in selector.select(until):
                    client = self._clients[key.data]
                    answer = client.receive()
                    if answer is not None:
                        self.times.append(answer[0])
                        self.ends.append(now())
                        self._replies.append((client.asked, answer[1]))
                        client.asked, client.due = -1, max(client.due, begun) + next(waits)
                        heapq.heappush(idle, (client.due if self._between else now(), key.data))
        for client in self._clients:
            client.socket.close()
        return (now() - begun) / _SECOND

    def counted(self) -> dict[str, int]:
        """Replies that are no answers, and those that are not the caller's."""
        failed = crossed = 0
        for number, reply in self._replies:
            head, _, body = reply.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                failed += 1
                continue
            given = json.loads(body)["probabilities"]
            crossed += not np.allclose(given, self._right[number], rtol=1e-4, atol=1e-6)
        return {"failed": failed, "crossed": crossed}


Times = npt.NDArray[np.int64]


def load(
    port: int, clients: int, seconds: float, rate: float | None, processors: set[int]
) -> tuple[dict[str, Any], Times, Times]:
    """Figures; the time that each reply took, and the second in which it came."""
    os.sched_setaffinity(0, processors)
    work = Load(port, clients, seconds, rate)
    began, taken = time.process_time(), work.run()
    used = (time.process_time() - began) / taken
    times = np.array(work.times)
    figures = {
        "replies": len(times), "a second": len(times) / taken, **work.counted(), **spread(times),
        "clients' processor": used,
    }  # fmt: skip
    return figures, times, np.array(work.ends) // _SECOND


def spread(times: Times) -> dict[str, float]:
    p50, p99 = (np.percentile(times, [50, 99]) / 1e6).tolist()
    return {"p50 ms": p50, "p99 ms": p99, "ratio": p99 / p50}


class Neighbours(Thread):
    """Finds out in which seconds others leave a processor to a process."""

    def __init__(self, processor: int, process: int) -> None:
        super().__init__(daemon=True)
        self._processor = processor
        self._own = Path(f"/proc/{process}/stat")
        self.others: dict[int, float] = {}
        """The part of the processor that others had, by second."""

    def run(self) -> None:
        before = self._read()
        while True:
            second = now() // _SECOND
            time.sleep((second + 1) - now() / _SECOND)
            found = self._read()
            if found is None or before is None:
                return
            self.others[second] = (found[0] - before[0] - found[1] + before[1]) / _TICKS
            before = found

    def _read(self) -> tuple[int, int] | None:
        """Ticks of the processor that were used, and those of the process."""
        try:
            own = self._own.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            return None
        return busy()[self._processor], int(own[11]) + int(own[12])

    def figures(self, times: Times, seconds: Times) -> dict[str, float]:
        known = [second for second in np.unique(seconds).tolist() if second in self.others]
        quiet = [second for second in known if self.others[second] < _QUIET]
        chosen = times[np.isin(seconds, quiet)]
        return {"seconds": len(quiet), "of": len(known)} | (spread(chosen) if len(chosen) else {})


def busy() -> dict[int, int]:
    """Ticks that each processor was used for, by whomever, or kept from this machine."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    rows = {line[0][3:]: [int(word) for word in line[1:9]] for line in lines if line[0].startswith("cpu")}
    idle = (3, 4)
    return {
        int(name): sum(ticks for place, ticks in enumerate(row) if place not in idle)
        for name, row in rows.items()
        if name
    }


def quietest(processors: Iterable[int]) -> int:
    """That which others use least, as far as a second shows."""
    before = busy()
    time.sleep(1)
    after = busy()
    return min(processors, key=lambda processor: after[processor] - before[processor])


def reloaded(port: int, after: float) -> int:
    """The status of a reload in the middle of the load."""
    time.sleep(after)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/reload", b"")
    return connection.getresponse().status


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    processors = os.sched_getaffinity(0)
    first = quietest(processors)
    command = [sys.executable, str(EXAMPLES / "serving" / "serve.py"), "--port=0", "--device=local-sync"]
    command = ["taskset", "--cpu-list", str(first), *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        neighbours = Neighbours(first, server.pid)
        neighbours.start()
        with multiprocessing.get_context("spawn").Pool(1) as pool, ThreadPoolExecutor(1) as thread:

            def measured(name: str, rate: float | None) -> dict[str, Any]:
                reload = thread.submit(reloaded, port, options.seconds / 2)
                arguments = port, options.clients, options.seconds, rate, processors - {first} or {first}
                figures, times, seconds = pool.apply(load, arguments)
                figures["failed"] += reload.result() != 200
                for row, values in ((name, figures), ("  quiet: ", neighbours.figures(times, seconds))):
                    print(row, {what: round(value, 2) for what, value in values.items()}, flush=True)
                return figures

            full = measured("full load:", None)
            measured("at 70 %: ", 0.7 * full["a second"])
        server.terminate()
        assert server.wait(60) == 0


if __name__ == "__main__":
    main()
