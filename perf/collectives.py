"""What a collective takes of the host: communicators whose calls block, as jitree's do, against others.

python perf/collectives.py

Two processes have a GPU each, or share one as two machines: then the time of the GPU says nothing.
Each all-reduce is submitted, and asked for until NCCL has submitted it where calls do not block.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import time
from multiprocessing.connection import Connection

from jitree.cuda import nccl
from jitree.cuda.driver import CudaDriver

ROUNDS = 200
BYTES = 4096
FLOAT, SUM = 7, 0
IN_PROGRESS = 7
UNSTATED = -(1 << 31)


class Config(ctypes.Structure):
    """ncclConfig_t of 2.18."""

    _fields_ = (
        ("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int), ("others", ctypes.c_int * 3), ("network", ctypes.c_void_p),
        ("shares", ctypes.c_int),
    )  # fmt: skip


def member(rank: int, identifier: bytes, blocking: int, answer: Connection) -> None:
    """Gives the microseconds of the host a collective."""
    os.environ |= {"NCCL_HOSTID": f"member-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    driver = CudaDriver()
    device = driver.create_device_by_id(rank % len(driver.query_available_devices()))
    library = nccl.library()
    send, receive = (device.device_allocator.allocate(0x30, 0, BYTES).address for _ in range(2))
    join = nccl._open().ncclCommInitRankConfig
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21800, blocking, (UNSTATED,) * 3, None, UNSTATED)
    handle = ctypes.c_void_p()
    group = nccl.Identifier.from_buffer_copy(identifier)
    join(ctypes.byref(handle), 2, group, rank, ctypes.byref(config))
    communicator = handle.value or 0
    stream = int(device.stream.handle)  # type: ignore[attr-defined]

    def wait() -> None:
        while library.query("ncclCommGetAsyncError", communicator) == IN_PROGRESS:
            pass

    def reduce() -> None:
        library.call("ncclGroupStart")
        library.call("ncclAllReduce", send, receive, BYTES // 4, FLOAT, SUM, communicator, stream)
        library.call("ncclGroupEnd")
        wait()

    wait()
    for _ in range(3):
        reduce()
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        reduce()
    answer.send((time.perf_counter() - begun) / ROUNDS * 1e6)
    device.close()


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    context = multiprocessing.get_context("spawn")
    for blocking in (1, 0, 1, 0):
        identifier = nccl.library().new_identifier()
        ends = [context.Pipe() for _ in range(2)]
        members = [
            context.Process(target=member, args=(rank, identifier, blocking, ends[rank][1]))
            for rank in range(2)
        ]
        for process in members:
            process.start()
        times = [end.recv() for end, _ in ends]
        for process in members:
            process.join()
        what = "blocking" if blocking else "not blocking"
        print(f"{what:13}{' '.join(f'{found:6.1f}' for found in times)} us of the host")


if __name__ == "__main__":
    main()
