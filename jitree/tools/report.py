"""Writes one page about a module and a call of it: ``jitree report``.

There is a page whatever is missing: it says what, and so does stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from jitree.api.report import ProgramReport, add_code, look
from jitree.api.showing import function_pieces
from jitree.base.page import WRONG, Notice, PageTable, Text
from jitree.compare.peers import is_onnx
from jitree.compare.sides import function_of
from jitree.errors import InvalidArgumentError, StatusError
from jitree.tools.comparing import GROUPS, allowed, inputs_of, side, two_sides
from jitree.tools.dump_summary import executable_lines, findings, summary_lines
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.observe_flags import wait_for_compiled_code
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import BytecodeModule, decode_module
from jitree.vmfb.module import read_module

if TYPE_CHECKING:
    from jitree.vmfb.schema import ModuleTables

FLAGS: Final = flag_set(
    "report",
    "writes one page: what a module is, its dispatches, times, statistics, where another departs",
    f"{GROUPS} report",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Returns 0, or 1 where the module cannot be read or called; there is a page all the same."""
    modules = flags.texts("module")
    if not modules or is_onnx(modules[0]):
        raise InvalidArgumentError("no compiled module was given: jitree report model.vmfb")
    made = ProgramReport(" and ".join(map(os.path.basename, modules)))
    tables = _read(made, modules[0])
    is_whole = tables is not None and _look(made, flags)
    if tables is not None:
        _add_code(made, tables)
    made.save(flags.text("output"))
    for piece in made.pieces:
        if isinstance(piece, Notice):
            sys.stderr.write(f"{piece.text}\n")
    sys.stdout.write(f"written to {flags.text('output')}\n")
    return 0 if is_whole and made.error is None else 1


def _read(made: ProgramReport, path: str) -> ModuleTables | None:
    """Describes the file. None where it is damaged or not there."""
    try:
        archive = Archive.open(path)
    except StatusError as error:
        made.about.append(Notice(f"the file cannot be read: {error}", WRONG))
        return None
    try:
        tables = read_module(archive)
    except StatusError as error:
        made.about.append(Notice(f"the file is damaged: {error}", WRONG))
        made.about.append(Text("What is wrong", "\n".join(findings(archive))))
        return None
    facts = [line.partition(":") for line in takewhile(bool, summary_lines(tables))]
    made.about.append(PageTable("Module", (), [(name, value.strip()) for name, _, value in facts]))
    return tables


def _look(made: ProgramReport, flags: ParsedFlags) -> bool:
    """Calls the function, and the second module if there is one; whether nothing failed."""
    modules, devices = flags.texts("module"), flags.texts("device")
    is_compared = len(modules) > 1 or len(devices) > 1
    sides = two_sides(flags) if is_compared else (side(flags, modules[0], devices[0] if devices else ""),)
    attempt = "run the module here, so nothing of a call is shown"
    try:
        inputs = _called(made, sides, flags)
        attempt = "compare the two"
        if is_compared and inputs is not None:
            _compare(made, sides, flags, inputs)
    except StatusError as error:
        made.miss(f"cannot {attempt}: {error}")
        return False
    return True


def _called(made: ProgramReport, sides: Sequence[Any], flags: ParsedFlags) -> list[Any] | None:
    """Calls the function; its arguments, None where there is none or none to call."""
    from jitree.api.session import Session

    module, device, options = sides[0]
    with Session(device, **options) as session:
        loaded = session.load(module)
        made.about += function_pieces(loaded)
        inputs = _inputs(made, sides, flags, loaded)
        if inputs is not None:
            function = function_of(loaded, flags.text("function") or None)
            wait_for_compiled_code(session)
            look(made, session, lambda: function(*inputs))
    return inputs


def _inputs(made: ProgramReport, sides: Sequence[Any], flags: ParsedFlags, loaded: Any) -> list[Any] | None:
    """None where nothing can be called, which the page says then."""
    from jitree.api.calls.declaration import without_twins

    names = without_twins(loaded.names)
    if not flags.text("function") and len(names) != 1:
        if names:
            made.miss(f"no function was called: name one with --function= ({', '.join(names)})")
        return None
    function = function_of(loaded, flags.text("function") or None)
    if function.arguments and not flags.texts("input"):
        made.miss(f"{function.name} was not called, so there is no graph: --input= gives its arguments")
        return None
    return inputs_of(sides, flags)


def _compare(made: ProgramReport, sides: Sequence[Any], flags: ParsedFlags, inputs: list[Any]) -> None:
    from jitree.compare.differences import diff

    found = diff(sides[0], sides[1], flags.text("function") or None, inputs, **allowed(flags))
    made.difference = found
    if flags.text("save") and not found.equal:
        found.save(flags.text("save"))


def _add_code(made: ProgramReport, tables: ModuleTables) -> None:
    """How it is compiled, and what executables it has."""
    executables = "\n".join(_until_damage(executable_lines(tables)))
    made.code.append(Text("Executables", executables, is_open=False))
    try:
        add_code(made, BytecodeModule(tables, decode_module(tables)))
    except StatusError as error:
        made.miss(f"the bytecode cannot be decoded: {error}")


def _until_damage(lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except StatusError as error:
        yield str(error)
