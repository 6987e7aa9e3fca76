"""What a signal's handler raises may be a StopIteration. A function in C that iterates takes it for the end
of what it iterates on: of ``map``, ``filter`` and ``starmap`` over a function of Python the rest is left out,
and the exception is lost. A comprehension lets it through as itself. So these take functions in C only where
calls run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jitree.compat.iree_runtime import array_interop, buffers
from jitree.dispatch import function, sites
from jitree.hal.groups.channel import GroupTransport
from jitree.hal.objects import KnownChannels
from jitree.vmfb.cconv import parse
from tests.sizes import FILES, PACKAGE, tree

_STEPS = {"map", "filter", "starmap"}
_IN_C = {
    "_CAPACITY", "_IS_USED", "_LIVE", "bool", "id", "int", "len", "max", "ref", "repr", "str", "sum", "type",
}  # fmt: skip
_METHODS_IN_C = {
    "__contains__", "__delitem__", "__getitem__", "__setitem__", "acquire", "append", "get", "pop",
    "put", "rjust", "search",
}  # fmt: skip
_DURING_CALLS = ("api/calls", "compat", "cuda", "dispatch", "hal", "modules/hal", "regs")
_OTHERS = (
    "dispatch/native/",  # compiles
    "cuda/api.py", "cuda/context.py", "cuda/nccl.py",  # steps are functions of the driver
    # objects are ended by functions in C alone: in the first file each step is asked for by itself, in the
    # second the step that runs Python is the last one
    "api/calls/native/handle_owners.py", "api/calls/native/unknown_interpreter.py",
)  # fmt: skip


def is_of_python(call: ast.Call) -> bool:
    """Whether each step may run code of Python."""
    if not isinstance(call.func, ast.Name) or call.func.id not in _STEPS or not call.args:
        return False
    stepped = call.args[0]
    if isinstance(stepped, ast.Call) and isinstance(stepped.func, ast.Name):
        return stepped.func.id != "methodcaller"
    if isinstance(stepped, ast.Attribute):
        return stepped.attr not in _METHODS_IN_C
    if isinstance(stepped, ast.Constant):
        return stepped.value is not None
    return not isinstance(stepped, ast.Name) or stepped.id not in _IN_C


def calls_of(path: Path) -> Iterator[ast.Call]:
    """Calls inside of functions: what an import runs is complete or fails."""
    for body in ast.walk(tree(path)):
        if isinstance(body, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (node for node in ast.walk(body) if isinstance(node, ast.Call))


def run_by_calls(path: Path) -> bool:
    name = path.relative_to(PACKAGE).as_posix()
    return name.startswith(tuple(f"{folder}/" for folder in _DURING_CALLS)) and not name.startswith(_OTHERS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("map(read, row)", True), ("tuple(map(self.read, row))", True), ("filter(None, row)", False),
        ("map(len, row)", False), ("starmap(lambda a: a, row)", True), ("map(row.get, keys)", False),
        ('map(methodcaller("done"), futures)', False), ("map(partial(read, 1), row)", True),
    ],
)  # fmt: skip
def test_the_form_is_found(text: str, found: bool) -> None:
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    assert any(map(is_of_python, calls)) == found


def test_no_step_of_an_iteration_in_c_runs_python_where_calls_run() -> None:
    looked_at = [path for path in FILES if run_by_calls(path)]
    assert len(looked_at) > 100
    found = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}: use a comprehension"
        for path in looked_at
        for call in calls_of(path)
        if is_of_python(call)
    ]
    assert not found


def stop(*_: object) -> Any:
    """As a handler that runs inside of what is called."""
    raise StopIteration


def operands(patched: pytest.MonkeyPatch) -> object:
    patched.setattr(array_interop, "as_operand", stop)
    return array_interop._operands([1, 2])


def registers_of_a_site(patched: pytest.MonkeyPatch) -> object:
    patched.setattr(sites, "register_index", stop)
    site = SimpleNamespace(cconv=parse("0i_i"), segments=None, arguments=((0, 0),), results=((0, 1),))
    target = SimpleNamespace(export=SimpleNamespace(function=stop), state=None)
    return sites.bind(cast("Any", site), cast("Any", target))


def registers_of_the_host(patched: pytest.MonkeyPatch) -> object:
    patched.setattr(function, "register_counts", stop)
    return function.host_registers(function.register_slots(parse("0i_i")))


def elements(patched: pytest.MonkeyPatch) -> object:
    patched.setattr(buffers, "_described", stop)
    return buffers._elements(cast("Any", [1, 2]))


@pytest.mark.parametrize("act", [operands, registers_of_a_site, registers_of_the_host, elements])
def test_a_stop_of_iteration_goes_through(
    act: Callable[[pytest.MonkeyPatch], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StopIteration):
        act(monkeypatch)


class StoppingLock:
    """A handler raises while the lock is waited for."""

    def __init__(self) -> None:
        self.waits = iter((True,))

    def acquire(self, blocking: bool, timeout: float) -> bool:
        if next(self.waits):
            raise StopIteration
        return True

    def release(self) -> None:
        raise AssertionError("it has not been taken")


def test_a_stop_of_iteration_ends_the_wait_for_a_lock() -> None:
    channels = KnownChannels[object]()
    cast("Any", channels)._lock = StoppingLock()
    with pytest.raises(StopIteration):
        channels.get("name", object)
    transport = GroupTransport(cast("Any", SimpleNamespace(rank=0, count=2)))
    cast("Any", transport)._lock = StoppingLock()
    with pytest.raises(StopIteration):
        transport.exchange((0, 0, 0), (), ())
