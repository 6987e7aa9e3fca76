"""Notes to Python's logger: none takes a lock for good, whatever interrupts it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import ClassVar
from unittest.mock import MagicMock

import pytest

from jitree.base import logs
from jitree.codegen import image


class Interrupted:
    """A lock that a signal's handler interrupts when it has just been taken, as Ctrl-C may."""

    def __init__(self) -> None:
        self.lock = RLock()

    def acquire(self) -> None:
        self.lock.acquire()
        raise KeyboardInterrupt

    __enter__ = acquire

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        self.lock.release()

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]


@contextmanager
def handled(lock: object) -> Iterator[logging.Handler]:
    """The logger has a handler with this lock."""
    logger, handler = logging.getLogger(logs.NAME), logging.StreamHandler()
    level = logger.level
    handler.lock = lock  # type: ignore[assignment]
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield handler
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_calls_take_no_lock_of_logging(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The campaign `interruptions` found it (2,822): each other thread waited for ever."""
    noted, lock = MagicMock(), MagicMock()
    monkeypatch.setattr(image, "note", noted)
    monkeypatch.setattr(logging, "_lock", lock)
    logger = logging.root.manager.loggerDict.get(logs.NAME)
    monkeypatch.setattr(logger if isinstance(logger, logging.Logger) else logging.root, "level", level)
    image._note_found("a function")
    assert not lock.mock_calls
    assert noted.called is (level == logging.DEBUG)


def test_a_lock_that_is_interrupted_is_given_back() -> None:
    lock = Interrupted()
    with handled(lock), pytest.raises(KeyboardInterrupt):
        logs.note("found", "something", "debug")
    assert not lock._is_owned()


def test_a_handler_that_has_no_lock_is_told() -> None:
    """Python asks of a handler for a level and a function; it got nothing, and nothing was said."""

    class Handler:
        level = logging.NOTSET
        told: ClassVar[list[str]] = []

        def handle(self, record: logging.LogRecord) -> None:
            self.told.append(record.getMessage())

    logger, handler = logging.getLogger(logs.NAME), Handler()
    before = logger.level
    logger.addHandler(handler)  # type: ignore[arg-type]
    logger.setLevel(logging.DEBUG)
    try:
        logs.note("test", "something was done")
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)  # type: ignore[arg-type]
    assert handler.told == ["something was done"]


def test_a_lock_that_the_caller_has_stays_its_own() -> None:
    """A handler may call a session."""
    lock = Interrupted()
    lock.lock.acquire()
    with handled(lock), pytest.raises(KeyboardInterrupt):
        logs.note("found", "something", "debug")
    assert lock._is_owned()
