"""Keep calls that use a program's variables apart, where one of them waits.

A call that waits for a device lets other calls into its session. A program reads its variables before such a
wait and stores them after it: another call in between would read what is stored over then, and its own update
would be lost. So a call that waits and uses variables has a *turn* until it ends. Calls that use variables,
too, begin after it; others do not wait for it.

Variables are the globals that functions store to, but for those that only run when the module is loaded:
those are constants. Which a function uses is found in its words, and in those of the functions it calls.
"""

from __future__ import annotations

import time
from _thread import LockType, allocate_lock
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np

from jitree.base import cancel_scopes
from jitree.base.finalizers import SharedWeakKeys, with_lock
from jitree.dispatch.engine import Pending
from jitree.errors import FailedPreconditionError
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

if TYPE_CHECKING:
    from jitree.regs.records import FunctionRecord
    from jitree.vmfb.program import DecodedModule
    from jitree.vmfb.schema import ModuleTables

    class Gate(Protocol):
        """That of a context."""

        turn: LockType
        turn_loop: int


_AT_LOADING: Final = frozenset({"__init", "__deinit"})
"""What a context calls by itself, while no other call can be in progress."""
_ANY: Final = ("any", 0)
"""What an instruction uses whose global is known when it runs."""
_CALLS: Final = {"call.internal": 2, "call.import": 3}
"""Which word of the instruction is the function."""
_NAMES: Final = [OPCODE_NAMES[base] for base in BASE_OPCODE]
_FOLLOWED: Final = np.array([name in _CALLS or name.startswith("global.") for name in _NAMES])

Item = TypeVar("Item")
Global = tuple[str, int]
"""A kind and a place: a slot of references, or the offset of four bytes of numbers."""


class _Uses:
    """What the functions of a program use, by ordinal."""

    def __init__(self, module: ModuleTables, program: DecodedModule) -> None:
        self._loads: dict[int, set[Global]] = {}
        self._stores: dict[int, set[Global]] = {}
        self._callees: dict[int, set[int]] = {}
        self._imports: dict[int, set[int]] = {}
        self._read(program)
        called = (export.ordinal for export in module.exports if export.name not in _AT_LOADING)
        self._variables = _all_of(self._stores, self.reached(called))
        self._found: dict[int, tuple[bool, frozenset[int]]] = {}

    def _read(self, program: DecodedModule) -> None:
        words = program.words
        places = np.frombuffer(program.instruction_words, np.int32)
        followed = places[_FOLLOWED[words[places]]]
        functions = np.searchsorted(program.functions.starts, followed, "right") - 1
        for ordinal, word in zip(functions.tolist(), followed.tolist(), strict=True):
            name = _NAMES[words[word]]
            if name in _CALLS:
                uses = self._callees if name == "call.internal" else self._imports
                uses.setdefault(ordinal, set()).add(int(words[word + _CALLS[name]]))
            else:
                accesses = self._loads if name.startswith("global.load") else self._stores
                accesses.setdefault(ordinal, set()).update(_globals(name, int(words[word + 1])))

    def reached(self, ordinals: Iterable[int]) -> set[int]:
        """The functions that may run when one of those is called."""
        found, waiting = set[int](), list(ordinals)
        while waiting:
            ordinal = waiting.pop()
            if ordinal not in found:
                found.add(ordinal)
                waiting += self._callees.get(ordinal, ())
        return found

    def of(self, ordinal: int) -> tuple[bool, frozenset[int]]:
        """Whether a function uses its module's variables; imports that it may call."""
        found = self._found.get(ordinal)
        if found is None:
            reached = self.reached((ordinal,))
            used = _all_of(self._loads, reached) | _all_of(self._stores, reached)
            both = used & self._variables or (used and self._variables and _ANY in used | self._variables)
            found = self._found[ordinal] = bool(both), frozenset(_all_of(self._imports, reached))
        return found


def _globals(name: str, place: int) -> Iterable[Global]:
    """The globals of an access. Numbers of eight bytes lie at multiples of eight."""
    if ".indirect." in name:
        return (_ANY,)
    if name.endswith(".ref"):
        return (("reference", place),)
    return tuple(("number", byte) for byte in range(place, place + (8 if name.endswith("64") else 4), 4))


def _all_of(uses: dict[int, set[Item]], ordinals: Iterable[int]) -> set[Item]:
    return set[Item]().union(*(uses.get(ordinal, ()) for ordinal in ordinals))


_uses: Final = SharedWeakKeys["DecodedModule", _Uses]()


def uses_variables(function: FunctionRecord) -> bool:
    """Whether a call of it may use variables, of whatever module."""
    record = function.module
    uses = _uses.get(record.program)
    if uses is None:
        uses = _uses[record.program] = _Uses(record.module, record.program)
    own, imports = uses.of(function.ordinal)
    callees = (record.function_imports[ordinal] for ordinal in imports)
    return own or any(callee is not None and uses_variables(callee) for callee in callees)


def turn_of(gate: Gate, function: FunctionRecord) -> LockType | None:
    """The turn, for a call that is going to wait; None if it uses no variables. The lock of the context must
    be held, and no other call has it: this one has begun. A thread that has waited for the last one may still
    hold that for a moment."""
    if not uses_variables(function):
        return None
    gate.turn_loop = id(cancel_scopes.running_loop())
    gate.turn = allocate_lock()  # left in C: no interrupt comes before it is free again
    return gate.turn


def turns(gate: Gate, function: FunctionRecord) -> Iterator[Pending]:
    """What a call waits for before it begins; as for :func:`turn_of`."""
    while gate.turn.locked() and uses_variables(function):
        yield Pending(partial(_wait, gate.turn, gate.turn_loop, function.name), bool)


def _wait(turn: LockType, loop: int, name: str, timeout: float | None) -> bool:
    """Waits until a turn has ended. FAILED_PRECONDITION if it cannot end while this thread waits."""
    if loop == id(cancel_scopes.running_loop()) != id(None):
        raise FailedPreconditionError(
            f"an awaited call of this thread's event loop uses variables, as '{name}' does; "
            "await this call, too, or await the other one first"
        )
    until = None if timeout is None else time.monotonic() + timeout
    while with_lock(turn, bool, cancel_scopes.next_look(until)) is None:
        cancel_scopes.require_going_on()
        if until is not None and time.monotonic() >= until:
            return False
    return True
