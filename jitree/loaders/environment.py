"""The environment that every call of an executable gets: constants, imports, processor data.

Functions that a program declared external are imports: symbols that providers answer with a function address
and a context. An import is called as ``i32 function(parameters, context, reserved)`` through a thunk.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from typing import Final

from jitree.base.memory import Mapping, map_code
from jitree.base.once import once
from jitree.base.records import Protocol
from jitree.errors import NotFoundError, UnavailableError, UnimplementedError
from jitree.loaders.cpu_data import host_cpu_data
from jitree.regs.memory import address_of, zeroed

ENVIRONMENT_SIZE: Final = 96
_FIELDS: Final = struct.Struct("<4Q8Q")
"""Constants, import thunk, import functions, import contexts, processor data."""
assert _FIELDS.size == ENVIRONMENT_SIZE

_THUNKS: Final = {
    # mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; jmp rax
    "x86_64": "4889f8 4889f7 4889d6 4889ca ffe0",
    # mov x4, x0; mov x0, x1; mov x1, x2; mov x2, x3; br x4
    "aarch64": "e40300aa e00301aa e10302aa e20303aa 80001fd6",
    # mv t0, a0; mv a0, a1; mv a1, a2; mv a2, a3; jr t0
    "riscv64": "93020500 13850500 93050600 13860600 67800200",
}
"""Machine code of ``thunk(function, parameters, context, reserved)``: calls function with the other three."""


class ImportProvider(Protocol):
    """Finds functions for executables that import some."""

    def resolve(self, symbol: str) -> tuple[int, int] | None:
        """(function address, context) of a symbol, None if this provider does not have it.

        Both must stay valid as long as the provider, which is kept by the executables that it served.
        """


class Environment:
    """The environment of one executable in memory; lives as long as the executable."""

    __slots__ = ("_block", "_contexts", "_functions", "_kept", "_words", "address")

    def __init__(self, constants: Sequence[int]) -> None:
        """``constants`` are the executable's specialization constants, unsigned 32-bit words."""
        self._words = array("I", constants)
        self._functions = array("Q")
        self._contexts = array("Q")
        self._kept: tuple[ImportProvider, ...] = ()
        self._block = zeroed(ENVIRONMENT_SIZE)
        self.address: int = address_of(self._block)
        self._write(0)

    def link(self, symbols: Sequence[str], providers: Sequence[ImportProvider]) -> None:
        """Resolves the imports of a library; the provider registered last is asked first.

        UNAVAILABLE without any provider, NOT_FOUND naming the symbols that none has. Optional ones (``?``)
        stay null.
        """
        if not symbols:
            return
        missing = []
        for symbol in symbols:
            name = symbol.removeprefix("?")
            answers = (provider.resolve(name) for provider in reversed(providers))
            found = next((answer for answer in answers if answer is not None), None)
            if found is None and name == symbol:
                missing.append(name)
            function, context = found or (0, 0)
            self._functions.append(function)
            self._contexts.append(context)
        if missing:
            names = ", ".join(missing)
            if not providers:
                raise UnavailableError(
                    f"the executable imports {names}, but nothing that provides imports is registered"
                )
            raise NotFoundError(f"the executable imports {names}, which no registered provider has")
        self._kept = tuple(providers)
        self._write(_thunk().address)

    def _write(self, thunk: int) -> None:
        _FIELDS.pack_into(
            self._block.data, 0, *(self._words.buffer_info()[0] if self._words else 0, thunk),
            self._functions.buffer_info()[0], self._contexts.buffer_info()[0], *host_cpu_data().words,
        )  # fmt: skip


@once
def _thunk() -> Mapping:
    machine = os.uname().machine.lower()
    if machine not in _THUNKS:
        raise UnimplementedError(f"executables with imports cannot be run on {machine}")
    return map_code(bytes.fromhex(_THUNKS[machine]))
