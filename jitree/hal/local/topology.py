"""Chooses how many workers a local-task device has, and their processors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from jitree.base.arguments import integer
from jitree.base.platform.available_resources import available_processors
from jitree.base.platform.threads import allowed_processors
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, OutOfRangeError

MAXIMUM_WORKERS: Final = 64
_RULE: Final = "# ===" + "-" * 72 + "==="
DEFAULT_SPIN_MICROSECONDS: Final = 20
"""How long a worker looks for more work before it parks; measured best between 20 and 50."""


class Topology(NamedTuple):
    """Lists the workers of one queue."""

    processors: tuple[int | None, ...]
    """One entry per worker: the processor it is pinned to, or None."""
    node: int | None = None
    """The NUMA node that the processors have been chosen of."""

    @property
    def worker_count(self) -> int:
        return len(self.processors)

    def format(self, index: int) -> str:
        """As ``--dump_task_topologies`` prints it."""
        from jitree.hal.local.placement import group_lines

        node = "any" if self.node is None else str(self.node)
        title = f"# topology[{index}]: {self.worker_count} worker groups, numa node: {node}"
        lines = [
            _RULE,
            title,
            _RULE,
            "#",
            *group_lines(homes(self, available_processors()), f"jitree-worker-{index}"),
        ]
        return "\n".join(lines) + "\n"


class TaskParameters(NamedTuple):
    """Holds what a local-task device is created with."""

    topologies: tuple[Topology, ...]
    """One per queue."""
    spin_microseconds: int = DEFAULT_SPIN_MICROSECONDS
    local_memory: int = 0
    """Bytes of local memory every worker offers to workgroups; 0 = what the executable asks for."""

    @property
    def pinned(self) -> bool:
        """Whether the user has named the processors."""
        return any(processor is not None for topology in self.topologies for processor in topology.processors)


def unpinned(count: int) -> Topology:
    """``count`` workers that may run on any processor."""
    return Topology((None,) * count)


def homes(topology: Topology, available: int) -> list[int | None]:
    """Gives workers their places, ``available`` processors being granted.

    They are where the topology says. Without one, a thread has a processor of its own if the workers have all
    processors that the system grants; otherwise it may run on any.

    Helpers that may run anywhere wait for one another on one processor where other programs have work for
    all. But helpers of several programs must not choose the same one while others are idle.
    """
    allowed = sorted(allowed_processors())
    places = list(topology.processors)
    if places == [None] * len(places) and len(places) >= len(allowed) == available:
        places[: len(allowed)] = allowed
    return places


def check_threads(count: int) -> int:
    """``count`` if a queue can have so many threads. OUT_OF_RANGE otherwise, INVALID_ARGUMENT for what is no
    integer."""
    number = integer("threads", count)
    if not 1 <= number <= MAXIMUM_WORKERS:
        raise OutOfRangeError(f"a queue can have 1 to {MAXIMUM_WORKERS} threads, not {number}")
    return number


_PLACING: Final = {
    "nodes": ("current", "numa", "all"),
    "performance_level": ("any", "low", "efficiency", "high", "performance"),
    "distribution": ("compact", "scatter"),
    "favor": ("latency", "throughput", "efficiency"),
    "mode": ("physical_cores",),
}
"""Parameters that place workers on processors, and the values of each."""
_NODES: Final = re.compile("[0-9]+(,[0-9]+)*")

_ALIASES: Final = {
    "threads": "group_count",
    "task_topology_group_count": "group_count",
    "task_topology_max_group_count": "max_group_count",
    "task_topology_cpu_ids": "cpu_ids",
    "task_worker_spin_us": "spin_us",
    "task_worker_local_memory": "local_memory",
    **{f"task_topology_{name}": name for name in _PLACING},
}
"""Other names of the parameters: flags of the reference's command lines, which carry over."""
_NAMES: Final = ("group_count", "max_group_count", "cpu_ids", "spin_us", "local_memory", *_PLACING)


