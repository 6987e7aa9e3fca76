"""Calls a function of a compiled module under the debugger: ``jitree debug``."""

from __future__ import annotations

import sys
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from jitree.errors import CancelledError, InvalidArgumentError, StatusError, error_context
from jitree.tools.flags import ParsedFlags, command, flag_set, parse_flags
from jitree.tools.inputs import parse_values
from jitree.tools.program import STANDARD_INPUT, find_function, open_program
from jitree.tools.run import finish
from jitree.tools.values import ValueFiles

if TYPE_CHECKING:
    from jitree.debug.debugger import FrontEnd

FLAGS: Final = flag_set(
    "debug",
    "calls a function of a compiled module under a debugger, which reads commands from standard input",
    "module interpreter packed function input value device parameter debug refused",
    positional="module",
)
_SCALARS: Final = ("module", "function", "device", "tier")
"""What an editor's launch configuration may name, each a flag."""


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0 also when the debugger is left before the call is over."""
    if flags.boolean("dap"):
        return _serve()
    from jitree.debug.shell import Shell, post_mortem

    if not flags.texts("command") and STANDARD_INPUT in flags.texts("module"):
        raise InvalidArgumentError("the module cannot be standard input: the debugger reads commands from it")
    commands = flags.texts("command")
    shell = Shell(StringIO("\n".join(commands)) if commands else None)
    try:
        return _debug(flags, shell)
    except StatusError as error:
        if shell.has_quit and isinstance(error, CancelledError):
            return 0
        if not shell.has_quit and error.frames:  # it failed where nothing could stop: in a device's work
            post_mortem(error, shell)
        raise


def _debug(flags: ParsedFlags, front: FrontEnd) -> int:
    from jitree.debug.debugger import debug_call
    from jitree.tools.calling import argument_kinds, declared_arguments, prepare

    with open_program(flags) as program, ValueFiles() as files:
        with error_context("creating run context"):
            function = find_function(program, flags.text("function"))
        with error_context(f"`{function.declaration}`"):
            inputs = parse_values(
                flags.texts("input"), argument_kinds(function), files, partial(declared_arguments, function)
            )
        prepared = prepare(function, inputs)
        called = debug_call(program.session, prepared.call, front)
        with error_context(f"`{function.declaration}`"), error_context("processing function outputs"):
            return finish(function, prepared.to_host(called), flags, files)


def _serve() -> int:
    """Serves an editor, which says what to debug."""
    from jitree.debug.adapter import Adapter

    with open(0, "rb", buffering=0, closefd=False) as requests:
        adapter = Adapter(requests, sys.__stdout__.buffer)  # type: ignore[union-attr, arg-type]  # standard numbers are open
        arguments = adapter.launched()
        if arguments is not None:
            with adapter.redirected():
                _debug(parse_flags(_flags(arguments), FLAGS), adapter)
    return 0


def _flags(arguments: dict[str, Any]) -> list[str]:
    """The flags of a launch configuration: ``module``, ``function``, ``input`` (a list), ``args`` (more)."""
    found = [f"--{name}={arguments[name]}" for name in _SCALARS if arguments.get(name)]
    inputs, more = (_texts(arguments, name) for name in ("input", "args"))
    return [*found, *(f"--input={text}" for text in inputs), *more]


def _texts(arguments: dict[str, Any], name: str) -> list[str]:
    found = arguments.get(name) or []
    if not isinstance(found, list):
        raise InvalidArgumentError(f"'{name}' of the launch configuration is no list")
    return [*map(str, found)]
