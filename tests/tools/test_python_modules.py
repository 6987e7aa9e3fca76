"""Modules in Python files on the command line and from Python: ``--module=file.py@create?key=value``."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitree import Session
from jitree.api.load_order import ModuleReference, parse_reference
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, UnimplementedError
from tests.assembler import Assembler
from tests.tools.command import ROOT, jitree_process

SAMPLE = ROOT / "examples" / "custom_module"

HELPER = "FACTOR = 10\n"
MODULE = """
from __future__ import annotations


from helper import FACTOR
from jitree import CustomModule, Session, i32


class Scale:
    def __init__(self, factor):
        self.factor = factor


def create(factor="1", name="host"):
    module = CustomModule(name, state=lambda: Scale(FACTOR * int(factor)))

    @module.type("host.thing")
    class Thing:
        pass

    @module.export
    def scale(state, value: i32) -> i32:
        if value == 13:
            raise ArithmeticError("thirteen")
        return state.factor * value

    @module.export
    def thing(state) -> Thing:
        return Thing()

    return module


def wrong():
    return 5


def newer():
    return CustomModule("host", api_version=99)
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "host.py").write_text(MODULE)
    program = Assembler("m").import_function("host.scale", "0i_i")
    program.function("f", "0i_i", "[%i1] = call @host.scale [%i0]\nreturn [%i1]")
    (tmp_path / "program.vmfb").write_bytes(program.build())
    return tmp_path


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("m.py", ("m.py", None, ())),
        ("a.py/lib.so@make", ("a.py/lib.so", "make", ())),
        ("m.py?a=1&b=", ("m.py", None, (("a", "1"), ("b", ""))),),
        ("/x@y/m.py@create?path=/a?b=c&d=e@f", ("/x@y/m.py", "create", (("path", "/a?b=c"), ("d", "e@f")))),
        ("m.py@?", ("m.py", None, ())),
    ],
)  # fmt: skip
def test_references(text: str, reference: tuple[object, ...]) -> None:
    assert parse_reference(text) == reference


@pytest.mark.parametrize("text", ["m.vmfb", "-", "m.python", "m.py.vmfb", "a.so.1"])
def test_other_files(text: str) -> None:
    assert parse_reference(text) is None


def test_parameters_without_a_value() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' is not of the form key=value"):
        parse_reference("m.py?a")
    assert ModuleReference("m.py", None, ()).is_python


def run(files: Path, module: str, value: int) -> tuple[int, str, str]:
    outcome = jitree_process(
        "run", "--device=local-sync", f"--module={files / module}", f"--module={files / 'program.vmfb'}",
        f"--input={value}",
    )  # fmt: skip
    return outcome.code, outcome.stdout, outcome.stderr


def test_on_the_command_line(files: Path) -> None:
    assert run(files, "host.py@create?factor=3", 7)[:2] == (0, "EXEC @f\nresult[0]: i32=210\n")
    assert run(files, "host.py", 7)[:2] == (0, "EXEC @f\nresult[0]: i32=70\n")


def test_what_it_raises_is_the_users(files: Path) -> None:
    code, _, errors = run(files, "host.py", 13)
    assert code == 1
    line = MODULE.splitlines().index('            raise ArithmeticError("thirteen")') + 1
    assert errors.startswith(f"{files / 'host.py'}:{line}: UNKNOWN; ArithmeticError: thirteen; ")
    assert "host function host.scale" in errors and "m.f+" in errors and "Traceback" not in errors
    assert errors.count("\n") == 1
    code, _, errors = run(files, "host.py?factor=x", 1)
    assert code == 1 and "UNKNOWN; ValueError: invalid literal for int()" in errors


def test_in_a_session(files: Path) -> None:
    with Session("local-sync", tier="plain") as session:
        program, host = session.load(str(files / "program.vmfb"), str(files / "host.py@create?factor=2"))
        assert program.f(4) == 80 and host.scale(1) == 20


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("none.py", NotFoundError, "does not exist"),
        ("host.py@make", NotFoundError, "no function 'make'; it defines: create, wrong, newer"),
        ("host.py@wrong", InvalidArgumentError, "'wrong' returned a value of type int"),
        (
            "host.py?colour=red",
            InvalidArgumentError,
            r"create\(factor='1', name='host'\) does not take .*colour",
        ),
        ("host.py@newer", UnimplementedError, "version 99"),
        ("helper.py", NotFoundError, "no function 'create' and defines 0 modules"),
        ("old.py", UnimplementedError, r"old\.py' is written for version 7"),
        ("host.py?name=m", StatusError, "'m'"),
    ],
)
def test_files_that_make_no_module(files: Path, reference: str, error: type[Exception], message: str) -> None:
    (files / "old.py").write_text("JITREE_API_VERSION = 7\ndef create(): return 1/0\n")
    with Session("local-sync", tier="plain") as session:
        with pytest.raises(error, match=message):
            session.load(str(files / reference), str(files / "program.vmfb"))
        assert session.modules == {}


def test_files_that_fail(files: Path) -> None:
    (files / "broken.py").write_text("def create(:\n")
    with Session("local-sync", tier="plain") as session:
        with pytest.raises(SyntaxError):
            session.load(str(files / "broken.py"))
        assert session.modules == {}


# -- the sample --------------------------------------------------------------------------------------------


def test_the_sample_is_at_most_ten_lines() -> None:
    assert len((SAMPLE / "activation.py").read_text().splitlines()) <= 10


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_the_sample_from_the_command_line(tier: str) -> None:
    outcome = jitree_process(
        "run", "--device=local-sync", f"--module={SAMPLE / 'activation.py'}",
        f"--module={SAMPLE / 'program.vmfb'}", "--function=layer", "--input=4xf32=-3,-1,0,1", "--input=1",
        tier=tier,
    )  # fmt: skip
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout == "EXEC @layer\nresult[0]: hal.buffer_view\n4xf32=-3 -2 0 2\n"


def test_the_sample_as_its_readme_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (SAMPLE / "README.md").read_text()
    start = text.index("    import jitree\n")
    code = text[start : text.index("\n\nTypes are stated")].replace("\n    ", "\n").strip()
    monkeypatch.chdir(SAMPLE)
    monkeypatch.syspath_prepend(str(SAMPLE))
    exec(code, {})
    assert "[-3., -2.,  0.,  2.]" in capsys.readouterr().out
