"""How much memory a process may still take."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from jitree.base import available_memory as memory_module
from jitree.base.available_memory import available_memory

_LIMITED = """
import resource, sys
from jitree.base.available_memory import available_memory
limit = 1 << 40
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = available_memory()
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, limit))
print(before, available_memory())
"""


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
    monkeypatch.setattr(memory_module, "open", lambda *_: io.BytesIO(b"MemTotal: 1 kB\n"), raising=False)
    with pytest.raises(OSError, match="no MemAvailable"):
        available_memory()
