"""What people see of sessions, modules, functions and arrays: in editors, `help()` and notebooks."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import jitree
from jitree.base.tables import bytes_text, html_table
from jitree.params.provider import open_providers
from tests.api.programs import PROGRAMS

if TYPE_CHECKING:  # what an editor knows: mypy runs over this

    def typed() -> None:
        from typing import assert_type

        session = assert_type(jitree.Session("local-sync"), jitree.Session)
        module = assert_type(session.load("model.vmfb"), jitree.Module)
        assert_type(jitree.load("model.vmfb", device="local-sync", tier="plain"), jitree.Module)
        assert_type(module.f, jitree.Function)
        assert_type(module["f"], jitree.Function)
        assert_type(session.to_device([1.0]), jitree.Array)
        with session as opened:
            assert_type(opened, jitree.Session)
        jitree.load("model.vmfb", devise="local-sync")  # type: ignore[call-overload]
        jitree.Session("local-sync", tiers="plain")  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def session() -> Iterator[jitree.Session]:
    with jitree.Session("local-sync", tier="fast") as session:
        session.load(PROGRAMS / "arithmetic.vmfb", PROGRAMS / "echo.vmfb")
        yield session


@pytest.fixture(scope="module")
def odd() -> Iterator[jitree.Module]:
    """A module whose exports have the names of attributes, and one that begins with an underscore."""
    host = jitree.CustomModule("odd")
    for name in ("name", "session", "_hidden", "plain"):

        def longer(value: int, name: str = name) -> int:
            return value + len(name)

        host.export(name, signature="i32 -> i32")(longer)
    with jitree.Session("local-sync", tier="fast") as session:
        yield session.append_module(host)


def test_functions_say_what_they_take_and_give(session: jitree.Session) -> None:
    add = session.modules["arithmetic"].add
    assert add.__name__ == "add"
    assert inspect.signature(add).return_annotation == add.results[0].type
    assert list(inspect.signature(add).parameters) == [item.name for item in add.arguments]
    text = pydoc.plain(pydoc.render_doc(add))
    for expected in ("Takes:", "Gives:", "float32", "timeout=", add.declaration):
        assert expected in text, text
    assert "Methods defined here" not in text
    assert "No result gives None" in str(jitree.Function.__doc__)


def test_editors_are_told_public_names_only() -> None:
    names = {name for name in dir(jitree) if not name.startswith("__")}
    assert names == {*jitree.__all__, "compile"} - {"__version__"}


def test_a_module_keeps_its_functions(odd: jitree.Module) -> None:
    for name in ("plain", "other", "name"):
        with pytest.raises(AttributeError, match=f"'{name}'"):
            setattr(odd, name, 1)
    assert odd.plain(1) == 6


def test_exports_of_any_name_are_reached(odd: jitree.Module) -> None:
    assert odd._hidden(1) == 8
    assert odd.name == "odd" and odd["name"](1) == 5
    assert "module['name'], module['session']" in repr(odd)
    assert odd._ipython_key_completions_() == odd.names
    assert "odd._hidden" in odd.session._ipython_key_completions_()
    assert {"_hidden", "plain"} <= set(dir(odd))
    for missing in ("_repr_png_", "_ipython_display_", "absent"):
        assert not hasattr(odd, missing)


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def require_html(value: Any, *expected: str) -> None:
    text = value._repr_html_()
    parser = _Balance()
    parser.feed(text)
    assert not parser.open, text
    shown = re.sub(r"<[^>]*>", " ", text)
    for part in expected:
        assert part in shown, text


def test_notebooks_show_tables(session: jitree.Session) -> None:
    module = session.modules["arithmetic"]
    provider = open_providers([{"weights": np.zeros((2, 3), np.float32)}])[0]
    require_html(session, "local-sync", "arithmetic", "e1_f32", "used")
    require_html(module, "add")
    require_html(jitree.inspect(PROGRAMS / "arithmetic.vmfb"), "needs hal", "sync func @add(")
    require_html(module.add, "takes", "gives", "float32")
    require_html(session.to_device(np.arange(6.0).reshape(2, 3)), "2x3 float64 on local-sync", "[3., 4., 5.]")
    require_html(session.to_device(3), "local-sync", "3")
    require_html(session.device, "local-sync", "threads", "used")
    require_html(provider.index, "weights", "2x3xf32", "24 bytes")
    with session.profile() as profile:
        module.add(np.ones(4, np.float32), np.ones(4, np.float32))
    require_html(profile.table("function"), "arithmetic.add")


def test_names_of_programs_are_no_markup() -> None:
    text = html_table("<b>", ("<i>",), [["</td>\x1b[2J"]] + [["row"]] * 200)
    assert "<b>" not in text and "<i>" not in text and "\x1b" not in text
    assert "and 101 more" in text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_numbers_of_bytes_are_read_by_people(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_placement_says_which_device_has_what() -> None:
    with jitree.Session({"here": "local-sync", "there": "local-task://?threads=2"}, tier="fast") as session:
        session.load(PROGRAMS / "two_devices.vmfb")
        text = str(session.explain())
    assert "device 1: there, local-task://, 2 threads" in text
    assert "both: input0 on local-sync://, input1 on local-task://" in text
