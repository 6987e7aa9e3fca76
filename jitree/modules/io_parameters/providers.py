"""Where parameters come from, as this module sees it: the maker of the module hands it such objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jitree.errors import NotFoundError
from jitree.types import ElementType


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
    known = ", ".join(_text(provider.scope) for provider in providers)
    example = f"{scope}=weights.irpa" if scope else "weights.irpa"
    there = f"there are: {known}" if known else "there are none at all"
    raise NotFoundError(
        f"no provider of parameters for scope {_text(scope)}; {there}. "
        f'Name an archive for it: --parameters={example}, Session(parameters=["{example}"])'
    )


def _text(scope: str) -> str:
    return f"'{scope}'" if scope else "<global>"
