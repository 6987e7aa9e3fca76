"""Finalizers and locks: what is forgotten ends where its thread has no lock that another one may wait for."""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.base import cancel_scopes, finalizers
from jitree.base.cancel_scopes import Scope
from jitree.base.finalizers import Finalized, guard, has_guard, join, with_lock, without_guards
from jitree.codegen import image
from jitree.codegen.image import Recipe
from jitree.dispatch.session_lock import NESTING, Held
from jitree.errors import FailedPreconditionError
from jitree.hal.heap import HeapAllocator
from jitree.hal.semaphore import Semaphore
from tests.base.interruption import interruptions
from tests.hal.helpers import wait_until
from tests.sizes import nodes

TIMEOUT = 30.0
PACKAGE = Path(jitree.__file__).parent
PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "arithmetic.vmfb"
NAME = "arithmetic.add"
OTHERS = {
    "api/process/worker.py": "wakes the thread that made it",
    "api/program.py": "held while a program is opened, around all else",
    "base/finalizers.py": "makes those that are known",
    "base/cancel_scopes.py": "no thread blocks for it",
    "codegen/checked/memory.py": "held while the map of memory begins, around all else",
    "codegen/image/__init__.py": "no thread blocks for it",
    "compat/iree_runtime/system_api.py": "held while a device is made, around all else",
    "dispatch/session_lock.py": "held by calls, around all else",
    "dispatch/variables.py": "left in C, and waited for with looks",
    "hal/groups/channel.py": "held by collectives, around all else, and waited for with looks",
    "hal/objects.py": "held while members find each other, around all else, and waited for with looks",
    "hal/waiting.py": "wakes a thread",
    "integrations/ray.py": "of asyncio",
    "modules/native_library/interface.py": "no thread blocks for it",
    "observe/lockstep.py": "two threads of one comparison take turns, around all else",
    "observe/profiled.py": "no thread blocks for it",
}
"""Files that make other locks, and why these hold up no ending."""
KINDS = ("RLock", "ReentrantLock", "Lock", "allocate_lock", "Condition")
TAKEN = {
    "api/process/worker.py": "of one wait; no other thread takes it",
    "dispatch/session_lock.py": "given back where an exception finds that the thread has it",
    "hal/waiting.py": "of one wait; no other thread takes it",
}
"""Files that take locks by `acquire`, and why an interrupt after that keeps none."""
EVENTS = ("cuda/channel.py", "cuda/context.py", "cuda/stream.py", "cuda/transfers.py")
"""Files that take events of the driver from those that are kept."""


def _makes_lock(path: Path) -> bool:
    return any(isinstance(node, ast.Call) and _name(node.func) in KINDS for node in _nodes_of(path, KINDS))


def _nodes_of(path: Path, names: Iterable[str]) -> Iterable[ast.AST]:
    """All of a file that has one of these names; nothing of another, since to read it takes longer."""
    text = path.read_text()
    return nodes(path) if any(name in text for name in names) else ()


def test_every_lock_is_known() -> None:
    assert {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _makes_lock(path)} == set(
        OTHERS
    )


def _takes_lock(path: Path) -> bool:
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "acquire"
        for node in _nodes_of(path, ["acquire"])
    )


def test_an_interrupt_keeps_no_lock() -> None:
    """Python looks for signals after `acquire`, also in front of `try`: what a handler raises there keeps the
    lock for good. So locks are taken by `with`, by :func:`with_lock`, or by functions in C that note it."""
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if _takes_lock(path)}
    assert found == {*TAKEN, *EVENTS}


BLOCKS = {
    ("api/process/worker.py", "done"): "of one wait; no other thread takes it",
}
"""Locks in C that ``with`` takes, and why an interrupt that keeps them does no harm."""


def _blocks_of_locks(path: Path) -> Iterator[str]:
    """Names of locks in C that a file makes and takes by ``with``."""
    made, taken = set[str](), set[str]()
    for node in _nodes_of(path, KINDS):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if _name(node.value.func) in {*KINDS} - {"ReentrantLock"}:
                made.update(map(_name, node.targets))
        elif isinstance(node, ast.With):
            taken.update(_name(item.context_expr) for item in node.items)
    return iter(made & taken)


def _name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def test_no_block_takes_a_lock_in_c() -> None:
    """Python 3.14 looks for signals between `__enter__` in C and the block, which would keep the lock."""
    paths = ((path, str(path.relative_to(PACKAGE))) for path in PACKAGE.rglob("*.py"))
    assert {(shown, name) for path, shown in paths for name in _blocks_of_locks(path)} == {*BLOCKS}


def _limited() -> None:
    with _scopes[-1]:
        pass


def _looked_for() -> None:
    _provider.find()


def _in_a_block() -> None:
    with _reentrant:
        len(())
        with Held(_plain):
            len(())


_scopes: list[Scope] = []
_provider = image.provider(Recipe("lock", "lock", "tests.codegen.image_texts:slow_texts", 1.0, (b"",)))
_plain, _reentrant = threading.Lock(), guard()
_works: dict[str, tuple[Callable[[], object], Callable[[], bool]]] = {
    "plain": (lambda: with_lock(_plain, bool), _plain.locked),
    "reentrant": (lambda: with_lock(_reentrant, list, 0.1), has_guard),
    "failing": (lambda: with_lock(_plain, lambda: next(iter(()))), _plain.locked),
    "block": (_in_a_block, lambda: _plain.locked() or has_guard()),
    "scope": (_limited, lambda: _scopes[-1].is_open),
    "look": (_looked_for, _provider._lock.locked),
}


