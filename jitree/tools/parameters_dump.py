"""``jitree parameters dump``: lists what archives hold, and extracts parameters."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    error_context,
    pass_interruption,
)
from jitree.params import Mode, ParameterEntry, ParameterProvider, open_providers
from jitree.params.index import nearest, scope_text
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command
from jitree.tools.parameters_table import ParameterRow, long_table, table

FLAGS: Final = flag_set(
    "parameters dump",
    "lists what parameter archives hold",
    "parameter extract",
    positional="parameters",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Prints a table for each scope, then extracts; NOT_FOUND for an unknown scope or key."""
    providers = open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode")))
    layout = long_table if flags.boolean("long") else table
    for provider in providers:
        rows = [ParameterRow(entry, entry.file_offset) for entry in provider.index]
        sys.stdout.write(layout(provider.scope, rows))
    for text in flags.texts("extract"):
        with error_context(f"extracting parameter with flag `{text}`"):
            _extract(providers, text)
    return 0


def _extract(providers: Sequence[ParameterProvider], text: str) -> None:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise InvalidArgumentError(f"'{text}' is not [<scope>::]<key>=<file>")
    entry = _find(providers, name)
    print(f"Extracting parameter `{entry.key}` ({entry.length}b) to `{path}`...", flush=True)
    try:
        with open(path, "wb") as file:
            for chunk in entry.chunks():
                file.write(chunk)
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"cannot write '{path}': {error.strerror}") from None


def _find(providers: Sequence[ParameterProvider], name: str) -> ParameterEntry:
    scope, separator, key = name.partition("::")
    if not separator:
        scope, key = "", name
    for provider in providers:
        if provider.scope == scope:
            return provider.get(key)
    scopes = [provider.scope for provider in providers]
    known = ", ".join(scope_text(item) for item in scopes) or "none"
    raise NotFoundError(
        f"no parameters in scope {scope_text(scope)}; scopes: {known}{nearest(scope, scopes)}"
    )
