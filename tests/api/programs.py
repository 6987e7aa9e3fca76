"""Paths of the compiled programs that session tests run."""

from __future__ import annotations

from pathlib import Path

PROGRAMS = Path(__file__).parent.parent / "data" / "programs"

ALIASES = PROGRAMS / "aliases.vmfb"
ARITHMETIC = PROGRAMS / "arithmetic.vmfb"
ASYNCHRONOUS = PROGRAMS / "asynchronous.vmfb"
CACHES = PROGRAMS / "caches.vmfb"
CALLS = PROGRAMS / "calls.vmfb"
ECHO = PROGRAMS / "echo.vmfb"
KINDS = PROGRAMS / "kinds.vmfb"
LIBRARY = PROGRAMS / "library.vmfb"
OUTPUTS = PROGRAMS / "outputs.vmfb"
PAGED = PROGRAMS / "paged.vmfb"
PROGRAM = PROGRAMS / "program.vmfb"
REFERENCES = PROGRAMS / "references.vmfb"
SIZES = PROGRAMS / "sizes.vmfb"
STATE = PROGRAMS / "state.vmfb"
STORAGE = PROGRAMS / "storage.vmfb"
TORCH_STYLE = PROGRAMS / "torch_style.vmfb"
TURNS = PROGRAMS / "turns.vmfb"
TURNED = PROGRAMS / "turned.vmfb"
WORKSPACES = PROGRAMS / "workspaces.vmfb"
