"""What a benchmark report says about the machine: processors, caches, load."""

from __future__ import annotations

import os
import socket
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from jitree.base import processor
from jitree.errors import pass_interruption

_CACHE_FOLDER: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def machine_context() -> dict[str, Any]:
    """The ``context`` object of a JSON report."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_name": socket.gethostname(),
        "executable": f"{sys.executable} -m jitree benchmark",
        "num_cpus": os.cpu_count() or 1,
        "mhz_per_cpu": round(max(map(float, processor.words("cpu MHz")), default=0.0)),
        "caches": _caches(),
        "load_avg": [round(load, 2) for load in os.getloadavg()],
        "library_version": "jitree",
        "library_build_type": "release",
        "json_schema_version": 1,
    }


def machine_header(context: dict[str, Any]) -> str:
    """The lines that a console report begins with, for stderr."""
    lines = [
        context["date"],
        f"Running {context['executable']}",
        f"Run on ({context['num_cpus']} X {context['mhz_per_cpu']} MHz CPU s)",
    ]
    if context["caches"]:
        lines.append("CPU Caches:")
    for cache in context["caches"]:
        instances = max(1, context["num_cpus"] // cache["num_sharing"])
        lines.append(f"  L{cache['level']} {cache['type']} {cache['size'] // 1024} KiB (x{instances})")
    lines.append("Load Average: " + ", ".join(f"{load:.2f}" for load in context["load_avg"]))
    known = ("date", "host_name", "executable", "num_cpus", "mhz_per_cpu", "caches", "load_avg")
    for key, value in context.items():
        if key not in known and not key.startswith(("library_", "json_")):
            lines.append(f"{key}: {value}")
    return "\n".join(lines) + "\n"


def _caches() -> list[dict[str, Any]]:
    caches = []
    for folder in sorted(_CACHE_FOLDER.glob("index*")):
        facts = {
            name: "".join(_lines(folder / name)[:1]) for name in ("type", "level", "size", "shared_cpu_list")
        }
        if not facts["size"].endswith("K"):
            continue
        caches.append(
            {
                "type": facts["type"],
                "level": int(facts["level"]),
                "size": int(facts["size"][:-1]) * 1024,
                "num_sharing": _count_processors(facts["shared_cpu_list"]),
            }
        )
    return caches


def _count_processors(text: str) -> int:
    """Processors in a list like ``0-3,8``."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as error:
        pass_interruption(error)
        return []
