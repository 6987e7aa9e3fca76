"""Where workers go on a machine of two nodes, two kinds of cores and several caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitree.errors import InvalidArgumentError
from jitree.hal.local import placement
from jitree.hal.local.placement import Wishes, place
from jitree.hal.local.topology import parse_parameters

CORES = 8
"""Two threads each; processors of node 0 come first. The last core of a node is a slow one."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cores 0 to 3 are in node 0, 4 to 7 in node 1; two cores share a last cache."""
    for processor in range(2 * CORES):
        core = processor // 2
        folder = tmp_path / "cpu" / f"cpu{processor}"
        (folder / f"node{core // 4}").mkdir(parents=True)
        first = core // 2 * 4
        for name, text in {
            "topology/physical_package_id": str(core // 4),
            "topology/thread_siblings_list": f"{core * 2}-{core * 2 + 1}",
            "cpu_capacity": "512" if core % 4 == 3 else "1024",
            "cache/index0/type": "Data",
            "cache/index0/level": "1",
            "cache/index0/size": "32K",
            "cache/index0/shared_cpu_list": f"{core * 2},{core * 2 + 1}",
            "cache/index1/type": "Unified",
            "cache/index1/level": "3",
            "cache/index1/size": "16M",
            "cache/index1/shared_cpu_list": f"{first}-{first + 3}",
        }.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(2 * CORES)))
    monkeypatch.setattr(placement, "available_processors", lambda: 2 * CORES)
    return tmp_path


@pytest.mark.parametrize(
    ("wishes", "most", "groups"),
    [
        (Wishes("all"), 64, [(None, (0, 4, 8, 12, 2, 6, 10, 14))]),
        (Wishes("all", distribution="compact"), 64, [(None, (0, 2, 4, 6, 8, 10, 12, 14))]),
        (Wishes("all"), 3, [(None, (0, 4, 8))]),
        (Wishes("all", distribution="compact"), 3, [(None, (0, 2, 4))]),
        (Wishes("numa"), 2, [(0, (0, 4)), (1, (8, 12))]),
        (Wishes("1"), 2, [(1, (8, 12))]),
        (Wishes("1,0", distribution="compact"), 2, [(1, (8, 10)), (0, (0, 2))]),
        (Wishes("all", "low"), 64, [(None, (6, 14))]),
        (Wishes("0", "performance"), 64, [(0, (0, 4, 2))]),
        (Wishes("0", favor="latency"), 64, [(0, (0, 2, 4))]),
        (Wishes("0", "low", "compact", favor="throughput"), 64, [(0, (0, 4, 2, 6))]),
        (Wishes("numa", favor="efficiency"), 64, [(0, (6,)), (1, (14,))]),
    ],
)
def test_workers_go_where_the_flags_say(
    machine: Path, wishes: Wishes, most: int, groups: list[tuple[int | None, tuple[int, ...]]]
) -> None:
    assert place(wishes, most, machine) == groups


def test_a_node_that_is_not_there(machine: Path) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"node id 2 is not present .* 2 node\(s\) available: 0, 1"
    ):
        place(Wishes("0,2"), 64, machine)


def test_what_is_printed_of_workers(machine: Path) -> None:
    assert placement.group_lines([9, None, 10], "worker", machine) == [
        "# group[0]: 'worker.0'",
        "#      processor: 9",
        "#     hardware ids: cluster_id=0, physical_package_id=1",
        "#       affinity: group=1, id=9, smt=1",
        "#  caches: l1d=32768, l3d=16777216",
        "#  last level cache sharing: 2 group(s): 0, 2",
        "#",
        "# group[1]: 'worker.1'",
        "#      processor: any allowed",
        "#       affinity: (unspecified)",
        "#",
        "# group[2]: 'worker.2'",
        "#      processor: 10",
        "#     hardware ids: cluster_id=0, physical_package_id=1",
        "#       affinity: group=1, id=10, smt=0",
        "#  caches: l1d=32768, l3d=16777216",
        "#  last level cache sharing: 2 group(s): 0, 2",
        "#",
    ]


def test_devices_are_made_by_wishes() -> None:
    (here,) = parse_parameters({"nodes": "current"}).topologies
    assert here.node is not None and None not in here.processors
    assert parse_parameters({"nodes": "current", "threads": "3"}).topologies[0].processors == (None,) * 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("nodes", "current, numa, all, or numbers of nodes as in 0,2"),
        ("task_topology_performance_level", "any, low, efficiency, high, performance"),
        ("distribution", "compact, scatter"),
        ("task_topology_favor", "latency, throughput, efficiency"),
        ("mode", "physical_cores"),
    ],
)
def test_other_values_are_refused(name: str, values: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"local-task: {name}='x' is not one of {values}$"):
        parse_parameters({name: "x"})
