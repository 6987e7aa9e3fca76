"""Runs a program in a sandbox: ``--sandbox``. The session opens its devices and files."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from jitree.errors import InvalidArgumentError
from jitree.tools.flags import ParsedFlags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jitree.api.module import Module
    from jitree.api.sandbox import Limits
    from jitree.api.session import Session


STANDARD_INPUT: Final = "-"
"""The path of a module that means standard input."""
_MEMORY: Final = ("zero_memory", "guard_pages")
_KINDS: Final = {None: False, "false": False, "0": False, "": True, "true": True, "1": True}


def is_confined(flags: ParsedFlags) -> bool:
    """Whether any of the flags is given: the session opens what it needs itself."""
    return "sandbox" in flags.values and bool(
        _sandbox(flags) or flags.texts("limit") or any(flags.boolean(name) for name in _MEMORY)
    )


def _sandbox(flags: ParsedFlags) -> bool | str:
    text = flags.optional("sandbox")
    return _KINDS.get(text, str(text))


def open_session(
    flags: ParsedFlags, stack: ExitStack, parameters: Mapping[str, str]
) -> tuple[Session, Module]:
    """A session with the modules that the flags name, and the last of these.
    ``parameters`` are those of ``local-task``.

    Archives are the host's to open: their paths stand on the command line. A compiler may write them while
    standard input is read."""
    from jitree.api.load_order import WITHOUT_CHECK
    from jitree.api.session import Session
    from jitree.params import Mode, open_providers

    limits = _limits(flags.texts("limit"))
    modules = [
        _read_standard_input(limits) if path == STANDARD_INPUT else path for path in flags.texts("module")
    ]
    uris = flags.texts("device") or ["local-task"]
    if parameters:
        uris = [f"{uri}?{urlencode(parameters)}" if uri == "local-task" else uri for uri in uris]
    session = Session(
        uris if len(uris) > 1 else uris[0],
        sandbox=_sandbox(flags),
        limits=limits,
        parameters=open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode"))),
        tier=flags.text("tier") or None,
        arithmetic=flags.text("arithmetic"),
        prefer=flags.text("prefer") or None,
        executable_plugins=flags.texts("executable_plugin"),
        zero_memory=flags.boolean("zero_memory"),
        guard_pages=flags.boolean("guard_pages"),
        builtin_modules=WITHOUT_CHECK,
    )
    stack.enter_context(session)
    return session, session.link(*modules, compiled=flags.text("compiled") or None)[-1]


def _read_standard_input(limits: Limits | None) -> memoryview:
    """A module; of one that is larger than the limit no more than shows that."""
    from jitree.vmfb.archive import content, loading, standard_input

    most = None if limits is None else limits.load_size
    with loading("<standard input>"):
        return content(standard_input(), -1 if most is None else most + 1)


def _limits(texts: list[str]) -> Limits | None:
    from jitree.api.sandbox import Limits

    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in Limits._fields:
            raise InvalidArgumentError(
                f"flag 'limit': there is no limit '{name}'; there are: {', '.join(Limits._fields)}"
            )
        try:
            values[name] = float(number) if "." in number else int(number)
        except ValueError:
            raise InvalidArgumentError(f"flag 'limit': '{text}' is not of the form <name>=<number>") from None
    return Limits(**values) if values else None  # type: ignore[arg-type]  # checked by the session
