"""The serving example under load: lost, crossed and failed replies, and how long replies take.

python perf/serving.py --clients=200 --seconds=60

Clients are another process, so that their time is not the server's. First as many requests as there can be,
then 70 % of that rate, with a reload in the middle of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import jitree

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], path: str, body: bytes
) -> tuple[int, bytes]:
    reader, writer = streams
    writer.write(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def load(port: int, clients: int, seconds: float, rate: float | None) -> dict[str, float]:
    """``rate``: requests a second of all clients; None = as many as are answered."""
    images = np.random.default_rng(1).random((256, 8, 8), np.float32)
    with jitree.Session("local-sync") as session:
        classify = session.load(EXAMPLES / "digits" / "digits.llvm-cpu.vmfb").classify
        right = [np.array(classify(image)) for image in images]
    bodies = [json.dumps({"image": image.tolist()}).encode() for image in images]
    times: list[float] = []
    wrong = failed = 0
    begun = time.perf_counter()

    async def client(number: int) -> None:
        nonlocal wrong, failed
        streams = await asyncio.open_connection("127.0.0.1", port)
        random = np.random.default_rng(number)
        due = begun + (random.random() * clients / rate if rate else 0)
        while time.perf_counter() < begun + seconds:
            if rate:
                due += random.exponential(clients / rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            chosen = int(random.integers(len(images)))
            start = time.perf_counter()
            status, data = await ask(streams, "/classify", bodies[chosen])
            times.append(time.perf_counter() - start)
            if status != 200:
                failed += 1
            elif not np.allclose(json.loads(data)["probabilities"], right[chosen], rtol=1e-4, atol=1e-6):
                wrong += 1
        streams[1].close()

    async def reload() -> None:
        nonlocal failed
        await asyncio.sleep(seconds / 2)
        status, _ = await ask(await asyncio.open_connection("127.0.0.1", port), "/reload", b"")
        failed += status != 200

    await asyncio.gather(reload(), *(client(number) for number in range(clients)))
    p50, p99 = np.percentile(times, [50, 99])
    return {
        "replies": len(times), "a second": len(times) / (time.perf_counter() - begun), "failed": failed,
        "crossed": wrong, "p50 ms": p50 * 1e3, "p99 ms": p99 * 1e3,
    }  # fmt: skip


def in_process(*arguments: object) -> dict[str, float]:
    return asyncio.run(load(*arguments))  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    command = [sys.executable, str(EXAMPLES / "serving" / "serve.py"), "--port=0", "--device=local-sync"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            full = pool.apply(in_process, (port, options.clients, options.seconds, None))
            print("full load:", {name: round(value, 2) for name, value in full.items()}, flush=True)
            rate = 0.7 * full["a second"]
            most = pool.apply(in_process, (port, options.clients, options.seconds, rate))
            print("at 70 %: ", {name: round(value, 2) for name, value in most.items()}, flush=True)
            print(f"p99 / p50 at 70 %: {most['p99 ms'] / most['p50 ms']:.2f}")
        server.terminate()
        assert server.wait(60) == 0


if __name__ == "__main__":
    main()
