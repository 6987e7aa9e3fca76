"""Reads the requests of a program, and finds the provider of their scope."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from jitree.base.copying import ranges
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from jitree.hal.allocator import HostMemory
from jitree.regs.buffer import VmBuffer
from jitree.types import ElementType

NAME: Final = struct.Struct("<II")
"""offset and length of a key in the key data"""
SPAN: Final = struct.Struct("<QQQ")
"""parameter offset, buffer offset, length"""
_TOGETHER: Final = 256
_REQUEST: Final = 2048
"""Bytes that the host has of a request, with what it submits for it."""
_FEW: Final = 64
"""So many requests at once are not counted."""

Tables = tuple[VmBuffer | None, VmBuffer, VmBuffer, VmBuffer]
"""Name of a scope, table of keys, the keys, spans."""


class Elements(Protocol):
    """What an archive says about the elements of a parameter; as text ``4x2xf32``."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def element(self) -> ElementType | str:
        """A name where it is no element type of programs."""


class StoredParameter(Protocol):
    """Bytes under a key: a pattern repeated, or contents that the host can address."""

    @property
    def key(self) -> str: ...

    @property
    def length(self) -> int: ...

    @property
    def pattern(self) -> bytes | None:
        """1, 2, 4, 8 or 16 bytes that are repeated; None for a parameter with contents."""

    @property
    def tensor(self) -> Elements | None:
        """None where the archive does not say."""

    @property
    def writable(self) -> bool: ...

    def contents(self) -> memoryview: ...


class ScopeProvider(Protocol):
    """The parameters of one scope."""

    @property
    def scope(self) -> str: ...

    def get(self, key: str) -> StoredParameter:
        """NOT_FOUND naming scope and key, and what was searched."""


def find_provider(providers: Sequence[ScopeProvider], scope: str) -> ScopeProvider:
    """The first provider of exactly that scope.

    NOT_FOUND with the scopes that there are; without any, with the way to name one.
    """
    for provider in providers:
        if provider.scope == scope:
            return provider
    known = ", ".join(_scope_text(provider.scope) for provider in providers)
    example = f"{scope}=weights.irpa" if scope else "weights.irpa"
    there = f"there are: {known}" if known else "there are none at all"
    raise NotFoundError(
        f"no provider of parameters for scope {_scope_text(scope)}; {there}. "
        f'Name an archive for it: --parameters={example}, Session(parameters=["{example}"])'
    )


def _scope_text(scope: str) -> str:
    return f"'{scope}'" if scope else "<global>"


class ParameterRequest(NamedTuple):
    """Bytes of a parameter and where in the program's buffer they belong."""

    parameter: StoredParameter
    parameter_offset: int
    buffer_offset: int
    length: int


def resolve(providers: Sequence[ScopeProvider], tables: Tables, memory: HostMemory) -> list[ParameterRequest]:
    """One request for each span; ``memory`` counts what the host has of them.

    INVALID_ARGUMENT for tables of wrong size, OUT_OF_RANGE for keys outside the key data and for ranges that
    a parameter does not have, NOT_FOUND for scopes and keys.
    """
    name = scope_name(tables)
    provider = find_provider(providers, name)
    requests = list[ParameterRequest]()
    for key, (parameter_offset, buffer_offset, length) in _rows(*tables[1:]):
        parameter = provider.get(key)
        if parameter_offset + length > parameter.length:
            raise OutOfRangeError(
                f"parameter '{name}::{key}': the program asks for bytes {parameter_offset} to "
                f"{parameter_offset + length}, and the parameter has {described(parameter)}"
            )
        requests.append(ParameterRequest(parameter, parameter_offset, buffer_offset, length))
        if len(requests) >= _FEW:
            memory.reach(_REQUEST * len(requests))
    return requests


def in_turn(requests: Sequence[ParameterRequest]) -> Iterator[ParameterRequest]:
    """Each of them; looks now and then whether the thread is to end."""
    for part in ranges(len(requests), _TOGETHER):
        yield from requests[part]


def scope_name(tables: Tables) -> str:
    scope = tables[0]
    return "" if scope is None else _text(scope.view)


def described(parameter: StoredParameter) -> str:
    """``32 bytes (4xf64)``"""
    return f"{parameter.length} bytes" + ("" if parameter.tensor is None else f" ({parameter.tensor})")


def _rows(
    key_table: VmBuffer, key_data: VmBuffer, spans: VmBuffer
) -> Iterator[tuple[str, tuple[int, int, int]]]:
    if len(spans) % SPAN.size:
        raise InvalidArgumentError(
            f"a table of spans has {len(spans)} bytes; it must be a multiple of {SPAN.size}"
        )
    count = len(spans) // SPAN.size
    if len(key_table) < count * NAME.size:
        raise InvalidArgumentError(
            f"a key table of {len(key_table)} bytes for {count} parameters; it needs {count * NAME.size}"
        )
    for index in (index for part in ranges(count, _TOGETHER) for index in range(part.start, part.stop)):
        offset, length = NAME.unpack_from(key_table.view, index * NAME.size)
        if offset + length > len(key_data):
            raise OutOfRangeError(
                f"key {index} is bytes {offset} to {offset + length} of key data that has {len(key_data)}"
            )
        yield (
            _text(key_data.view[offset : offset + length]),
            SPAN.unpack_from(spans.view, index * SPAN.size),
        )


def _text(view: memoryview) -> str:
    return str(view, "utf-8", "backslashreplace")
