"""Runs campaigns of random cases, each in child processes, and adds what they did to a table.

    python -m tests.fuzz nests kernels --minutes 60 --processes 2
    python -m tests.fuzz --all --minutes 600
    python -m tests.fuzz --replay nests:1476

A campaign goes on at the number where the last run that is in its table ended. Findings are made smaller,
and kept as files.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.checked.begin import begin
from tests.fuzz import table
from tests.fuzz.campaign import CASES, NAMES, Campaign, campaign
from tests.fuzz.numbered import Found, findings, minimised, numbers_from, run_numbers

SHOWN = 10
"""Findings that are printed, and of which cases are kept."""
_MINIMISE = 120.0
"""Seconds that making cases smaller may take together."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="each in turn")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each; no batch begins afterwards")
    parser.add_argument("--cases", type=int, help="instead of minutes")
    parser.add_argument("--first", type=int, help="a number to begin at, instead of where the table says")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--table", type=Path, default=table.FILE, help="a file to add to, if not the project's"
    )
    parser.add_argument("--findings", type=Path, default=Path("findings"), help="a folder for what is found")
    parser.add_argument("--replay", metavar="CAMPAIGN:NUMBER", help="one case again, made smaller")
    arguments = parser.parse_args()
    begin()
    if arguments.replay:
        name, _, number = arguments.replay.partition(":")
        return kept(campaign(name), name, int(number), arguments.findings, time.monotonic() + _MINIMISE)
    names = NAMES if arguments.all else arguments.campaigns
    if not names or set(names) - set(NAMES):
        parser.error(f"name some of {', '.join(NAMES)}, or say --all")
    return max(run(name, arguments) for name in names)


def run(name: str, arguments: argparse.Namespace) -> int:
    """One campaign; 1 if anything was found."""
    of, row = (
        campaign(name),
        table.rows(arguments.table.read_text() if arguments.table.exists() else "")[name],
    )
    first = row.next if arguments.first is None else arguments.first
    batches = numbers_from(first, of.batch)
    until = time.monotonic() + 60 * arguments.minutes
    if arguments.cases is not None:
        batches, until = itertools.islice(batches, -(-arguments.cases // of.batch)), float("inf")
    given, before = Counted(batches), processor_seconds()
    found, counts = run_numbers(of.check, given, arguments.processes, of.seconds, until, of.prepare)
    seconds = processor_seconds() - before
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    cases = {finding.number for finding in found}
    row = table.add(arguments.table, name, given.last, counts[CASES], seconds, len(cases), today)
    if arguments.table == table.FILE:
        table.update_page()
    show(name, (found, counts), seconds)
    until = time.monotonic() + _MINIMISE
    for number in sorted(cases)[:SHOWN]:
        kept(of, name, number, arguments.findings, until)
    print(f"{name}: {row.cases:,} {of.counts} in all, {row.findings} findings, the last one: {row.last_find}")
    return 1 if found else 0


def processor_seconds() -> float:
    """What child processes that have ended have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Counted:
    """Batches of numbers, and where the last one ends."""

    def __init__(self, batches: Iterator[range]) -> None:
        self._batches = batches
        self.last = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> range:
        numbers = next(self._batches)
        self.last = numbers.stop
        return numbers


def show(name: str, result: Found, seconds: float) -> None:
    found, counts = result
    for what, count in counts.most_common():
        print(f"{count:9}  {what}")
    for finding in found[:SHOWN]:
        print(f"case {finding.number}: {finding.text.strip().splitlines()[-1]}")
    print(f"{name}: {counts[CASES] / seconds:.1f} {CASES} a second, {len(found)} findings", flush=True)


def kept(of: Campaign, name: str, number: int, folder: Path, until: float) -> int:
    """Makes a case smaller and writes it; 1 if it has findings by itself."""
    case = of.generate(number)
    least = minimised(of, case, until)
    found = findings(of, least)
    print(*found, sep="\n")
    if not found:
        print(f"{name}:{number} has no finding")
        return 0
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{number}"
    file.write_bytes(of.written(least))
    file.with_suffix(".txt").write_text("\n".join(found))
    print(f"{name}:{number} is {file}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
