"""Flags of the process, in the text of the command line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from typing import Final

from jitree.compat.iree_runtime.arguments import a
from jitree.errors import InvalidArgumentError, pass_interruption

FUNCTION_INPUT_VALIDATION: Final = True
"""Calls always check their arguments."""
_VARIABLE: Final = "IREE_PY_RUNTIME_FLAGS"
_given: list[str] = []


def parse_flags(*flags: str) -> None:
    """Reads flags of ``iree-run-module``, for devices that are made later. ValueError for unknown ones."""
    from jitree.tools import run
    from jitree.tools.flags import parse_flags as parse

    for text in [a(str)(flag) for flag in flags]:
        name = text.lstrip("-").partition("=")[0]
        if text.startswith("-") and run.FLAGS.find(name) is None:
            raise InvalidArgumentError(
                f"flag '{name}' not recognized; `jitree run --help` lists those there are"
            )
    parse([*_given, *flags], run.FLAGS)
    _given.extend(flags)


def device_parameters(driver: str) -> Mapping[str, str]:
    """What the flags say of devices of a driver."""
    if not _given or driver != "local-task":
        return {}
    from jitree.tools import run
    from jitree.tools.flags import parse_flags as parse
    from jitree.tools.program import task_parameters

    return task_parameters(parse(_given, run.FLAGS))


def _load_default_flags_from_env() -> None:
    text = os.environ.get(_VARIABLE, "")
    try:
        parse_flags(*shlex.split(text))
    except ValueError as error:
        pass_interruption(error)
        raise RuntimeError(
            f"parsing flags of the environment variable {_VARIABLE}='{text}': {error}"
        ) from error
