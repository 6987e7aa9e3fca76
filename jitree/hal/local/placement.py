"""Places workers on processors by what the system says of these.

That is nodes, cores, caches and speed. Without a wish the workers of a device are placed nowhere, and this is
not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

from jitree.base.arguments import number_of
from jitree.base.platform.available_resources import available_processors
from jitree.base.platform.threads import allowed_processors, running_on
from jitree.base.platform.topology import ROOT, Processor, processors
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

_LEVELS: Final = {"efficiency": "low", "performance": "high"}
"""Other names of levels of performance."""
_FAVORED: Final = {
    "latency": ("compact", "high"),
    "throughput": ("scatter", "any"),
    "efficiency": ("compact", "low"),
}
"""Distribution and level of performance by what is favored."""
_CURRENT: Final = "current"
_KINDS: Final = {"Data": "d", "Instruction": "i", "Unified": "d"}


class Wishes(NamedTuple):
    """What the flags ``--task_topology_*`` say; their values have been checked."""

    nodes: str = _CURRENT
    performance_level: str = "any"
    distribution: str = "scatter"
    favor: str = ""
    mode: str = "physical_cores"


def place(wishes: Wishes, most: int, root: Path = ROOT) -> list[tuple[int | None, tuple[int, ...]]]:
    """A node (None: several) and the processors of its workers, for each queue: one worker for a core.

    INVALID_ARGUMENT for a node that is not there.
    """
    distribution, level = _FAVORED.get(wishes.favor, (wishes.distribution, wishes.performance_level))
    cores = _fit([row for row in processors(root) if _is_first(row)], _LEVELS.get(level, level))
    there = {row.node for row in cores}
    groups: list[tuple[int | None, list[Processor]]] = [(there.pop() if len(there) == 1 else None, cores)]
    if wishes.nodes != "all":
        groups = [(node, [row for row in cores if row.node == node]) for node in _nodes(wishes.nodes, cores)]
    most = min(most, max(1, available_processors() // len(groups)))
    return [
        (node, tuple(row.number for row in _distributed(members, distribution)[:most]))
        for node, members in groups
    ]


def _is_first(row: Processor) -> bool:
    """Whether it stands for its core: the first of those that this process may use."""
    return row.number == min(set(row.siblings) & allowed_processors(), default=row.number)


def _fit(cores: list[Processor], level: str) -> list[Processor]:
    """Those of a level of performance; all where all are alike."""
    speeds = {row.capacity for row in cores}
    if level == "any" or len(speeds) == 1:
        return cores
    return [row for row in cores if (row.capacity == max(speeds)) is (level == "high")]


def _nodes(wish: str, cores: list[Processor]) -> list[int]:
    there = sorted({row.node for row in cores})
    if wish == "numa":
        return there
    if wish == _CURRENT:
        here = running_on()
        here = cores[0].number if here is None else here
        return [next((row.node for row in cores if here in row.siblings), there[0])]
    wanted = [number_of(number) for number in wish.split(",")]
    for node in wanted:
        if node not in there:
            known = ", ".join(map(str, there))
            raise InvalidArgumentError(
                f"NUMA node id {node} is not present on this machine; {len(there)} node(s) available: {known}"
            )
    return wanted


def _distributed(cores: list[Processor], how: str) -> list[Processor]:
    """Cores in the order in which they get workers: one cache after the other, or in turn."""
    domains: dict[tuple[int, ...], list[Processor]] = {}
    for row in cores:
        domains.setdefault(row.sharing, []).append(row)
    if how == "compact":
        return [*chain.from_iterable(domains.values())]
    return [row for turn in zip_longest(*domains.values()) for row in turn if row is not None]


def group_lines(places: Sequence[int | None], name: str, root: Path = ROOT) -> list[str]:
    """What ``--dump_task_topologies`` prints of each worker, as IREE's tools lay it out."""
    rows = {row.number: row for row in processors(root)}
    lines = []
    for index, place in enumerate(places):
        row = None if place is None else rows.get(place)
        lines += [f"# group[{index}]: '{name}.{index}'"]
        if row is None:
            lines += ["#      processor: any allowed", "#       affinity: (unspecified)", "#"]
            continue
        smt = row.siblings.index(row.number)
        sharing = [str(other) for other, where in enumerate(places) if where in row.sharing]
        sizes = {f"l{cache.level}{_KINDS.get(cache.kind, '')}": cache.size for cache in row.caches}
        caches = ", ".join(f"{key}={size}" for key, size in sizes.items())
        lines += [
            f"#      processor: {row.number}",
            f"#     hardware ids: cluster_id={row.cluster}, physical_package_id={row.package}",
            f"#       affinity: group={row.node}, id={row.number}, smt={smt}",
            f"#  caches: {caches}",
            f"#  last level cache sharing: {len(sharing)} group(s): {', '.join(sharing)}",
            "#",
        ]
    return lines
