"""``jitree dump --output=locations``, and where taps and profiles name lines of the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jitree
from jitree.errors import FailedPreconditionError, locations
from jitree.tools import dump
from jitree.tools.dump_executables import location_lines
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module
from tests.assembler import Assembler
from tests.cuda.executables import KernelExport, executable_bytes
from tests.loaders.samples import sample

RELEASES = Path(__file__).parents[1] / "data" / "releases"
TINY = sample("tiny-3.13.0.so")
LINE = "programs/simple_mul.mlir:3:8"


@pytest.mark.parametrize("release", ["20240129.785", "20240828.999", "3.9.0", "3.13.0"])
def test_lines_of_the_source(release: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = RELEASES / f"simple_mul-{release}.vmfb"
    assert dump.main(["--output=locations", str(path)]) == 0
    lines = dict(line.strip().split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    dispatch = next(name for name in lines if "_dispatch_0" in name)
    assert LINE in lines[dispatch] and LINE in lines["__init"]
    has_all = release != "3.13.0"
    """That release keeps the lines of the last function only."""
    # the line of the operation comes before that of the function, which calls it
    assert lines["simple_mul"].startswith(LINE) if has_all else lines["simple_mul"].endswith("not say")
    with jitree.Session(device="local-sync", tier="plain") as session:
        function = session.load(path).simple_mul
        values = np.ones(4, np.float32)
        with session.tap() as taps:
            function(values, values)
        with session.profile() as profile:
            function(values, values)
    assert f"compiled from {lines[dispatch]}" in taps[0].location
    assert (f" at {LINE}" in taps[0].location) is has_all
    first = lines[dispatch].split(", ")[0]
    assert [row.location for row in profile.rows] == [first] and first in str(profile.rows)
    assert profile.table("function")[0].location == (lines["simple_mul"].split(", ")[0] if has_all else None)
    profile.save(tmp_path / "trace.json")
    assert f'"location": "{first}"' in (tmp_path / "trace.json").read_text()


def test_executables_of_every_kind() -> None:
    kernel = KernelExport("kernel", (64, 1, 1), 0, 1, location=("model.mlir", 7))
    module = Assembler("m")
    for data in (sample("tiny_sources-20240410.859.so"), executable_bytes(b"//", [kernel]), TINY[:400]):
        module.rodata(data)
    found = []
    with pytest.raises(FailedPreconditionError, match="cut short"):
        for line in location_lines(read_module(Archive.open(module.build(), "m.vmfb"))):
            found.append(line.strip())
    tiny = next(line for line in found if line.startswith("tiny_dispatch_0"))
    assert ": tiny.mlir:1, " in tiny and ":9 (0.source)" in tiny and ":9 (2.translated)" in tiny
    assert sum(line.endswith("bytes of source in the executable") for line in found) == 3
    assert "kernel: model.mlir:7" in found


def test_messages_name_some_of_many_lines() -> None:
    """A kernel may be fused of hundreds of operations."""
    lines = [f"model.mlir:{number}:3" for number in range(200)]
    assert locations(lines) == ", ".join(lines[:8]) + " and 192 more"
    assert locations(lines[:8]) == ", ".join(lines[:8])
