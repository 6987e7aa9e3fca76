"""Times bytecode without tensors: jitree's tiers against iree.runtime, the same module in one process.

    python perf/vm.py [--tier native] [--seconds 0.5] [--only REGEX]

Needs the `perf` extra. The figure of a program is the median time of iree.runtime over the median time of
jitree, both measured alternately in one run (above 1: jitree is faster); the last line is the geometric mean.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from comparison import alternate, row, summary

import jitree
from jitree.tools.cache import warm

MODULE = Path(__file__).parent / "programs" / "vm.vmfb"
PROGRAMS = {
    "call_chain": 300_000,
    "sieve": 1_000_000,
    "gcd_sum": 400,
    "matmul": 96,
    "list_sum": 300_000,
    "machine": 1_000_000,
    "newton": 100_000,
}
"""Export and argument: each runs for some 20 to 100 ms in iree.runtime."""

Program = Callable[[int], object]


def peer_functions() -> Callable[[str], Program]:
    import iree.runtime

    context = iree.runtime.SystemContext(config=iree.runtime.Config("local-sync"))
    context.add_vm_module(iree.runtime.VmModule.mmap(context.instance, str(MODULE)))
    return lambda name: context.modules["vm"][name]


def main() -> int:
    parser = argparse.ArgumentParser(description="times bytecode: jitree's tiers against iree.runtime")
    parser.add_argument("--tier", default="native")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    peer = peer_functions()
    ratios = []
    warm([str(MODULE)])  # says what is in the cache and how long the rest took
    with jitree.Session(device="local-sync", tier=options.tier) as session:
        module = session.load(MODULE)
        for name, argument in PROGRAMS.items():
            if not re.search(options.only, name):
                continue
            theirs, ours = peer(name), module[name]
            if theirs(argument) != ours(argument):
                print(f"{name}: results differ: {theirs(argument)} and {ours(argument)}", file=sys.stderr)
                return 1
            calls = [partial(function, argument) for function in (theirs, ours)]
            peer_time, own_time = alternate(calls, options.seconds)
            ratios.append(peer_time / own_time)
            print(row(name, peer_time, own_time), flush=True)
    print(summary(ratios))
    return 0


if __name__ == "__main__":
    sys.exit(main())
