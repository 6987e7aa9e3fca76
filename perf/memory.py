"""Shows what memory calls and sessions keep: jitree beside iree.runtime.

    python perf/memory.py [--calls 1000000] [--sessions 20]

* calls: growth of resident memory over so many turns of three calls with results read back, after the first
  quarter.
* sessions: resident memory after sessions with a model have been opened, used and closed, over that before
  them, in percent. One that is not counted fills the caches of the process.

Needs the extra `perf`.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import jitree

FOLDER = Path(__file__).parent
MODULE = FOLDER / "programs" / "call.vmfb"
DISPATCHES = FOLDER / "programs" / "dispatches.vmfb"
X = np.ones(16, np.float32)


def resident() -> int:
    """Bytes of memory that the process has now."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def own_call() -> Callable[[], object]:
    session = jitree.Session("local-sync", tier="fast")
    module = session.load(MODULE)
    add, accumulate, numbers = module.add, module.accumulate, module.integers
    device = session.to_device(X)

    def call() -> object:
        numbers(1, 2)
        accumulate(X)
        return np.asarray(add(device, X))

    return call


def peer_call() -> Callable[[], object]:
    import iree.runtime

    config = iree.runtime.Config("local-sync")
    context = iree.runtime.SystemContext(config=config)
    context.add_vm_module(iree.runtime.VmModule.mmap(context.instance, str(MODULE)))
    module = context.modules.call
    add, accumulate, numbers = module.add, module.accumulate, module.integers
    device = iree.runtime.asdevicearray(config.device, X)

    def call() -> object:
        numbers(1, 2)
        accumulate(X)
        return add(device, X).to_host()

    return call


def growth(call: Callable[[], object], count: int) -> int:
    """Bytes of resident memory that the calls after the first quarter have added."""
    for _ in range(count // 4):
        call()
    before = resident()
    for _ in range(count - count // 4):
        call()
    return resident() - before


def use_session() -> None:
    with jitree.Session("local-sync", tier="fast") as session:
        chain = session.load(DISPATCHES).chain
        large = [session.to_device(np.ones(1 << 20, np.float32)) for _ in range(8)]
        for _ in range(10):
            np.asarray(chain(np.ones(64, np.float32)))
        del large


def main() -> int:
    parser = argparse.ArgumentParser(description="memory of calls and sessions, beside iree.runtime")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=20)
    options = parser.parse_args()
    for name, make in (("jitree", own_call), ("iree.runtime", peer_call)):
        added = growth(make(), options.calls)
        print(f"{options.calls} calls, {name}: {added / 1024:+.0f} KiB", flush=True)
    use_session()
    before = resident()
    for _ in range(options.sessions):
        use_session()
    after = resident()
    print(
        f"{options.sessions} sessions: {before / 2**20:.1f} MiB before, {after / 2**20:.1f} after "
        f"({(after / before - 1) * 100:+.1f} %)",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
