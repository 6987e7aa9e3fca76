"""Writes loop nests anew in vectors; README.md says how."""

from __future__ import annotations

from jitree.dispatch.native.nests.passes import Nest, NestRefusal, find

__all__ = ["Nest", "NestRefusal", "find"]
