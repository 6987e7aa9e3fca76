"""What programs call themselves and say commands no terminal."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

import jitree
from jitree.codegen.image import Provider, Recipe
from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.modules.hal.module import write_to_stderr
from tests.assembler import Assembler
from tests.tools.command import jitree as command

COMMAND = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\rX"
MESSAGE = COMMAND.replace("\r", "")
"""Of one line."""
SHOWN = "\\1B]0;title\\07\\1B[2J\\9B31m\\202E"
LIST = {"iree.abi.declaration": f"sync func @f(%{COMMAND}: i32) -> (i32)", COMMAND: COMMAND}


def program(*, dependency: str = "") -> bytes:
    module = Assembler("m" + COMMAND, source=COMMAND).attr(COMMAND, COMMAND)
    module.function("f", "0i_i", f'fail %i0, "{MESSAGE}"', attrs=LIST)
    module.function("g" + COMMAND, "0i_i", "return [%i0]")
    if dependency:
        module.dependency(dependency)
    return module.build()


def assert_shown(text: str) -> None:
    assert SHOWN in text
    assert all(character.isprintable() or character in "\n\t" for character in text)


def test_errors_and_names() -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(program())
        with pytest.raises(InvalidArgumentError) as failure:
            module.f(3)
        assert_shown(str(failure.value))
        assert failure.value.message == MESSAGE, "the program's own text is there, too"
        for shown in (repr(session), repr(module), repr(module.f)):
            assert_shown(shown)
        with pytest.raises(NotFoundError) as unknown, jitree.Session("local-sync") as session:
            session.load(program(dependency=COMMAND))
        assert_shown(str(unknown.value))


def test_commands(tmp_path: Path) -> None:
    file = tmp_path / "m.vmfb"
    file.write_bytes(program())
    for flags in (
        ["run", "--device=local-sync", "--function=f", "--input=3"],
        ["run", "--device=local-sync", "--function=f", "--input=3", "--trace_execution"],
        ["run", "--device=local-sync", "--function=none"],
        ["dump", "--output=locations"],
        ["dump", "--output=all"],
        ["dump", "--output=summary"],
    ):
        outcome = command(*flags, str(file))
        assert_shown(outcome.stdout + outcome.stderr)
    text = command("dump", "--output=flatbuffer-json", str(file)).stdout
    assert text.isprintable() and json.loads(text)["name"] == "m" + COMMAND


def test_traces(capsys: pytest.CaptureFixture[str]) -> None:
    write_to_stderr(COMMAND, [])
    assert_shown(capsys.readouterr().err)


def test_what_is_built(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Provider, "_look", lambda provider, niceness: None)
    provider = Provider(Recipe("none", f"native code of module '{COMMAND}'", "none:none", 1, (b"",)))
    with pytest.raises(TimeoutError):
        provider.wait(Mock(side_effect=TimeoutError))
    assert_shown(capsys.readouterr().err)
