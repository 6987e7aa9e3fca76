"""Providers: the parameters of one scope, and how sessions are told of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from jitree.base.arguments import shown, taken_apart
from jitree.errors import InvalidArgumentError, error_context
from jitree.params.arrays import array_entry, state_of
from jitree.params.entry import ParameterEntry
from jitree.params.files import Mode
from jitree.params.index import ParameterIndex

Source = str | os.PathLike[str] | Mapping[str, Any] | ParameterIndex | Any
"""``scope=path``, a path, a mapping, an index, a provider, an object with ``state_dict()``."""


class ParameterProvider:
    """The parameters that programs find under a scope."""

    def __init__(self, scope: str, index: ParameterIndex) -> None:
        """``scope``: as programs name it; empty for parameters that they name without one."""
        self.scope = scope
        self.index = index

    def get(self, key: str) -> ParameterEntry:
        """NOT_FOUND naming scope and key, what was searched and the nearest keys."""
        return self.index.get(key, self.scope)


def open_providers(sources: Iterable[Source], mode: Mode = Mode.FILE) -> tuple[ParameterProvider, ...]:
    """One provider for each scope, in the order in which the scopes are first named.

    A source is ``scope=path`` or ``path``; a mapping of keys to arrays or of scopes to such mappings (or to
    objects with ``state_dict()``, to indices, to paths); an object with ``state_dict()``; a
    :class:`ParameterIndex`; or a provider, which is taken as it is. Sources of one scope are joined in order.

    Errors as of ``ParameterIndex.load``; INVALID_ARGUMENT for what is none of these.
    """
    if isinstance(sources, (str, os.PathLike, Mapping)):
        sources = [sources]
    found = taken_apart(sources)
    if found is None:
        raise InvalidArgumentError(
            f"parameters: expected archives or mappings but got a {type(sources).__name__}"
        )
    joined: dict[str, ParameterProvider] = {}
    providers: list[ParameterProvider] = []

    def index_of(scope: str) -> ParameterIndex:
        if scope not in joined:
            joined[scope] = ParameterProvider(scope, ParameterIndex())
            providers.append(joined[scope])
        return joined[scope].index

    for source in found:
        if isinstance(source, ParameterProvider):
            providers.append(source)
        elif isinstance(source, str):
            scope, path = split_scope(source)
            index_of(scope).load(path, mode)
        elif isinstance(source, Mapping):
            for key, value in source.items():
                _add_item(index_of, key, value, mode)
        else:
            _add(index_of(""), source, mode)
    return tuple(providers)


def split_scope(text: str) -> tuple[str, str]:
    """``scope=path`` → (scope, path); a path alone has the empty scope."""
    scope, separator, path = text.partition("=")
    return (scope, path) if separator else ("", text)


def _add_item(index_of: Any, key: Any, value: Any, mode: Mode) -> None:
    """An item of a mapping: an array of the global scope, or a scope with what it has."""
    if not isinstance(key, str):
        raise InvalidArgumentError(f"parameters: the names in a mapping must be strings, not {shown(key)}")
    if isinstance(value, (str, os.PathLike, ParameterIndex)) or state_of(value) is not None:
        with error_context(f"parameter scope '{key}'"):
            _add(index_of(key), value, mode)
    else:
        index_of("").add(array_entry(key, value))


def _add(index: ParameterIndex, source: Any, mode: Mode) -> None:
    if isinstance(source, (str, os.PathLike)):
        index.load(source, mode)
        return
    if isinstance(source, ParameterIndex):
        for entry in source:
            index.add(entry, ", ".join(source.archives))
        return
    state = state_of(source)
    if state is None:
        raise InvalidArgumentError(
            "parameters: expected `scope=path`, a path, a mapping of arrays or an object with state_dict() "
            f"but got a {type(source).__name__}"
        )
    for key, value in state.items():
        if not isinstance(key, str):
            raise InvalidArgumentError(f"parameters: the keys of arrays must be strings, not {shown(key)}")
        index.add(array_entry(key, value))
