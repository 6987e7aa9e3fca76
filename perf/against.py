"""Runs files of this folder in two checkouts in turn and says what has become slower.

    python perf/against.py BASE [NEW] [--set quick|full|cuda] [--rounds 7] [--only REGEX] [--save FILE]

BASE and NEW are commits or folders; NEW is this checkout, as it is now, if it is not given. Each row of each
file is compared by time, round by round, since the two sides of a round run one after the other; times beside
those of iree.runtime in the same row count in its units. Where the difference is below the noise a finer
measure decides: instructions, where the system lets a program count them, or else processor time.

Prints each row with the median of new by base and the least and the most of the rounds. What is above 1.03 in
the median has fallen if all rounds say that it takes longer, and is open otherwise: more rounds, or a quiet
machine. Exits 1 if something has fallen and 2 if a file failed. Needs the extra `perf`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from verdicts import figures, judged, own_times, table

ROOT = Path(__file__).resolve().parent.parent
COUNTING = ROOT / "perf" / "counting.py"
QUICK = (
    "call.py --device local-sync --from numpy --seconds 0.05",
    "arguments.py --seconds 0.03",
    "vm.py --seconds 0.05",
    "kernels.py --seconds 0.05",
    "models.py --device local-sync --seconds 0.05",
    "startup.py --repeat 2 --instructions 10000",
)
SETS = {
    "quick": QUICK,
    "full": (
        "call.py --device local-sync --from device --seconds 0.1",
        "call.py --device local-sync --from numpy --seconds 0.1",
        "call.py --device local-task --from device --seconds 0.1",
        "call.py --device local-task --from numpy --seconds 0.1",
        "arguments.py --seconds 0.1",
        "arguments.py --device local-task --seconds 0.1",
        "vm.py --seconds 0.1",
        "vm.py --tier fast --seconds 0.1",
        "kernels.py --seconds 0.1",
        "kernels.py --start",
        "quantised.py --seconds 0.1",
        "bfloat16.py --seconds 0.1",
        "models.py --device local-sync --seconds 0.1",
        "models.py --device local-task --seconds 0.1",
        "sandbox.py --device local-sync --seconds 0.1",
        "older_releases.py --seconds 0.1",
        "first_second.py --repeat 1 --warm",
        "startup.py --repeat 4",
        "starts.py --repeat 2",
    ),
    "cuda": (
        "arguments.py --device cuda --seconds 0.1",
        "cuda_programs.py --seconds 0.2",
        "cuda_programs.py --seconds 0.2 --host",
        "decoder.py --only-own",
    ),
}
"""What a set runs. The first is for a look in between."""
_LIMIT_SECONDS = 1800.0

Samples = dict[str, dict[str, list[float]]]
"""By row and measure, a figure for each round."""


class Failed(Exception):
    pass


class Checkout:
    """One side, with a cache of its own."""

    def __init__(self, root: Path, work: Path, name: str) -> None:
        self.root, self._work, self.name = root, work / name, name
        self._work.mkdir()
        self.samples: Samples = defaultdict(lambda: defaultdict(list))

    def has(self, command: str) -> bool:
        return (self.root / "perf" / command.split()[0]).exists()

    def run(self, command: str) -> list[dict[str, object]]:
        """What counting.py writes of one run."""
        script, *arguments = command.split()
        path = self.root / "perf" / script
        events = self._work / "events"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(self.root), os.environ.get("PYTHONPATH", "")]),
            "JITREE_CACHE_DIR": str(self._work / "cache"),
            "OPENBLAS_NUM_THREADS": "1",
        }
        words = [sys.executable, str(COUNTING), str(events), str(path), *arguments]
        ended = subprocess.run(
            words, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_LIMIT_SECONDS
        )
        if ended.returncode:
            raise Failed(
                f"{self.name}: perf/{command}: exit status {ended.returncode}\n{ended.stderr[-2000:]}"
            )
        return [json.loads(line) for line in events.read_text().splitlines()]

    def measure(self, command: str) -> None:
        """Adds a round to the samples."""
        for name, measures in rows(command, self.run(command)):
            for measure, value in measures.items():
                self.samples[name][measure].append(value)


def rows(command: str, events: Iterable[dict[str, object]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Names and measures of what is ours in the lines of a report."""
    seen: dict[str, int] = defaultdict(int)
    for event in events:
        name, found = figures(str(event["line"]))
        calls = event["calls"]
        for place, label, seconds in own_times(found):
            full = " ".join(word for word in (f"{command}:", name, label) if word)
            seen[full] += 1
            extra = calls[place] if isinstance(calls, list) and place < len(calls) else {}
            yield full + f" ({seen[full]})" * (seen[full] > 1), {"time": seconds, **extra}


def checked_out(place: str, work: Path, name: str) -> Path:
    """A folder as it is; a commit in a folder of its own."""
    if Path(place).is_dir():
        return Path(place).resolve()
    packed = subprocess.check_output(["git", "archive", place], cwd=ROOT)
    folder = work / f"{name}-files"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def measure(sides: list[Checkout], options: argparse.Namespace) -> list[str]:
    """Runs the set, and says what has failed."""
    failures = []
    chosen = (command for command in SETS[options.set] if re.search(options.only, command))
    commands = [command for command in chosen if all(side.has(command) for side in sides)]
    for command in commands:
        try:
            for turn in range(options.rounds):
                for side in sides if turn % 2 else reversed(sides):
                    side.measure(command)
        except (Failed, subprocess.TimeoutExpired) as error:
            failures.append(str(error))
        print(f"ran {command}", file=sys.stderr, flush=True)
    return failures


def report(sides: list[Checkout]) -> Iterator[str]:
    base, new = ({name: row for name, row in side.samples.items() if row["time"]} for side in sides)
    verdicts = {name: judged(base[name], new[name]) for name in base if name in new}
    yield from table(verdicts, sorted(base.keys() ^ new.keys()))
    fallen = sum(verdict.has_fallen for verdict in verdicts.values())
    open_ones = sum(verdict.is_open for verdict in verdicts.values())
    yield f"{fallen} of {len(verdicts)} rows have fallen, {open_ones} are open"


def main() -> int:
    parser = argparse.ArgumentParser(description="compares two checkouts by the files of this folder")
    parser.add_argument("base")
    parser.add_argument("new", nargs="?", default=str(ROOT))
    parser.add_argument("--set", choices=SETS, default="quick")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="the commands of the set in which this is found")
    parser.add_argument("--save", type=Path, help="where all figures go, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        sides = [
            Checkout(checked_out(place, work, name), work, name)
            for name, place in (("base", options.base), ("new", options.new))
        ]
        failures = measure(sides, options)
    if options.save:
        options.save.write_text(json.dumps({side.name: side.samples for side in sides}, indent=1))
    lines = list(report(sides))
    print(*lines, *failures, sep="\n")
    return 2 if failures else int(not lines[-1].startswith("0 "))


if __name__ == "__main__":
    sys.exit(main())
