"""Says how processors lie together: nodes, cores, caches, speed.

Linux has a folder for each. macOS says nothing of the kind: a processor is then its own core, in node 0, as
fast as others, and has no caches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jitree.base.platform.threads import allowed_processors
from jitree.base.records import NamedTuple
from jitree.errors import pass_interruption

ROOT: Final = Path("/sys/devices/system")


class Cache(NamedTuple):
    """Is a cache that a processor uses."""

    kind: str
    """``Data``, ``Instruction`` or ``Unified``."""
    level: int
    size: int
    """Bytes."""
    sharing: tuple[int, ...]
    """The processors that share it."""


class Processor(NamedTuple):
    """What the system says of a logical processor."""

    number: int
    node: int
    package: int
    cluster: int
    siblings: tuple[int, ...]
    """The processors of its core."""
    capacity: int
    """How fast it is, compared with others."""
    caches: tuple[Cache, ...]
    sharing: tuple[int, ...]
    """The processors that share its last cache."""


def processors(root: Path = ROOT) -> list[Processor]:
    """The processors that this process may use."""
    return [describe(number, root) for number in sorted(allowed_processors())]


def describe(number: int, root: Path = ROOT) -> Processor:
    """What is known of the processor of that number."""
    folder = root / "cpu" / f"cpu{number}"
    caches = tuple(_cache(place, number) for place in sorted(folder.glob("cache/index*")))
    topology = folder / "topology"
    node = next((int(path.name[4:]) for path in folder.glob("node[0-9]*")), 0)
    capacity = _text(folder / "cpu_capacity") or _text(folder / "cpufreq" / "cpuinfo_max_freq")
    return Processor(
        number,
        node,
        int(_text(topology / "physical_package_id") or 0),
        int(_text(topology / "cluster_id") or 0),
        numbers(_text(topology / "thread_siblings_list")) or (number,),
        int(capacity or 0),
        caches,
        caches[-1].sharing if caches else (number,),
    )


def _cache(folder: Path, number: int) -> Cache:
    sharing = numbers(_text(folder / "shared_cpu_list")) or (number,)
    size = _bytes(_text(folder / "size"))
    return Cache(_text(folder / "type"), int(_text(folder / "level") or 0), size, sharing)


def _text(path: Path) -> str:
    """What a file of the system says; nothing where there is none, as in containers."""
    try:
        return path.read_text().strip()
    except OSError as error:
        pass_interruption(error)
        return ""


def numbers(text: str) -> tuple[int, ...]:
    """``0-2,8`` → 0, 1, 2, 8."""
    ends = (part.partition("-") for part in text.split(",") if part)
    return tuple(number for first, _, last in ends for number in range(int(first), int(last or first) + 1))


def _bytes(text: str) -> int:
    return int(text.rstrip("KM") or 0) << {"K": 10, "M": 20}.get(text[-1:], 0)
