"""Provides the machine code of loading as functions, or the same in Python.

Its image has the entries ``decode(decoder)``, ``verify(verifier)`` and ``read_columns(reader)``, and as notes
what they know of instructions and tables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final

import numpy as np

from jitree.base.memory import address_of
from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.codegen.image import Recipe

RECIPE: Final = Recipe("load", "the verifier of modules", "jitree.vmfb.native.bodies:generate", 8.0)


_ENTRIES: Final = ("decode", "verify", "read_columns")
_FUNCTION: Final = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Code(NamedTuple):
    """Groups functions of a record with what they know. That is instructions and tables."""

    decode: Callable[[int], int]
    """Decodes what a Decoder says; 1 if it accepts all functions."""
    verify: Callable[[int], int]
    """Verifies what a Verifier says; the number of findings."""
    read_columns: Callable[[int], int]
    """Reads what a ColumnReader says; 1 if it could read all."""
    tables: int
    """Address of a TABLES record."""
    owner: object


_code: Code | None = None


def compiled() -> Code | None:
    """The machine code if it is there."""
    global _code
    if _code is None:
        ready = image.get(RECIPE)
        if ready is not None:
            decode, verify, read_columns = (_FUNCTION(ready.addresses[name]) for name in _ENTRIES)
            _code = Code(
                decode, verify, read_columns, address_of(np.frombuffer(ready.notes, np.uint8)), ready
            )
    return _code


@cache
def interpreted() -> Code:
    """The same functions, run by Python."""
    from jitree.vmfb.native import bodies, checking, layout, tables

    content = tables.generate()
    return Code(
        lambda address: bodies.decode(layout.Decoder(address)),
        lambda address: checking.verify(layout.Verifier(address)),
        lambda address: checking.read_columns(layout.ColumnReader(address)),
        address_of(np.frombuffer(content, np.uint8)),
        content,
    )
