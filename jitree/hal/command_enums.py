"""Bit sets that compiled modules pass to command buffers. Objects keep them as plain integers."""

from __future__ import annotations

from jitree.base.records import Flags


class CommandBufferMode(Flags):
    DEFAULT = 0
    """Submitted any number of times, also at the same time."""
    ONE_SHOT = 0x1
    NESTED = 0x2
    """0.2 modules only: executed from other command buffers."""
    ALLOW_INLINE_EXECUTION = 0x10
    UNVALIDATED = 0x20
    UNRETAINED = 0x40


class CommandCategory(Flags):
    TRANSFER = 0x1
    DISPATCH = 0x2
    ANY = 0x3


class DispatchFlags(Flags):
    """As numbered by releases from 3.7.0 on; earlier modules only pass 0."""

    NONE = 0
    DYNAMIC_INDIRECT_PARAMETERS = 0x1
    STATIC_INDIRECT_PARAMETERS = 0x2
    CUSTOM_DIRECT_ARGUMENTS = 0x4
    DYNAMIC_INDIRECT_ARGUMENTS = 0x8
    STATIC_INDIRECT_ARGUMENTS = 0x10
    ALLOW_INLINE_EXECUTION = 0x20
