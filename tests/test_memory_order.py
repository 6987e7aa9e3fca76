"""Words that threads and machine code share: each place says its order, and the page has a row for it."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from jitree.codegen import image
from jitree.codegen.record import atomic_load, place_of, size_of
from jitree.hal.command_layout import KernelEntry
from jitree.hal.local import event_log
from jitree.hal.profiling import Profiler, ProfilingMode
from jitree.loaders.vmvx import native
from jitree.loaders.vmvx.kernels import SPANS, KernelEnvironment
from jitree.regs.memory import address_of, zeroed
from tests.loaders.vmvx.cut_programs import compiled
from tests.loaders.vmvx.test_packed import product
from tests.sizes import FILES, PACKAGE

_PAGE = PACKAGE / "hal" / "README.md"
_OPERATIONS = {"atomic_load", "atomic_store", "atomic_add", "atomic_replace", "order_stores"}
_THEIR_OWN = {"codegen/record.py", "codegen/functions.py", "base/platform/threads.py"}
"""Where the operations are made."""
_STATED = re.compile(r"# order of (\w+(?:, \w+)*): \S")


_FILES = [
    path
    for path in FILES
    if path.relative_to(PACKAGE).as_posix() not in _THEIR_OWN
    and re.search("|".join(_OPERATIONS), path.read_text(encoding="utf-8"))
]


def _rows() -> set[str]:
    """The words of the table."""
    text = _PAGE.read_text(encoding="utf-8").partition("## Memory order")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`(\w+)`", row)}


@cache
def _stated() -> dict[Path, list[tuple[int, str]]]:
    """Lines and words of the comments, by file."""
    texts = {path: path.read_text(encoding="utf-8").splitlines() for path in FILES}
    return {
        path: [
            (number, word)
            for number, line in enumerate(lines, 1)
            if (found := _STATED.search(line))
            for word in found[1].split(", ")
        ]
        for path, lines in texts.items()
    }


def _operations(path: Path) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for node in ast.walk(function) if isinstance(function, ast.FunctionDef) else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _OPERATIONS:
                assert isinstance(function, ast.FunctionDef)
                yield function, node


def test_each_word_has_a_row_and_each_row_a_place() -> None:
    stated = {word for found in _stated().values() for _, word in found}
    assert stated == _rows(), f"{_PAGE.name}, 'Memory order'"


@pytest.mark.parametrize("path", _FILES, ids=[path.relative_to(PACKAGE).as_posix() for path in _FILES])
def test_each_operation_states_its_order(path: Path) -> None:
    """The function says it of the word that it names, or of one that it finds by its address."""
    silent = []
    for function, call in _operations(path):
        end = function.end_lineno or 0
        words = {word for line, word in _stated()[path] if function.lineno <= line <= end}
        operand = call.args[0] if call.args else None
        named = {operand.attr} if isinstance(operand, ast.Attribute) else words
        if not named & words:
            silent.append(f"{function.name}:{call.lineno}: {ast.unparse(call)}")
    assert not silent


def test_stores_are_ordered_by_one_function() -> None:
    """A lock that is only taken orders nothing that was stored before."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    found = {name for name, text in texts.items() if re.search(r"with \S*(publishing|ordering)\b", text)}
    assert found == {"base/platform/threads.py"}


def test_code_is_shown_after_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And parts after the code that knows them."""
    seen: list[tuple[bool, bool, bool]] = []
    use = native.CompiledKernels._use
    kernels: list[tuple[native.CompiledKernels, int]] = []

    def look() -> None:
        own, ordinal = kernels[-1]
        assert own._records is not None
        entry = KernelEntry(own._records.buffer_info()[0] + 8 * ordinal * native._ENTRY_WORDS)
        environment = KernelEnvironment(entry.environment)
        spans = image.get(SPANS)
        is_shown = spans is not None and atomic_load(entry.code) == spans.addresses["run_span"]
        seen.append((environment.workgroup != 0, is_shown, entry.parts > 1))

    def watched(own: native.CompiledKernels, ordinal: int, ready: image.Image | None) -> None:
        kernels.append((own, ordinal))
        use(own, ordinal, ready)

    monkeypatch.setattr(native.CompiledKernels, "_use", watched)
    monkeypatch.setattr(native, "order_stores", look)
    text = product()
    text.constant(20_261_130)  # machine code of no other test, which cuts nothing, is there
    executable = compiled(text)
    assert seen[-2:] == [(True, False, False), (True, True, False)]
    assert KernelEntry(executable.entry_point(0)).parts > 1


def test_two_threads_tell_of_stores_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address with the size of another would let a kernel store where copies are read."""
    places = iter([(4096, 64), (8192, 1 << 20)])
    record = zeroed(size_of(KernelEnvironment), 64)
    environment = KernelEnvironment(address_of(record))
    environment.stores = 1
    tell = partial(native.CompiledKernels._tell_of_stores, place_of(environment), 0)
    others: list[threading.Thread] = []
    orders: list[int] = []

    def order() -> None:
        orders.append(1)
        if len(orders) == 2:  # after the address, before its size
            others.append(threading.Thread(target=tell))
            others[0].start()
            others[0].join(0.2)  # it may come in between, or has to wait

    monkeypatch.setattr(native, "private_bindings", lambda dispatch: [(0, 1, 1)])
    monkeypatch.setattr(native, "make_writable", lambda dispatch, number: None)
    monkeypatch.setattr(native, "note_stores", lambda address, length: next(places))
    monkeypatch.setattr(native, "order_stores", order)
    tell()
    others[0].join()
    found = atomic_load(environment.changed), atomic_load(environment.changed_size)
    assert found in ((4096, 64), (8192, 1 << 20))


def test_a_log_is_shown_after_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """And jobs are looked for after it has been closed."""
    log = event_log.EventLog(Profiler(), [])
    seen: list[tuple[bool, int]] = []
    monkeypatch.setattr(
        event_log,
        "order_stores",
        lambda: seen.append((bool(log._log.events), atomic_load(log._log.capacity))),
    )
    log.begin(ProfilingMode.DISPATCH_COUNTERS)
    assert seen == [(True, 0)] and atomic_load(log._log.capacity) == event_log.CAPACITY
    log.end()
    assert seen == [(True, 0), (True, 0)] and not log._log.events
