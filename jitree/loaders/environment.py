"""Makes the environment of executables: constants, imports, processor data.

Functions that a program declared external are imports: symbols that providers answer with a function address
and a context. An import is called as ``i32 function(parameters, context, reserved)`` through a thunk.

What the processor can do is eight 64-bit words, and answers to ``hal.cpu`` queries.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from functools import cache
from typing import Final

from jitree.base.memory import once
from jitree.base.platform import MACHINE, UNAME, Mapping, map_code, processor
from jitree.base.records import Protocol
from jitree.errors import NotFoundError, UnavailableError, UnimplementedError
from jitree.regs.memory import address_of, zeroed

WORD_COUNT: Final = 8

_NO_BIT: Final = "-"


class CpuData:
    """Describes a processor: ``words`` for executables, :meth:`query` by LLVM's name."""

    def __init__(self, features: MappingOf[str, tuple[str, bool]]) -> None:
        """``features``: bits, and whether the processor has them, by LLVM's name."""
        self._features = {name: row for name, row in features.items() if row[0] != _NO_BIT}
        word = sum(1 << int(bit) for bit, present in self._features.values() if present)
        self.words: tuple[int, ...] = (word,) + (0,) * (WORD_COUNT - 1)
        lacking = frozenset(name for name, (_, present) in features.items() if not present)
        self.lacking = lacking if len(lacking) < len(features) else frozenset[str]()
        """The features that the processor does not have; none where nothing is known of it."""

    def items(self) -> list[tuple[str, int]]:
        """Every feature that the architecture knows, and 1 or 0."""
        return [(name, int(present)) for name, (_, present) in self._features.items()]

    def query(self, feature: str) -> int | None:
        """Whether the processor has the feature: 1 or 0.

        None for a name its architecture does not know.
        """
        row = self._features.get(feature)
        return None if row is None else int(row[1])


@cache
def host_cpu_data() -> CpuData:
    """The features of this machine's processor; none on an architecture without rows."""
    return CpuData(processor.known_features())


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
    """Lays out one executable's environment in memory, and lives as long."""

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
    if MACHINE not in _THUNKS:
        raise UnimplementedError(f"executables with imports cannot be run on {UNAME}")
    return map_code(bytes.fromhex(_THUNKS[MACHINE]))
