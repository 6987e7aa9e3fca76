"""What is noted while a session is profiled: calls, imports, what devices did for them."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final

from jitree.base.folding import is_library
from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from jitree.hal.device import Device
    from jitree.hal.profiling import Measurement

_NO_CALL: Final = "(no call)"


class ProfiledCall(NamedTuple):
    """A call of a function of a program, or a part of one; nanoseconds of ``time.perf_counter_ns``."""

    function: str
    """``module.function``"""
    stack: list[tuple[CodeType, int]]
    """Functions of the user's, the calling one first, and the places in their code."""
    thread: int
    begun: int
    ended: int

    @property
    def site(self) -> str:
        """The line of Python that called: ``model.py:12 in main``. Of what an event loop calls, the one that
        runs the loop."""
        of_user = (each for each in self.stack if not is_library(each[0].co_filename))
        found = next(of_user, self.stack[0] if self.stack else None)
        return _NO_CALL if found is None else describe(*found)


class ProfiledImport(NamedTuple):
    """An import that Python made for a program."""

    module: Any
    number: int
    thread: int
    begun: int
    ended: int

    @property
    def name(self) -> str:
        return str(self.module.imports[self.number].full_name)


class CallParts(NamedTuple):
    """Nanoseconds of one call."""

    device: int
    """While devices work for it."""
    between: int
    """While devices work for it, and execute no command."""
    python: int
    """Imports that Python makes, without what devices do there."""


class DoneCommand(NamedTuple):
    """A dispatch, or a transfer in a command buffer, from its first to its last part."""

    name: str
    kind: str
    begun: int
    ended: int
    busy: int
    """Nanoseconds of all threads together."""
    bytes: int
    weight: float
    """How many such it stands for."""


class CallNotes(abc.ABC):
    """What notes the calls of a session, each when it has ended."""

    def __init__(self) -> None:
        self.imports: list[ProfiledImport] = []
        self.places: dict[str, str] = {}
        """The places of functions that were called, once it has stopped."""
        self.before: Callable[[str, int, int], bool] | None = None
        """Is told of each call, its thread and when it begins; whether that took a moment."""
        self.after: Callable[[int], None] | None = None
        """Is told of the thread whose call has ended, if ``before`` is told of calls."""

    @property
    @abc.abstractmethod
    def noted(self) -> Iterator[ProfiledCall]:
        """The calls, as they ended."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Notes nothing more."""

    @abc.abstractmethod
    def watch(self, function: Any) -> None:
        """Notes the calls of a function, too."""


def describe(code: CodeType, place: int) -> str:
    """``model.py:12 in main``"""
    return f"{code.co_filename}:{line_of(code, place)} in {code.co_qualname}"


def line_of(code: CodeType, place: int) -> int:
    lines = (line for first, last, line in code.co_lines() if first <= place < last and line)
    return next(lines, code.co_firstlineno)


class Noted(NamedTuple):
    """All of one profile."""

    begun: int
    calls: tuple[ProfiledCall, ...]
    imports: tuple[ProfiledImport, ...]
    measurements: tuple[tuple[Device, Measurement], ...]
    places: dict[str, str]
    """The places of dispatches and functions in the source."""
