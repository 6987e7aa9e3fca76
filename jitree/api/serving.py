"""Counts calls, drains and reloads a session that serves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jitree.api.load_order import BUILTIN_MODULES
from jitree.base import logs
from jitree.base.cancel_scopes import deadline, require_going_on
from jitree.base.events import BUILT, FOUND, MISSING
from jitree.base.finalizers import guard, with_lock
from jitree.base.records import NamedTuple
from jitree.base.tables import bytes_text, html_table, text_table
from jitree.dispatch.session_lock import CALLS, FAILURES, WAITS
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)

if TYPE_CHECKING:
    from jitree.api.function import Function
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.invocation import Invoker

_PAUSE: Final = 0.001
"""Seconds between two looks at whether calls have ended."""
_LONGEST: Final = 3600.0 * 24 * 365
_EARLIER: Final = "_earlier_gates"
"""The attribute of a session that has the counts of contexts that were its before."""
_RELOADING: Final = "_reloading"
"""The attribute that has the turn of threads that reload it."""
_COUNTED: Final = (CALLS, FAILURES, WAITS)
_OF_A_FUNCTION: Final = (
    "signature", "packers", "unpackers", "known_sizes", "_order", "_updates", "_storing", "_has_rest",
    "_argument_count", "_vm_function", "_context",
)  # fmt: skip
"""What a function has of the context that runs it."""
_OF_A_SESSION: Final = (
    "_context", "_direct_calls", "_packs", "_observation", "_replacements", "finite_check",
)  # fmt: skip


class MemoryMetrics(NamedTuple):
    """The memory of a device, in bytes."""

    device: str
    used: int
    peak: int
    """The most that was used at one time."""
    allocated: int
    """All that was asked for so far."""


class Metrics(NamedTuple):
    """Counts what a session has done, and what its process has compiled."""

    calls: int
    """Calls by the program's callers that have begun."""
    errors: int
    """Calls that have failed while they ran; those with wrong arguments do not run."""
    waits: int
    """How often a call gave way while it waited for a device."""
    memory: tuple[MemoryMetrics, ...]
    """Of each device, by whatever sessions use it."""
    compiled: int
    """Pieces of machine code that were built for this process,"""
    compile_seconds: float
    """how long they took to come,"""
    found: int
    """those that the log says were kept from before,"""
    missing: int
    """and reasons why some are missing."""

    def prometheus(self) -> str:
        """The text that Prometheus reads, for the answer to ``GET /metrics``."""
        lines = []
        for name, text in _PROCESS.items():
            value = getattr(self, name)
            lines += [*_head(f"{name}_total", "counter", text), f"jitree_{name}_total {value}"]
        for name, kind, text, field in _MEMORY:
            lines += _head(name, kind, text)
            lines += [
                f'jitree_{name}{{device="{_label(row.device)}"}} {getattr(row, field)}' for row in self.memory
            ]
        return "\n".join([*lines, ""])

    def _rows(self) -> list[tuple[str, str]]:
        rows = [(name, str(getattr(self, name))) for name in (*_PROCESS, "found")]
        for row in self.memory:
            rows += [(f"{row.device} {field}", bytes_text(getattr(row, field))) for *_, field in _MEMORY]
        return rows

    def __str__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table("jitree.Session.metrics()", (), self._rows())


_PROCESS: Final = {
    "calls": "Calls that have begun.",
    "errors": "Calls that have failed.",
    "waits": "Waits of calls for devices.",
    "compiled": "Pieces of machine code built.",
    "compile_seconds": "Seconds until they were there.",
    "missing": "Reasons why machine code is missing.",
}
_MEMORY: Final = (
    ("memory_used_bytes", "gauge", "Memory of a device that is used.", "used"),
    ("memory_peak_bytes", "gauge", "The most that was used at one time.", "peak"),
    ("memory_allocated_bytes_total", "counter", "All memory that was asked for.", "allocated"),
)
"""Name, kind and text of a metric, and the field that it shows."""


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP jitree_{name} {text}", f"# TYPE jitree_{name} {kind}"


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def metrics(session: Any) -> Metrics:
    gates = (*session.__dict__.get(_EARLIER, ()), session.context.invoker.gate)
    calls, errors, waits = (sum(gate[word] for gate in gates) for word in _COUNTED)
    memory = []
    for device in session.devices:
        now = device.memory()
        memory.append(MemoryMetrics(device.uri, now.live, now.peak, now.allocated))
    built, found, missing = (logs.tallies.get(topic, (0, 0.0)) for topic in (BUILT, FOUND, MISSING))
    return Metrics(calls, errors, waits, tuple(memory), *built, found[0], missing[0])


def drain(session: Any, timeout: float | None) -> None:
    """See :meth:`jitree.Session.drain`."""
    with deadline(_LONGEST if timeout is None else timeout):
        invoker = session.context.invoker
        with invoker.entrance():
            invoker.refuse_calls(partial(_draining, invoker))
        _wait_for_calls(invoker)
        for device in session.devices:
            device.finish_submitted()


def _draining(invoker: Invoker) -> StatusError:
    if invoker.closed:
        return FailedPreconditionError("the context is closed")
    return UnavailableError("the session is draining and takes no more calls; make them in another one")


def _wait_for_calls(invoker: Invoker) -> None:
    """Waits until none is in progress. None begins any more."""
    while with_lock(invoker.lock, lambda: invoker.is_busy, _PAUSE) is not False:
        require_going_on()
        time.sleep(_PAUSE)


