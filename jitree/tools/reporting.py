"""Reports failures as one line on stderr, in the form of IREE's tools."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from jitree.api.load_order import IMPORTED_NAME
from jitree.base.arguments import said
from jitree.errors import (
    NonFiniteError,
    StatusError,
    attribute_of,
    not_installed,
    pass_interruption,
    printable,
)

_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
_ERRORS = _PACKAGE_FOLDER / "jitree" / "errors.py"


def error_line(error: BaseException) -> str:
    """``<where>: <CODE>; <message>; <context>; …``; what the system refuses and what is not installed is
    UNAVAILABLE, another failure that is not a status INTERNAL."""
    place = raised_by_custom_module(error.__traceback__)
    if place is not None and not isinstance(error, StatusError):
        return "; ".join([f"{place}: UNKNOWN", f"{said(error)}", *_notes(error)])
    if isinstance(error, StatusError):
        text = "; ".join([str(error), *error.backtrace])
    elif isinstance(error, ImportError):
        text = f"UNAVAILABLE; {not_installed(error)}"
    elif isinstance(error, OSError):
        text = f"UNAVAILABLE; the system refuses it: {error}"
    elif isinstance(error, MemoryError):
        text = f"RESOURCE_EXHAUSTED; there is not enough memory: {str(error) or type(error).__name__}"
    else:
        text = f"INTERNAL; {said(error)}; this is a defect of jitree (--verbose tells more)"
    # what a program computes is not found where it was looked for: the dispatch that made it comes first
    where = None if isinstance(error, NonFiniteError) else raised_at(error.__traceback__)
    return f"{where}: {text}" if where else text


def raised_by_custom_module(trace: TracebackType | None) -> str | None:
    """``my_module.py:12``: the innermost place in a module that the user wrote; None if none was involved."""
    where = None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).startswith(IMPORTED_NAME):
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


def _notes(error: BaseException) -> list[str]:
    return [line.strip() for note in attribute_of(error, "__notes__", ()) for line in note.splitlines()]


def raised_at(trace: TracebackType | None) -> str | None:
    """``jitree/loaders/elf_file.py:120``: the innermost place in this package that an error came from.

    Where a block of `errors.py` has raised it, that is the place of the block.
    """
    where = None
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE_FOLDER) and path != _ERRORS:
            where = f"{path.relative_to(_PACKAGE_FOLDER)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


def in_colours(stream: Any, style: str = "") -> None:
    """Shows text of a stream in colours, and tables with lines, on a terminal.

    Rich makes them, where that is installed and the environment has no ``NO_COLOR``."""
    if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty():
        use_colours(stream, style)


def use_colours(stream: Any, style: str) -> None:
    """As :func:`in_colours`, whatever the stream is; only a terminal gets tables with lines."""
    try:
        from rich.console import Console  # it takes a tenth of a second
    except ImportError as error:
        pass_interruption(error)
        return
    console = Console(file=io.StringIO(), force_terminal=True, markup=False, emoji=False, soft_wrap=True)

    def coloured(text: str) -> str:
        with console.capture() as captured:
            console.print(text, end="", style=style)
        return str(captured.get())

    def drawn(cells: Sequence[Sequence[str]]) -> str:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        header, *rows = [[Text(printable(text)) for text in line] for line in cells]
        made = Table(box=SIMPLE_HEAD, header_style="bold")
        for number, title in enumerate(header):
            is_number = all((row[number].plain or "0")[0].isdigit() for row in rows)
            made.add_column(title, justify="right" if is_number else "left", overflow="fold")
        for row in rows:
            made.add_row(*row)
        with console.capture() as captured:
            console.print(made)
        return str(captured.get()).rstrip("\n")

    stream.coloured, stream.drawn = coloured, drawn if stream.isatty() else None


def report(error: BaseException, *, verbose: bool) -> None:
    """Writes the error to stderr; with its Python traceback when asked."""
    if verbose:
        traceback.print_exception(error, file=sys.stderr)
    in_colours(sys.stderr, "red")
    print(error_line(error), file=sys.stderr, flush=True)