@pytest.mark.parametrize("name", _works)
def test_a_lock_that_is_interrupted_is_free(name: str) -> None:
    work, is_taken = _works[name]
    places = 0
    for interruption in interruptions(0):
        _scopes[:] = [Scope(60)]
        _provider._next_look = 0.0
        with suppress(StopIteration):
            interruption.during(work)
        assert not is_taken(), f"interrupted at place {interruption.place}"
        places += 1
    assert places > 3


def test_with_a_lock_that_is_taken_nothing_is_done() -> None:
    lock = threading.Lock()
    assert with_lock(lock, lambda: 1) == 1
    with lock:
        assert with_lock(lock, lambda: 1) is None
        assert with_lock(lock, lambda: 1, 0.001) is None
    assert with_lock(lock, lambda: 2) == 2


class _Late(Finalized):
    def __init__(self, end: Callable[[], None]) -> None:
        self._at_end = end
        self.will_end()

    def end(self) -> None:
        self._at_end()


def test_two_threads_that_want_the_lock_of_the_other_one() -> None:
    """One by an ending."""
    first, second = guard(), guard()
    has_first, ended = threading.Event(), threading.Event()

    def end() -> None:
        with first:
            ended.set()

    def other() -> None:
        with first:
            has_first.set()
            with second:
                pass

    def one() -> None:
        late = [_Late(end)]
        with second:
            threads[1].start()
            has_first.wait()
            late.clear()

    threads = [threading.Thread(target=target, daemon=True) for target in (one, other)]
    threads[0].start()
    for thread in threads:
        if thread.ident is None:
            assert has_first.wait(TIMEOUT)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert ended.wait(TIMEOUT)


def test_without_a_lock_it_is_done_at_once() -> None:
    seen = list[int]()
    late = [_Late(lambda: seen.append(threading.get_ident()))]
    late.clear()
    assert seen == [threading.get_ident()]
    assert not has_guard()


class _Noted(Session):
    threads: ClassVar[list[int]] = []

    def end(self) -> None:
        self.threads.append(threading.get_ident())
        super().end()


@pytest.mark.parametrize(
    "lock_of", [lambda session: session.device.device_allocator._lock, lambda _: Semaphore._lock]
)
def test_a_session_ends_on_another_thread(lock_of: Callable[[Session], threading.RLock]) -> None:
    """As one does that a garbage collection ends while its device lends memory."""
    with Session("local-sync") as owner:
        assert isinstance(owner.device.device_allocator, HeapAllocator)
        holder = [_Noted(device=owner.device)]
        invoker = holder[0].context.invoker
        _Noted.threads.clear()
        with lock_of(owner):
            holder.clear()
        wait_until(lambda: invoker.closed)
    assert len(_Noted.threads) == 1 and threading.get_ident() not in _Noted.threads


def _wait_for_another(stack: ExitStack, session: Session) -> Callable[[], object]:
    """For a fence that no other thread can reach."""
    return partial(Semaphore().wait, 1)


def _wait_for_a_call(stack: ExitStack, session: Session) -> Callable[[], object]:
    """For the session, which another thread's call has."""
    begun, ended = threading.Event(), threading.Event()
    function = session[NAME]
    gate = session.context.invoker

    def hold() -> None:
        with gate.lock:
            gate.gate[NESTING] = 1
            begun.set()
            ended.wait(TIMEOUT)
            gate.gate[NESTING] = 0

    holder = threading.Thread(target=hold)
    holder.start()
    stack.callback(holder.join)
    stack.callback(ended.set)
    begun.wait(TIMEOUT)
    return partial(function, *[np.zeros(4, np.float32)] * 2)


def _wait_for_a_thread(stack: ExitStack, session: Session) -> Callable[[], object]:
    """Which works."""
    ended = threading.Event()
    worker = threading.Thread(target=ended.wait, args=(TIMEOUT,))
    worker.start()
    stack.callback(worker.join)
    stack.callback(ended.set)
    return partial(join, worker)


@pytest.mark.parametrize("prepare", [_wait_for_another, _wait_for_a_call, _wait_for_a_thread])
def test_a_finalizer_of_the_caller_does_not_wait_with_a_lock(
    prepare: Callable[[ExitStack, Session], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector runs it anywhere. What it waits for may want that lock, and never come."""
    monkeypatch.setattr(cancel_scopes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(finalizers, "_LOOK_SECONDS", 0.01)
    with Session("local-sync") as session, ExitStack() as stack:
        session.load(PROGRAM)
        wait = prepare(stack, session)
        with Semaphore._lock, pytest.raises(FailedPreconditionError, match="a finalizer"):
            wait()


def test_an_end_without_a_thread_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("jitree.base.finalizers.start_new_thread", refuse)
    seen = list[str]()
    with guard() as _:
        without_guards(lambda: seen.append("put off"))
    assert not seen
    without_guards(lambda: seen.append("done"))
    assert seen == ["done", "put off"]


def test_a_forked_child_has_no_lock_of_other_threads() -> None:
    lock = guard()
    taken, done = threading.Event(), threading.Event()

    def take() -> None:
        with lock:
            taken.set()
            done.wait(TIMEOUT)

    thread = threading.Thread(target=take)
    thread.start()
    assert taken.wait(TIMEOUT)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(blocking=False) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