class _Given(NamedTuple):
    """A parameter as the user wrote it: messages use that name."""

    name: str
    text: str


_ABSENT: Final = _Given("", "")


def parse_parameters(parameters: Mapping[str, str]) -> TaskParameters:
    """The parameters of a ``local-task`` URI.

    ``threads`` (or ``group_count``): workers, at most 64; ``max_group_count``: upper bound of the automatic
    choice; ``cpu_ids=0,1;2,3``: one pinned worker per processor, one queue per ``;`` group; ``spin_us``;
    ``local_memory`` in bytes. ``nodes``, ``performance_level``, ``distribution``, ``favor``, ``mode``
    place workers on cores, one queue for each node. The flag names of the reference work as well.
    INVALID_ARGUMENT for anything else, and for two names of one parameter.
    """
    values: dict[str, _Given] = {}
    for name, text in parameters.items():
        key = _ALIASES.get(name, name)
        if key not in _NAMES:
            raise InvalidArgumentError(
                f"local-task has no parameter '{name}'; it has: threads, {', '.join(_NAMES[1:])}"
            )
        other = values.setdefault(key, _Given(name, text))
        if other.name != name:
            raise InvalidArgumentError(
                f"local-task: '{other.name}' and '{name}' are names of one parameter; give it once"
            )
    spin = _integer(values, "spin_us", DEFAULT_SPIN_MICROSECONDS, 0, 1_000_000)
    local_memory = _integer(values, "local_memory", 0, 0, 1 << 30)
    pinned = values.get("cpu_ids", _ABSENT)
    if pinned.text:
        topologies = tuple(_pinned(pinned.name, group) for group in pinned.text.split(";"))
    else:
        count = _integer(values, "group_count", 0, 0, MAXIMUM_WORKERS)
        limit = _integer(values, "max_group_count", MAXIMUM_WORKERS, 1, MAXIMUM_WORKERS)
        if count or values.keys().isdisjoint(_PLACING):
            topologies = (unpinned(count or min(available_processors(), limit)),)
        else:
            topologies = _placed(values, limit)
    return TaskParameters(topologies, spin, local_memory)


def _placed(values: Mapping[str, _Given], limit: int) -> tuple[Topology, ...]:
    from jitree.hal.local.placement import Wishes, place

    wishes = Wishes(**{name: _wish(name, *values[name]) for name in _PLACING if name in values})
    return tuple(Topology(processors, node) for node, processors in place(wishes, limit))


def _wish(key: str, name: str, text: str) -> str:
    if text in _PLACING[key] or (key == "nodes" and _NODES.fullmatch(text)):
        return text
    numbers = ", or numbers of nodes as in 0,2" if key == "nodes" else ""
    raise InvalidArgumentError(
        f"local-task: {name}='{text}' is not one of {', '.join(_PLACING[key])}{numbers}"
    )


def _pinned(name: str, text: str) -> Topology:
    try:
        processors = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InvalidArgumentError(
            f"local-task: {name}='{text}' is not a list of processor numbers"
        ) from None
    allowed = allowed_processors()
    unknown = sorted(set(processors) - allowed)
    if unknown or len(processors) > MAXIMUM_WORKERS:
        raise OutOfRangeError(
            f"local-task: {name}: this process may not use processors {unknown}; it may use {sorted(allowed)}"
            if unknown
            else f"local-task: {name}: {len(processors)} workers; at most {MAXIMUM_WORKERS} in a queue"
        )
    return Topology(processors)


def _integer(values: Mapping[str, _Given], key: str, default: int, least: int, most: int) -> int:
    name, text = values.get(key, _ABSENT)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise InvalidArgumentError(f"local-task: {name}='{text}' is not an integer") from None
    if not least <= value <= most:
        raise InvalidArgumentError(f"local-task: {name}={value} is outside {least} to {most}")
    return value
