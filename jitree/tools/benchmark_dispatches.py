"""``--dispatch_statistics``: the time of each dispatch in a pass that is not measured itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from jitree.tools.benchmark_rows import BenchmarkRow

if TYPE_CHECKING:
    from jitree.api.function import Function


def dispatch_rows(
    function: Function, batch: Callable[[], object], calls: int, batch_size: int
) -> list[BenchmarkRow]:
    """One row a dispatch, with its time in one call. Makes as many calls as were measured."""
    batches = max(1, calls // batch_size)
    calls = batches * batch_size
    with function.session.profile() as profile:
        for _ in range(batches):
            batch()
    table = profile.table()
    if not len(table):
        print(f"jitree: no dispatch was measured: {table.note or 'the program has none'}", file=sys.stderr)
    whole = sum(row.total for row in table)
    rows = []
    for row in table:
        name = f"BM_{function.name}/{row.name}"
        counters = {"calls": row.calls / calls, "percent": 100 * row.total / whole}
        busy = row.total * (row.threads or 1.0)
        rows.append(BenchmarkRow(name, name, calls, row.total / calls, busy / calls, counters=counters))
    return rows
