"""``jitree parameters``, and ``run`` with parameters."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry
from tests.tools.command import PROGRAMS, jitree

DATA = PROGRAMS.parent / "parameters"
MIXED = DATA / "mixed.irpa"


def test_create_as_the_real_tool(tmp_path: Path) -> None:
    made = tmp_path / "a.irpa"
    flags = [
        "--data=d0=4xf32",
        "--data=d1=3xi8",
        "--splat=s=4xf32=1.5",
        "--splat=t=8xi8=3",
        f"--output={made}",
    ]
    outcome = jitree("parameters", "create", *flags)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout == (DATA / "mixed.txt").read_text()
    assert made.read_bytes() == MIXED.read_bytes()


def test_convert_as_the_real_tool(tmp_path: Path) -> None:
    made = tmp_path / "a.irpa"
    flags = ["--rename=d0=first", "--splat=d1=i8=5", "--exclude=t", f"--output={made}"]
    outcome = jitree("parameters", "convert", f"--parameters={MIXED}", *flags)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout == (DATA / "edited.txt").read_text()
    assert made.read_bytes() == (DATA / "edited.irpa").read_bytes()


def test_dump_as_the_real_tool() -> None:
    outcome = jitree("parameters", "dump", f"--parameters={MIXED}")
    assert outcome.stdout == (DATA / "mixed.txt").read_text()
    named = jitree("parameters", "dump", f"--parameters=model={MIXED}")
    assert "// Parameter scope `model` (4 entries, 43 total bytes)\n" in named.stdout
    assert jitree("parameters", "dump") == type(named)(0, "", "")


def test_data_with_values(tmp_path: Path) -> None:
    made = tmp_path / "a.irpa"
    jitree("parameters", "create", "--data=k=3xf32=1.5", "--data=z=3x3xi4=-2", "--quiet", f"--output={made}")
    for mode in ("file", "preload"):
        flags = [f"--parameter_mode={mode}", f"--extract=k={tmp_path / 'k'}", f"--extract=z={tmp_path / 'z'}"]
        outcome = jitree("parameters", "dump", f"--parameters={made}", *flags)
        assert f"Extracting parameter `k` (12b) to `{tmp_path / 'k'}`...\n" in outcome.stdout
        assert (tmp_path / "k").read_bytes() == struct.pack("<3f", 1.5, 1.5, 1.5)
        assert (tmp_path / "z").read_bytes() == b"\xee" * 5


def test_extracting_splats_and_scopes(tmp_path: Path) -> None:
    out = tmp_path / "s"
    outcome = jitree("parameters", "dump", f"--parameters=m={MIXED}", f"--extract=m::s={out}")
    assert outcome.code == 0 and out.read_bytes() == struct.pack("<f", 1.5) * 4


def test_strip_and_other_formats(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones((2, 2), "f4"), b=np.ones(2, "i4"))
    listed = jitree("parameters", "dump", "--long", f"--parameters={tmp_path / 'a.npz'}")
    assert "2x2xf32 | `w`" in listed.stdout and "2xi32 | `b`" in listed.stdout
    made = tmp_path / "a.irpa"
    outcome = jitree(
        "parameters", "convert", f"--parameters={tmp_path / 'a.npz'}", "--strip", f"--output={made}"
    )
    assert outcome.stdout.count("- |                - |") == 2


def test_unknown_keys_are_mentioned(tmp_path: Path) -> None:
    flags = ["--exclude=d9", "--rename=x=y", "--splat=ss", "--quiet", f"--output={tmp_path / 'a.irpa'}"]
    outcome = jitree("parameters", "convert", f"--parameters={MIXED}", *flags)
    assert outcome.code == 0 and outcome.stdout == ""
    for part in (
        "--exclude=d9: no such parameter; nearest: 'd",
        "--rename=x: no such",
        "--splat=ss: no such",
    ):
        assert part in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["create", "--splat=k=4xf32=1,2"], "INVALID_ARGUMENT", "'1,2' has 2 values"),
        (["create", "--data=k=4"], "INVALID_ARGUMENT", "'k=4' is not <key>="),
        (["create", "--data=k=4xf31"], "INVALID_ARGUMENT", "unknown element type 'f31'"),
        (["create", "--data=k=4xf32", "--splat=k=4xf32=1"], "INVALID_ARGUMENT", "'k' occurs twice"),
        (["create", "--data=k=4xf32", "--alignment=3"], "INVALID_ARGUMENT", "alignment 3"),
        (["convert", "--rename=a"], "INVALID_ARGUMENT", "'a' is not <old key>="),
        (["convert", f"--parameters={MIXED}", "--rename=s=t"], "ALREADY_EXISTS", "would be called 't'"),
        (["convert", f"--parameters={MIXED}", "--splat=d1=i32=1"], "INVALID_ARGUMENT", "cannot fill 3 bytes"),
        (["convert", f"--parameters={MIXED}", f"--parameters={MIXED}"], "ALREADY_EXISTS", "is twice in"),
        (["convert", "--parameters=/nonexistent/a.irpa"], "NOT_FOUND", "/nonexistent/a.irpa"),
    ],
)  # fmt: skip
def test_refusals(tmp_path: Path, arguments: list[str], code: str, says: str) -> None:
    made = tmp_path / "a.irpa"
    outcome = jitree("parameters", *arguments, f"--output={made}")
    assert outcome.code == 1 and f" {code}; " in outcome.stderr and says in outcome.stderr
    assert not made.exists()


def test_refusals_of_dump(tmp_path: Path) -> None:
    for arguments, says in (
        ([f"--parameters={MIXED}", "--extract=d9=x"], "no parameter found with key 'd9'"),
        ([f"--parameters={MIXED}", "--extract=m::s=x"], "no parameters in scope 'm'; scopes: <global>"),
        ([f"--parameters={DATA / 'mixed.txt'}"], "extension '.txt' is not known"),
    ):
        outcome = jitree("parameters", "dump", *arguments)
        assert outcome.code == 1 and says in outcome.stderr
    assert jitree("parameters", "frob").code == 1 and jitree("parameters").code == 1
    assert "no output file" in jitree("parameters", "create").stderr


@pytest.mark.parametrize("mode", ["file", "preload"])
def test_running_with_parameters(tmp_path: Path, mode: str) -> None:
    model = {"w": np.eye(4, 3, dtype="f4"), "b": np.ones(3, "f4")}
    write(tmp_path / "model.irpa", plan([array_entry(key, value) for key, value in model.items()]))
    np.savez(tmp_path / "rest.npz", scale=np.full(3, 2, "f4"))
    outcome = jitree(
        "run", "--device=local-sync", f"--module={PROGRAMS / 'parameters.vmfb'}", "--function=linear",
        f"--parameter_mode={mode}", f"--parameters=model={tmp_path / 'model.irpa'}",
        f"--parameters={tmp_path / 'rest.npz'}", "--input=2x4xf32=1 2 3 4 5 6 7 8",
        "--expected_output=2x3xf32=4 6 8 12 14 16",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr


def test_running_without_parameters() -> None:
    outcome = jitree(
        "run", "--device=local-sync", f"--module={PROGRAMS / 'parameters.vmfb'}", "--function=linear"
    )
    assert outcome.code == 1 and " NOT_FOUND; " in outcome.stderr
    assert "scope 'model'" in outcome.stderr and "--parameters=model=weights.irpa" in outcome.stderr
