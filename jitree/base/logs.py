"""Tells people what the process does beside calls. Python's logger ``jitree`` gets it, with how far it has
come.

The logger is silent unless the program, or ``JITREE_LOG=info`` in the environment (debug, info, warning),
says otherwise: without either no handler is there, and ``logging``, which takes 5 ms to import, is not
imported. Those who do long work (compiling, copies, archives, parameters, machine code) report to whom is in
a ``with`` block of :class:`progress`; elsewhere nothing is imported for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import NOTE, EventReader, Note, ObservedEvent, listen, process, stop_listening
from jitree.errors import InvalidArgumentError, attribute_of, ignored, pass_interruption, printable, tell

if TYPE_CHECKING:
    from logging import Logger

NAME: Final = "jitree"
VARIABLE: Final = "JITREE_LOG"
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30}
_FORM: Final = "jitree: %(message)s"


class LogWriter(EventReader):
    """Gives the logger each note."""

    needs_python = False

    def __init__(self) -> None:
        self._wanted = _wanted()
        self._logger: Logger | None = None

    def begins(self, event: Any) -> None:
        if event.kind != NOTE or (self._wanted is None and "logging" not in sys.modules):
            return  # nobody can have asked for the logger
        logger = self._logger or self._prepare()
        level = _LEVELS[event.level]
        if logger.getEffectiveLevel() <= level:  # `isEnabledFor` takes a lock
            text = f"{event.name} ({event.seconds:.2f} s)" if event.seconds else event.name
            with _locks_kept(logger):
                logger.log(
                    level, "%s", printable(text), extra={"topic": event.topic, "seconds": event.seconds}
                )

    def _prepare(self) -> Logger:
        import logging

        logger = logging.getLogger(NAME)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())  # else warnings would come without being asked for
        if self._wanted is not None:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter(_FORM))
            logger.addHandler(handler)
            logger.setLevel(self._wanted)
        self._logger = logger
        return logger


class _locks_kept:
    """Gives locks of ``logging`` back that were lost: where a signal's handler raises as one is taken, Python
    3.11 and 3.12 keep it for good, and other threads wait."""

    def __init__(self, logger: Logger) -> None:
        import logging

        handlers = [*logger.handlers, *logging.root.handlers]
        locks: list[Any] = [logging._lock, *(attribute_of(each, "lock") for each in handlers)]  # type: ignore[attr-defined]
        self._free = [lock for lock in locks if hasattr(lock, "_is_owned") and not lock._is_owned()]

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        for lock in self._free if error is not None else ():
            while lock._is_owned():
                lock.release()


def _wanted() -> int | None:
    """The level that the environment names. Another text is said, and taken for ``info``."""
    name = os.environ.get(VARIABLE, "").strip().lower()
    if not name:
        return None
    if name not in _LEVELS:
        tell(f"jitree: {VARIABLE}={printable(name)} is none of {', '.join(_LEVELS)}; taken as info\n")
    return _LEVELS.get(name, _LEVELS["info"])


tallies: Final[dict[str, tuple[int, float]]] = {}
"""How many notes there were of a topic, and how many seconds that took."""
listen(process, LogWriter())


def note(topic: str, text: str, level: str = "info", seconds: float = 0.0) -> None:
    """Counts something, and tells readers. Those that raise do not disturb it, but for an interruption."""
    count, total = tallies.get(topic, (0, 0.0))
    tallies[topic] = count + 1, total + seconds
    event = Note(topic, text, level, seconds)
    for reader in process.readers:
        with ignored(Exception):
            reader.begins(event)


PROGRESS: Final = "progress"
_BYTES: Final = "bytes"
_TENTH: Final = 10


class ProgressStep(ObservedEvent):
    """Tells that a part of something long is done. ``done`` of ``total`` are counted in ``unit`` (bytes,
    steps, images)."""

    def __init__(self, name: str, done: int, total: int, unit: str) -> None:
        super().__init__(PROGRESS, name)
        self.done, self.total, self.unit = done, total, unit

    def __str__(self) -> str:
        from jitree.base.tables import bytes_text  # few ask: it takes 2 ms to import

        amounts = [bytes_text(each) if self.unit == _BYTES else str(each) for each in (self.done, self.total)]
        return f"{self.name}: {amounts[0]} of {amounts[1]}"


def report(name: str, done: int, total: int, unit: str = "steps") -> None:
    """Tells those who want to know. What they raise ends the work."""
    for reader in process.readers:
        if isinstance(reader, progress):
            reader.begins(ProgressStep(name, done, total, unit))


class progress(EventReader):
    """Shows, in a ``with`` block, how far long work has come; of all threads.

    ``callback`` gets a :class:`ProgressStep` with ``name``, ``done``, ``total`` and ``unit`` (bytes, steps,
    images) each time; an exception of it ends the work. Without one a bar is drawn, by rich where that is
    installed (also in notebooks), else as lines on standard error. INVALID_ARGUMENT for what cannot be
    called.

    >>> with jitree.progress(lambda step: print(step.name, step.done, step.total)):
    ...     digits = jitree.load("examples/digits/digits.vmvx.vmfb")  # too small to be told
    """

    needs_python = False
    """Calls by machine code tell of long work, too."""

    def __init__(self, callback: Callable[[ProgressStep], object] | None = None) -> None:
        if callback is not None and not callable(callback):
            raise InvalidArgumentError("progress: expected a function, which gets each step, or nothing")
        self._told = callback
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def begins(self, event: Any) -> None:
        """Is told of each ``event`` of the process, and passes on what is progress. It raises what the
        callback raises.
        """
        if event.kind == PROGRESS and self._told is not None:
            self._told(event)

    def __enter__(self) -> progress:
        if self._told is None:
            self._told = self._prepare()
        listen(process, self)
        return self

    def __exit__(self, *exception: object) -> None:
        stop_listening(process, self)
        if self._bars is not None:
            self._bars.stop()

    def _prepare(self) -> Callable[[ProgressStep], object]:
        try:
            from rich.console import Console
            from rich.progress import Progress
        except ImportError as error:
            pass_interruption(error)
            return self._write_line
        self._bars = Progress(console=Console(stderr=True))
        self._bars.start()
        return self._draw

    def _draw(self, step: ProgressStep) -> None:
        text = printable(step.name).replace("[", r"\[")  # brackets are markup
        if step.name not in self._tasks:
            self._tasks[step.name] = self._bars.add_task(text, total=step.total)
        self._bars.update(self._tasks[step.name], completed=step.done, total=step.total)

    def _write_line(self, step: ProgressStep) -> None:
        tenth = _TENTH * step.done // max(step.total, 1)
        if self._tasks.get(step.name) != tenth:
            self._tasks[step.name] = tenth
            tell(printable(f"jitree: {step}") + "\n")
