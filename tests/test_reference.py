"""The reference is the docstrings of public names: they say parameters, shapes, units and errors.

A public name is what ``dir(jitree)`` shows, and what the classes there show of their own. The rules are
words that can be looked for; whether a sentence is true, its example or the tests of its part say.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_origin, get_overloads

import numpy as np
import pytest

import jitree
from tests.compiling.conftest import no_packages, scripted  # noqa: F401
from tests.sizes import ROOT

ARRAYS = re.compile(r"ndarray|NDArray|\bArray\b|BufferView|ArrayLike")
TIMES = re.compile(r"timeout|seconds|watchdog|deadline")
SIZES = re.compile(r"size|length|offset|capacity|alignment|memory$")
SHAPE_WORDS = re.compile(r"\b(shapes?|axis|axes|rank)\b")
SIZE_WORDS = re.compile(r"\b(bytes?|elements|slots)\b", re.IGNORECASE)
CODES = "|".join(code.name for code in jitree.StatusCode)
ERROR_WORDS = re.compile(rf"\b({CODES}|\w+Error|raises?|fails?|errors?)\b", re.IGNORECASE)
MADE_BY = re.compile(r"\bMade by\b")
"""What classes say whose objects a program does not make itself."""

WITH_EXAMPLES = {
    "Array.astype", "Array.copy", "Array.dtype", "Array.item", "Array.shape", "Array.to_device",
    "Array.to_host", "Array.view", "CustomModule.export", "Device.memory", "Device.query_i64",
    "Device.threads", "Function.async_", "Function.declaration", "Function.submit", "Function.to",
    "Function.workspace_size", "Session.call", "Session.check_finite", "Session.close",
    "Session.deadline", "Session.drain", "Session.empty", "Session.explain", "Session.load",
    "Session.lookup", "Session.metrics", "Session.prepare", "Session.profile", "Session.reload",
    "Session.tap", "Session.to_device",
}  # fmt: skip
"""The attributes that are used most. All names of ``jitree`` itself have an example too."""


@cache
def attributes(cls: type) -> dict[str, str]:
    """Public attributes in the body of a class and its ``__init__``, with the docstrings that follow them."""
    body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    makers = (node for node in body.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    found: dict[str, str] = {}
    for block in (body.body, *(maker.body for maker in makers)):
        for node, after in pairwise([*block, ast.Pass()]):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            names = [ast.unparse(target) for target in targets]
            is_made = block is not body.body
            names = [name.removeprefix("self.") for name in names if is_made == ("self." in name)]
            text = ast.unparse(after) if isinstance(after, ast.Expr) else ""
            found |= {name: text or found.get(name, "") for name in names if name.isidentifier()}
    return {name: text for name, text in found.items() if not name.startswith("_")}


def own_classes(cls: type) -> Iterator[type]:
    yield from (owner for owner in cls.__mro__ if owner.__module__.startswith("jitree."))


def documentation(said: Any) -> str:
    """What is said of a name; of a class with its ``__init__`` and attributes."""
    texts = [inspect.getdoc(said) or ""]
    if isinstance(said, type):
        makers = (vars(cls).get("__init__") for cls in own_classes(said))
        texts += [inspect.getdoc(maker) or "" for maker in makers if maker is not None]
        texts += [f"``{name}`` {text}" for name, text in attributes(said).items()]
    return "\n\n".join(texts)


def public_names() -> Iterator[tuple[str, Any, bool]]:
    """Each with what has its docstring, and whether it is called."""
    for name, value in [(name, getattr(jitree, name)) for name in dir(jitree)]:
        is_alias = get_origin(value) is Annotated
        if name.startswith("_") or not (isinstance(value, type) or inspect.isroutine(value) or is_alias):
            continue
        yield name, value, not is_alias
        keys, classes = (dir(value), value.__mro__) if isinstance(value, type) else ([], ())
        for key in keys:
            owner = next(cls for cls in (*classes, type) if key in vars(cls))
            member = vars(owner)[key]
            said = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            is_own = owner.__module__.startswith("jitree.") and not key.startswith("_") and key != "value"
            if is_own and inspect.isroutine(said):
                yield f"{name}.{key}", said, not isinstance(member, property)


def lacking(said: Any, is_called: bool) -> Iterator[str]:
    """What a docstring does not say that its signature asks for."""
    text = documentation(said)
    if isinstance(said, type) and (MADE_BY.search(text) or issubclass(said, int)):
        return
    try:
        signature = inspect.signature(said)
    except ValueError:  # machine code has taken its place
        return
    own = [item for item in signature.parameters.values() if item.name not in ("self", "cls")]
    named = [item for item in own if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
    for item in named:
        if not re.search(rf"``[^`]*\b{item.name}\b", text):
            yield f"``{item.name}``"
    annotations = [str(item.annotation) for item in own]
    annotations += [] if isinstance(said, type) else [str(signature.return_annotation)]
    if any(map(ARRAYS.search, annotations)) and not SHAPE_WORDS.search(text):
        yield "a shape"
    if any(TIMES.search(item.name) for item in named) and "second" not in text.lower():
        yield "seconds"
    if any(SIZES.search(item.name) for item in named) and not SIZE_WORDS.search(text):
        yield "bytes or elements"
    if is_called and own and not ERROR_WORDS.search(text):
        yield "errors"


def test_public_names_say_what_they_take_and_how_they_fail() -> None:
    found = {name: [*lacking(said, is_called)] for name, said, is_called in public_names()}
    assert {name: words for name, words in found.items() if words} == {}
    assert len(found) > 250


def test_attributes_of_public_classes_say_what_they_are() -> None:
    """In this class or a base of it."""
    classes = [value for _, value, _ in public_names() if isinstance(value, type)]
    found = {cls: [attributes(owner) for owner in own_classes(cls)] for cls in classes}
    silent = {
        f"{cls.__name__}.{name}"
        for cls, each in found.items()
        for name in set().union(*each)
        if not any(texts.get(name) for texts in each)
    }
    assert silent == set()
    assert sum(map(len, found.values())) > len(classes)


def test_editors_read_what_calls_give() -> None:
    """Editors that run nothing know results by annotations; of overloads none gives just anything."""
    given: dict[Any, str] = {
        jitree.Session.to_device: "Array", jitree.Session.empty: "Array", jitree.Array.copy: "Array",
        jitree.Session.lookup: "Function", jitree.Session.prepare: "Function", jitree.Program.open: "Session",
        jitree.Module.__getattr__: "Function", jitree.Module.__getitem__: "Function",
        jitree.Session.tap: "Taps", jitree.Session.profile: "Profile", jitree.Session.metrics: "Metrics",
        jitree.inspect: "ModuleSummary", jitree.diff: "Difference", jitree.Session.__enter__: "Session",
    }  # fmt: skip
    assert all(inspect.signature(said).return_annotation == name for said, name in given.items())
    for load in (jitree.load, jitree.Session.load):
        one, several, both = (inspect.signature(each).return_annotation for each in get_overloads(load))
        assert (one, several) == ("Module", "tuple[Module, ...]") and both == f"{one} | {several}"
        assert inspect.signature(load).return_annotation == both  # which some editors read


def test_the_rules_find_what_is_lacking() -> None:
    def copied(array: np.ndarray[Any, Any], timeout: float, length: int) -> None:
        """Copies an array."""

    def said(array: np.ndarray[Any, Any], timeout: float, length: int) -> None:
        """Copies ``length`` bytes of ``array``, any shape, in ``timeout`` seconds. NOT_FOUND without."""

    assert [*lacking(copied, True)] == [
        "``array``", "``timeout``", "``length``", "a shape", "seconds", "bytes or elements", "errors",
    ]  # fmt: skip
    assert [*lacking(said, True)] == []


@pytest.mark.usefixtures("scripted")
def test_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all public names, in the root of the project; ``jitree`` and ``np`` are imported.

    The compiler is a script that has the module.
    """
    monkeypatch.chdir(ROOT)
    runner, parser = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), doctest.DocTestParser()
    shown, names = set(), set()
    for name, said, _ in public_names():
        test = parser.get_doctest(documentation(said), {"jitree": jitree, "np": np}, name, None, 0)
        shown |= {name} if test.examples else set()
        names |= {name.partition(".")[0]}
        runner.run(test)
    assert runner.failures == 0
    assert names - shown == set()
    assert WITH_EXAMPLES - shown == set()
