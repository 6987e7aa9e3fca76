"""How many processors a process may use, and how much memory it may still take."""

from __future__ import annotations

import io
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from jitree.base.platform import available_resources
from jitree.base.platform.available_resources import available_memory, available_processors, processor_quota
from jitree.codegen import image
from jitree.codegen.image import worklist
from jitree.hal.local.topology import parse_parameters

_LIMITED = """
import resource, sys
from jitree.base.platform.available_resources import available_memory
limit = 1 << 40
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = available_memory()
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, limit))
print(before, available_memory())
"""


def test_available_processors_respects_affinity() -> None:
    assert 1 <= available_processors() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "150000 100000"}, 1.5),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/not/there\n", {"cpu.max": "50000 100000"}, 0.5),
        ("4:cpu,cpuacct:/x\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000",
                                "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}, 3.0),
        ("4:cpu,cpuacct:/x\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("0::/\n4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "50000"}, 2.0),
        ("0::/a\n", {"a/cpu.max": "garbage"}, None),
        ("0::/a\n", {"a/cpu.max": "1000 0"}, None),
        ("0::/\udcff\n", {"cpu.max": "200000 100000"}, 2.0),
        ("", {}, None),
    ],
)  # fmt: skip
def test_cgroup_quota(tmp_path: Path, membership: str, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "membership").write_bytes(os.fsencode(membership))
    assert processor_quota(tmp_path / "cgroup", tmp_path / "membership") == expected


def test_cgroup_quota_without_proc(tmp_path: Path) -> None:
    assert processor_quota(tmp_path, tmp_path / "nothing") is None


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    """Has the process eight processors, and a quota of so many processors' time."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: set(range(8)))

    def grant(value: float | None) -> None:
        monkeypatch.setattr(available_resources, "_seen", (0.0, None))
        monkeypatch.setattr(available_resources, "processor_quota", lambda: value)

    return grant


@pytest.mark.parametrize(
    ("granted", "count"), [(None, 8), (0.1, 1), (1.0, 1), (1.5, 2), (2.0, 2), (7.01, 8), (64.0, 8)]
)
def test_whoever_counts_processors_knows_the_quota(
    granted: float | None, count: int, quota: Callable[[float | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy of waiting, threads of a device, copies of a builder."""
    quota(granted)
    assert available_processors() == count
    assert image.processors() == count
    assert parse_parameters({}).topologies[0].worker_count == count
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(worklist, "_Copy", _Copy)
    monkeypatch.setattr(_Copy, "count", 0)
    assert worklist.spread(str, range(16)) == list(map(str, range(16)))
    assert _Copy.count == count - 1


class _Copy(nullcontext[None]):
    """A copy of the process that does its work in it."""

    count = 0

    def __init__(self, work: Callable[[int], str], items: Sequence[int], numbers: Iterable[int]) -> None:
        super().__init__()
        _Copy.count += 1
        self._work, self._items, self._numbers = work, items, numbers

    def __enter__(self) -> _Copy:  # type: ignore[override]
        return self

    def results(self) -> dict[int, str]:
        return {number: self._work(self._items[number]) for number in self._numbers}


def test_a_quota_that_changes_is_seen(
    quota: Callable[[float | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks are not taken for each question; the clock is the system's that does not jump."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    quota(2.0)
    assert available_processors() == 2
    monkeypatch.setattr(available_resources, "processor_quota", lambda: 4.0)
    assert available_processors() == 2
    now += 1.0
    assert available_processors() == 4


def test_processors_are_counted_in_one_place() -> None:
    """What the machine has is not what the process may use; a benchmark's report names the machine."""
    package = Path(available_resources.__file__).parents[2]
    counting = re.compile(r"len\((os\.)?sched_getaffinity|len\(allowed_processors\(|cpu_count\(")
    found = {
        str(file.relative_to(package)) for file in package.rglob("*.py") if counting.search(file.read_text())
    }
    assert found == {f"base/platform/{name}.py" for name in ("available_resources", "threads")} | {
        "tools/benchmark_report.py"
    }


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "700", "a/memory.stat": "anon 3"}, 300),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "9000", "a/memory.current": "8000",
                       "a/memory.stat": "anon 3\ninactive_file 500\n"}, 1500),
        ("0::/a\n", {"a/memory.max": "1000", "a/memory.current": "1200", "a/memory.stat": "anon 3"}, 0),
        ("7:memory:/x\n", {"memory/x/memory.limit_in_bytes": "5000", "memory/x/memory.usage_in_bytes": "4000",
                           "memory/x/memory.stat": "total_inactive_file 10"}, 1010),
    ],
)  # fmt: skip
def test_the_memory_of_a_cgroup(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    assert available_memory(tmp_path / "cgroup", tmp_path / "membership") == expected


def test_without_a_group_the_system_decides(tmp_path: Path) -> None:
    assert available_memory(tmp_path, tmp_path / "nothing") > 1 << 20


def test_a_limit_of_the_process() -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[1] != resource.RLIM_INFINITY:
        pytest.skip("the process has a limit already")
    done = subprocess.run([sys.executable, "-c", _LIMITED], capture_output=True, text=True, check=True)
    before, limited = map(int, done.stdout.split())
    assert limited < 3 << 30 and limited <= before


def test_a_system_that_does_not_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        available_resources, "open", lambda *_: io.BytesIO(b"MemTotal: 1 kB\n"), raising=False
    )
    with pytest.raises(OSError, match="no MemAvailable"):
        available_memory()
