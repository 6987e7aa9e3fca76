"""Assembled modules, read and decoded."""

from __future__ import annotations

from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.module import read_module
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from tests.assembler import Assembler


def read(module: Assembler) -> ModuleTables:
    return read_module(Archive.open(module.build()))


def decode(module: Assembler) -> DecodedModule:
    return decode_module(read(module))