# -- another program ------------------------------------------------------------------------------------
# A second session has the new modules. Then the two exchange their contexts: the functions that callers have
# go on as those of the new modules, and the second session ends the old ones when their calls have ended.


def reload(session: Any, sources: Sequence[Any], compiled: Any) -> Any:
    """See :meth:`jitree.Session.reload`. One thread at a time does it with a session."""
    turn = session.__dict__.setdefault(_RELOADING, guard())
    while (modules := with_lock(turn, partial(_reload, session, sources, compiled), _PAUSE)) is None:
        require_going_on()
    return modules[0] if len(modules) == 1 else modules


def _reload(session: Any, sources: Sequence[Any], compiled: Any) -> tuple[Any, ...]:
    _require_reloadable(session)
    if not sources:
        raise InvalidArgumentError("reload: no module was given; pass a path, bytes or an open binary file")
    other = type(session)(session.devices, **_options(session))
    try:
        replaced = _load(session, other, sources, compiled)
        modules = _exchange(session, other, replaced)
    except BaseException:
        other.close()
        raise
    session.__dict__.setdefault(_EARLIER, []).append(other.context.invoker.gate)
    _wait_for_calls(other.context.invoker)
    other.close()
    return modules


def _require_reloadable(session: Any) -> None:
    if session.sandbox is not None:
        raise UnimplementedError("reload: a sandbox has one program; make another session for the next one")
    invoker = session.context.invoker
    with invoker.entrance():
        invoker.require_open()
        invoker.require_idle()
        if invoker.refusal is not None:
            raise FailedPreconditionError("reload: the session is draining; make another one")
    if session.is_looked_at:
        raise FailedPreconditionError(
            "reload: a tap, a profile or a kernel in place of a dispatch is there for the program that would "
            "go; end that before"
        )


def _options(session: Any) -> dict[str, Any]:
    """Those that the session was made with; what it has opened it shares."""
    made, options = session.made_by
    options = dict(options if isinstance(options, dict) else made.options)
    options.pop("watchdog", None)
    return options | {"parameters": session.parameter_providers, "instance": session.instance}


def _load(session: Any, other: Any, sources: Sequence[Any], compiled: Any) -> list[str]:
    """Loads a session's modules into another one; those that are given replace those of their names."""
    given: list[ModuleLike] = [other._read(source) for source in sources]
    with session.context.invoker.entrance():
        session.context.invoker.require_open()
        present = [module for module in session.context.modules if module.name not in BUILTIN_MODULES]
    names = [module.name for module in present]
    twins = {name for name in names if names.count(name) > 1}
    if twins:
        raise UnimplementedError(f"reload: several modules of the session are called '{min(twins)}'")
    for module in given:
        if module.name not in names:
            raise NotFoundError(
                f"reload: no module '{module.name}' is loaded, so nothing is replaced; there are "
                f"{', '.join(names) or 'none'}"
            )
    replaced = [module.name for module in given]
    other.load(*(module for module in present if module.name not in replaced), *given, compiled=compiled)
    return replaced


def _pairs(session: Any, other: Any) -> list[tuple[Function, Function]]:
    """Functions that callers have, and those in place of them. FAILED_PRECONDITION for one that is gone, or
    takes or gives something else: its callers would fail."""
    pairs = []
    for function in tuple(session._functions.values()):
        module = other.modules.get(function.vm_function.module.name)
        made = module[function.name] if module is not None and function.name in module else None
        if made is None or _types(made) != _types(function):
            now = "is not there any more" if made is None else f"is `{made.declaration}` now"
            raise FailedPreconditionError(
                f"reload: {function.full_name} {now}, and callers have it as `{function.declaration}`; load "
                "the module into another session"
            )
        pairs.append((function, made))
    return pairs


def _types(function: Function) -> tuple[object, ...]:
    given = [item.type for item in function.arguments]
    return type(function), given, [item.type for item in function.results]


def _exchange(session: Any, other: Any, replaced: Sequence[str]) -> tuple[Any, ...]:
    """Gives the session's modules of some names. FAILED_PRECONDITION if another thread has closed it."""
    old, new = session.context, other.context
    with old.invoker.entrance(), new.invoker.entrance():
        old.invoker.require_open()
        old.invoker.require_idle()
        pairs = _pairs(session, other)
        stand_for: dict[VmFunction, VmFunction] = {
            ours.vm_function: theirs.vm_function for ours, theirs in pairs
        }
        new.invoker.go_on_counting(old.invoker)
        new.succeed(old, stand_for)
        for ours, theirs in pairs:
            for name in _OF_A_FUNCTION:
                setattr(ours, name, getattr(theirs, name))
            ours.leave_machine_code()
        for name in _OF_A_SESSION:
            mine, its = getattr(session, name), getattr(other, name)
            setattr(session, name, its)
            setattr(other, name, mine)
        for name, module in session.modules.items():
            vars(module).update({key: vars(other.modules[name])[key] for key in ("_module", "_names")})
        session._functions = {ours.vm_function: ours for ours, _ in pairs}
        other._functions = {}
        made, options = session.made_by
        session.made_by = made, options if isinstance(options, dict) else frozenset()  # no longer the program
        return tuple(session.modules[name] for name in replaced)
