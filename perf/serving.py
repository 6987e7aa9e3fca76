"""The serving example under load: lost, crossed and failed replies, and how long replies take.

python perf/serving.py --clients=200 --seconds=60

First as many requests as are answered, then Poisson arrivals at 70 % of that rate, with a reload in the
middle of each. The server runs on the first of this process's processors, the clients on the others. The time
of a reply is from the system call that sends the request to the arrival at the client's socket, as the kernel
notes it: what clients do before and after is not in it.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import jitree

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_ARRIVED = getattr(socket, "SO_TIMESTAMPNS", 35)
_TIME = struct.Struct("=qq")
_SECOND = 1_000_000_000


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


def load(port: int, clients: int, seconds: float, rate: float | None, processors: set[int]) -> dict[str, Any]:
    os.sched_setaffinity(0, processors)
    work = Load(port, clients, seconds, rate)
    began, taken = time.process_time(), work.run()
    p50, p99 = (np.percentile(work.times, [50, 99]) / 1e6).tolist()
    used = (time.process_time() - began) / taken
    return {
        "replies": len(work.times), "a second": len(work.times) / taken, **work.counted(),
        "p50 ms": p50, "p99 ms": p99, "ratio": p99 / p50, "clients' processor": used,
    }  # fmt: skip


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
    first, *others = sorted(os.sched_getaffinity(0))
    command = [sys.executable, str(EXAMPLES / "serving" / "serve.py"), "--port=0", "--device=local-sync"]
    command = ["taskset", "--cpu-list", str(first), *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        with multiprocessing.get_context("spawn").Pool(1) as pool, ThreadPoolExecutor(1) as thread:

            def measured(name: str, rate: float | None) -> dict[str, Any]:
                reload = thread.submit(reloaded, port, options.seconds / 2)
                arguments = port, options.clients, options.seconds, rate, set(others or [first])
                figures = pool.apply(load, arguments)
                figures["failed"] += reload.result() != 200
                print(name, {what: round(value, 2) for what, value in figures.items()}, flush=True)
                return figures

            full = measured("full load:", None)
            measured("at 70 %: ", 0.7 * full["a second"])
        server.terminate()
        assert server.wait(60) == 0


if __name__ == "__main__":
    main()
