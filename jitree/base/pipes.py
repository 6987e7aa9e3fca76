"""Reads files that may be pipes, into which nobody may ever write.

To open a named pipe waits for a writer, and some devices for a line. So files are opened without waiting
(:func:`~jitree.base.platform.open_at_once`), and a pipe has some seconds to get its first byte or a writer:
``/dev/stdin`` and a shell's ``<(…)`` have one from the beginning, and a program that is started in the same
line soon.
"""

from __future__ import annotations

import io
import os
import stat
import time
from collections.abc import Iterator
from typing import BinaryIO, Final

from jitree.base.platform import open_at_once
from jitree.errors import InvalidArgumentError, UnavailableError, pass_interruption, printable

WRITER_SECONDS = 5.0
"""How long a pipe may be without a writer."""
_LOOK_SECONDS: Final = 0.005
_PART: Final = 1 << 20
_MOST: Final = 1 << 30
"""Bytes of a pipe that tools read."""


def first_part(descriptor: int) -> bytes:
    """Reads what a pipe has, once it has a writer. Reads wait from then on.

    It was opened without waiting. UNAVAILABLE where nobody writes into it, or had nothing to write.
    """
    until = time.monotonic() + WRITER_SECONDS
    while True:
        try:
            data = os.read(descriptor, _PART)
        except BlockingIOError as error:  # somebody has it, and has not written yet
            pass_interruption(error)
            data = None
        if data is None or data:
            os.set_blocking(descriptor, True)
            return data or b""
        if time.monotonic() >= until:
            raise UnavailableError(
                f"it is a pipe, into which nobody has written for {WRITER_SECONDS:g} s; start what writes "
                "into it before, or copy that to a file and pass its path"
            )
        time.sleep(_LOOK_SECONDS)


def parts(descriptor: int) -> Iterator[bytes]:
    """Reads a pipe, which was opened without waiting, to its end. UNAVAILABLE as :func:`first_part`."""
    yield first_part(descriptor)
    while part := os.read(descriptor, _PART):
        yield part


def input_file(path: str | os.PathLike[str], most: int = _MOST) -> BinaryIO:
    """Opens a file to be read from its beginning; a pipe is read as a whole, at most so many bytes.

    INVALID_ARGUMENT for a device, which may never end, for a longer pipe, and for what no file is called;
    UNAVAILABLE for a pipe without a writer; OSError as of ``open``.
    """
    try:
        file = open(path, "rb", opener=open_at_once)
    except ValueError as error:  # a NUL, or half a character
        pass_interruption(error)
        raise InvalidArgumentError(f"'{printable(os.fspath(path))}' is no name of a file: {error}") from None
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode):
        return file
    with file:
        if not stat.S_ISFIFO(mode):
            raise InvalidArgumentError(f"'{os.fspath(path)}' is a device, not a file; pass a file or a pipe")
        data = bytearray()
        for part in parts(file.fileno()):
            data += part
            if len(data) > most:
                raise InvalidArgumentError(f"the pipe '{os.fspath(path)}' has more than {most} bytes")
    return io.BytesIO(data)
