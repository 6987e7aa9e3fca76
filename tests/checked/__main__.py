"""The command: see :mod:`tests.checked`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jitree.codegen.checked.layout import NOT_CHECKED, REPORTS
from jitree.codegen.checked.memory import GOES_ON
from jitree.codegen.image.flat import hashed
from jitree.codegen.image.shipped import STAMP_VARIABLE
from jitree.tools import build_stamp


def environment(reports: Path) -> dict[str, str]:
    """What turns it on: images of the present code, with checks, or those of a stamp that is given; where
    reports go."""
    stamp = os.environ.get(STAMP_VARIABLE, "")
    if not stamp.startswith("checked"):
        stamp = "checked-" + hashed((build_stamp.text("").encode(),)).hex()
    return {STAMP_VARIABLE: stamp, REPORTS: str(reports), "JITREE_CACHE_SIZE": "4G"}


def main(arguments: list[str]) -> int:
    changes = {}
    if arguments[:1] == ["--go-on"]:
        arguments = arguments[1:]
        changes[GOES_ON] = "1"
    with tempfile.TemporaryDirectory() as folder:
        reports = Path(os.environ.get(REPORTS) or Path(folder, "reports"))  # one that is stated stays
        reports.touch()
        changes |= environment(reports)
        status = subprocess.run([sys.executable, "-X", "faulthandler", *arguments], env=os.environ | changes)
        lines = reports.read_text().splitlines()
    whole = {line.partition(" bytes, bad at")[0]: line for line in lines}
    found = Counter(line.partition(" bytes, bad at")[0] for line in lines)
    for text, count in found.most_common():
        print(f"{count} times: {whole[text]}")
    accesses = sum(not text.startswith(NOT_CHECKED) for text in found)
    print(f"{accesses} places in checked code accessed what they must not")
    return status.returncode or int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
