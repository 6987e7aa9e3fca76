"""Gathers what a session can tell of a call into one page (:meth:`Session.report`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitree.api.showing import module_pieces
from jitree.api.tiers import tier_lines
from jitree.base.arguments import object_of
from jitree.base.finalizers import Unique
from jitree.base.page import WRONG, Notice, Piece, Text, document, notebook
from jitree.errors import NonFiniteError, StatusError, system_refusals
from jitree.observe.finite import DEFAULT, FiniteCheck
from jitree.observe.graph import EVERYTHING, dispatch_pieces
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.observe.graph import Found
    from jitree.observe.profile import Profile
    from jitree.observe.taps import Taps
    from jitree.observe.tensors import ObservedDispatch

_TIERS: Final = "Which functions are compiled, and why others are not"


class ProgramReport(Unique):
    """A page about a program. Parts that are missing are not shown, and the page says why."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.about: list[Piece] = []
        """What the program is and needs."""
        self.profile: Profile | None = None
        self.taps: Taps | None = None
        self.fault: NonFiniteError | None = None
        """The first value that is not finite, if there is one."""
        self.difference: Found | None = None
        """What :func:`jitree.diff` has found with the same function and arguments. Set it, and the graph
        shows which dispatches depart."""
        self.error: StatusError | None = None
        """Why the call, or the tap of it, failed."""
        self.code: list[Piece] = []
        """How it is compiled."""

    @property
    def pieces(self) -> list[Piece]:
        found = [*self.about]
        if self.error is not None and self.error is not self.fault:
            found.insert(0, Notice(str(self.error), WRONG))
        if self.taps is not None or self.difference is not None:
            dispatches = self.taps if self.taps is not None else getattr(self.difference, "dispatches", ())
            commands = self.profile.commands if self.profile is not None else ()
            found += dispatch_pieces(dispatches, commands, self.fault, self.difference)
        if self.profile is not None and self.profile.calls:
            found += self.profile.pieces()
        return found + self.code

    def miss(self, text: str) -> None:
        """Says what the page has not."""
        self.about.append(Notice(text))

    @property
    def html(self) -> str:
        """The page, which needs no network and no other file."""
        return document(self.title, self.pieces)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page. UNAVAILABLE where the file cannot be written."""
        name = os.fspath(object_of("path", path, str, os.PathLike))
        with system_refusals(f"unable to write file `{name}`"):
            Path(name).write_text(self.html, encoding="utf-8", errors="backslashreplace")

    def _repr_html_(self) -> str:
        return notebook(self.title, self.pieces)

    def __repr__(self) -> str:
        return f"<jitree report: {self.title}; save(path) writes it>"


class _FirstFault(FiniteCheck):
    """Finds what ``check_finite`` finds, without an end of the call."""

    def __init__(self) -> None:
        super().__init__(DEFAULT)
        self.found: NonFiniteError | None = None

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        if self.found is None:
            try:
                super().looks_at(dispatch)
            except NonFiniteError as error:
                self.found = error


def report(
    session: Any, function: str | Function | None, arguments: Sequence[Any], named: Mapping[str, Any]
) -> ProgramReport:
    """Calls a function and tells what happens."""
    called: Any = function if function is None or hasattr(function, "full_name") else session.lookup(function)
    made = ProgramReport(", ".join(session.modules) if called is None else called.full_name)
    for module in session.modules.values():
        made.about += module_pieces(module)
    if called is not None:
        look(made, session, lambda: called(*arguments, **named))
    for module in session.modules.values():
        add_code(made, module.vm_module)
    return made


def add_code(made: ProgramReport, module: object) -> None:
    """Says how the functions of a module are compiled."""
    if isinstance(module, BytecodeModule):
        made.code.append(Text(f"{_TIERS}: {module.name}", "\n".join(tier_lines(module)), is_open=False))


def _call(made: ProgramReport, call: Callable[[], object]) -> None:
    try:
        call()
    except StatusError as error:
        made.error = made.error or error


def look(made: ProgramReport, session: Any, call: Callable[[], object]) -> None:
    """Calls three times: first, with a profile, and with a tap. What fails is a part of the report."""
    first = _FirstFault()
    _call(made, call)
    with session.profile() as made.profile:
        _call(made, call)
    try:
        with session.looked_at(first), session.tap(EVERYTHING) as made.taps:
            _call(made, call)
    except StatusError as error:  # the device tells nothing of dispatches
        made.error = made.error or error
    is_fault = isinstance(made.error, NonFiniteError)
    made.fault = made.error if is_fault else first.found  # type: ignore[assignment]
    if made.fault is None and first.first_read:
        made.miss(f"values that are not finite come from elsewhere: {first.first_read}")
