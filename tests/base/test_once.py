"""What a process makes once."""

from __future__ import annotations

import threading

from jitree.base.memory import once
from tests.hal.helpers import TIMEOUT

THREADS = 4


def test_threads_that_come_at_once_get_the_same() -> None:
    together = threading.Barrier(THREADS)
    seen: list[object] = []

    @once
    def made() -> object:
        together.wait(TIMEOUT)
        return object()

    threads = [threading.Thread(target=lambda: seen.append(made())) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert len(seen) == THREADS and {id(item) for item in [*seen, made()]} == {id(seen[0])}
