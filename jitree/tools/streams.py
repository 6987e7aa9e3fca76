"""What commands write to: their output, which a failure to write ends, and their messages, which it does not.

Neither commands a terminal: programs have names and messages of any kind.
"""

from __future__ import annotations

import abc
import errno
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

from jitree.errors import UnavailableError, ignored, pass_interruption, printable

_STANDARD: Final = (0, 1, 2)


class Shown(abc.ABC):
    """A stream of texts; ``stream`` is None where the process was started without it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> OutputBytes:
        return OutputBytes(self)

    def write(self, text: str) -> int:
        self.do(lambda stream: _write(stream, printable(text)))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def flush(self) -> None:
        self.do(lambda stream: stream.flush())

    def do(self, action: Callable[[Any], object]) -> None:
        """Does something with the stream."""
        try:
            if self._stream is None:
                raise OSError(errno.EBADF, "it is closed")
            action(self._stream)
        except (OSError, ValueError) as error:  # the latter of one that the program has closed
            pass_interruption(error)
            self.discard()
            self.fail(error)

    @abc.abstractmethod
    def fail(self, error: Exception) -> None:
        """What follows when something cannot be written."""

    def discard(self) -> None:
        """Points the stream at nothing, so that the interpreter's own flush at exit fails no more."""
        with ignored(OSError, ValueError, AttributeError), open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), self._stream.fileno())


class OutputBytes:
    """What takes bytes of a stream of texts."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def write(self, data: bytes | memoryview) -> int:
        self._shown.do(lambda stream: stream.buffer.write(data))
        return len(data)

    def flush(self) -> None:
        self._shown.do(lambda stream: stream.buffer.flush())


class Output(Shown):
    """What a command is called for."""

    def fail(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):  # who reads it has read enough
            raise error
        reason = error.strerror if isinstance(error, OSError) else error
        raise UnavailableError(f"standard output cannot be written: {reason}") from None


class Messages(Shown):
    """What a command says beside its output. A message that cannot be written is dropped."""

    def fail(self, error: Exception) -> None:
        """The command goes on."""


def _write(stream: Any, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:  # a terminal or file of another encoding
        stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))


def keep_standard_numbers() -> None:
    """Opens what a process was started without: a file that is opened later would get that number, and what
    native code says would be written into it."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
