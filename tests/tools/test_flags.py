"""Flag parsing: what the reference tools accept, and errors where they read garbage."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitree.errors import InvalidArgumentError, StatusError
from jitree.tools import flags
from jitree.tools.flags import Flag, FlagSet, Kind, ParsedFlags, Support, help_of, parse_flags

FLAGS = FlagSet(
    "run",
    "calls a function",
    (
        Flag("module", Kind.LIST, [], "A module."),
        Flag("function", Kind.STRING, "", "Its name,\nwithout the module's."),
        Flag("count", Kind.INTEGER, 7, "A number."),
        Flag("tolerance", Kind.FLOAT, 1e-05, "How close."),
        Flag("print", Kind.BOOLEAN, False, "Prints."),
        Flag("mode", Kind.STRING, "fast", "How.", ("fast", "slow")),
        Flag("list", Kind.OPTIONAL, None, "Lists."),
        Flag("old", Kind.INTEGER, 2, "Nothing.", support=Support.IGNORED),
        Flag("gone", Kind.STRING, "", "", support=Support.REFUSED),
    ),
    positional="module",
    refused_prefixes=("hip_",),
    ignored_prefixes=("benchmark_",),
)


def parse(*arguments: str) -> ParsedFlags:
    return parse_flags(arguments, FLAGS)


def test_values_of_every_kind() -> None:
    flags = parse(
        "--module=a", "--module", "b", "c", "-", "--function=f=g", "--count", "-3", "--tolerance=0x1p-2",
        "--print", "--mode=slow", "--list", "--old=9",
    )  # fmt: skip
    assert flags.texts("module") == ["a", "b", "c", "-"]
    assert flags.text("function") == "f=g"
    assert (flags.integer("count"), flags.number("tolerance")) == (-3, 0.25)
    assert flags.boolean("print") and flags.text("mode") == "slow"
    assert flags.optional("list") == ""
    assert flags.given == {"module", "function", "count", "tolerance", "print", "mode", "list"}


def test_defaults_are_those_of_the_table_and_not_shared() -> None:
    assert parse().values == {flag.name: flag.default for flag in FLAGS.flags}
    assert parse().optional("list") is None
    parse("--module=a")
    assert parse().texts("module") == []


def test_later_flags_win_and_quotes_go() -> None:
    flags = parse("--function=a", '--function="b c"', "--print", "--print=false", '--list="x"')
    assert flags.text("function") == "b c"
    assert flags.boolean("print") is False
    assert flags.optional("list") == "x"
    assert parse("--function=").text("function") == ""


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_booleans(text: str, value: bool) -> None:
    assert parse(f"--print={text}").boolean("print") is value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modul=x"], "unknown flag '--modul'; did you mean '--module'?"),
        (["--zzzz"], "unknown flag '--zzzz' ("),
        (["--count=abc"], "flag '--count': 'abc' is not an integer"),
        (["--count=99999999999999999999"], "flag '--count': 99999999999999999999 is out of range"),
        (["--tolerance=1x"], "flag '--tolerance': '1x' is not a number"),
        (["--print=yes"], "flag '--print': 'yes' is not true, false, 1 or 0"),
        (["--mode=slowly"], "flag '--mode': 'slowly' is not one of fast, slow"),
        (["--function"], "flag '--function' needs a value"),
        (["--function", "--print"], "flag '--function' needs a value"),
        (["--flagfile=/nonexistent"], "NOT_FOUND; cannot read flag file '/nonexistent'"),
        (["--flagfile=a\0b"], "INVALID_ARGUMENT; 'a\\00b' is no name of a file: embedded null byte"),
        (["--flagfile=\ud800"], "INVALID_ARGUMENT; '\\D800' is no name of a file: 'utf-8' codec can't"),
        (["--gone=1"], "UNIMPLEMENTED; flag 'gone' is not supported by jitree"),
        (["--hip_tracing=1"], "UNIMPLEMENTED; flag 'hip_tracing' is not supported by jitree"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse(*arguments)
    assert message in str(caught.value)


def test_families_of_flags_may_be_ignored() -> None:
    assert parse("--benchmark_unknown=3", "--benchmark_other").given == set()


def test_flag_files_are_expanded_where_they_stand(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner.txt", tmp_path / "outer.txt"
    inner.write_text("--module=b\n")
    outer.write_text(f"# a comment\n\n  --module=a  \n--flagfile={inner}\n--count=1\n")
    flags = parse("--count=5", f"--flagfile={outer}", "--module=c")
    assert flags.texts("module") == ["a", "b", "c"]
    assert flags.integer("count") == 1


def test_a_flag_file_that_names_itself_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text(f"--flagfile={path}\n")
    with pytest.raises(StatusError, match="nest deeper"):
        parse(f"--flagfile={path}")


def test_help_is_a_flag_file_of_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text(help_of(FLAGS))
    assert parse(f"--flagfile={path}").values == parse().values
    assert "--count=7\n" in path.read_text() and "gone" not in path.read_text()


def test_devices_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read until there was no memory."""
    with pytest.raises(InvalidArgumentError, match=r"'/dev/zero' is a device, not a file"):
        flags.whole_file("/dev/zero")
    monkeypatch.setattr(flags, "_LONGEST_FLAGFILE", 1 << 10)
    with pytest.raises(InvalidArgumentError, match="is a device, not a file"):
        flags._flagfile_lines("/dev/zero")
