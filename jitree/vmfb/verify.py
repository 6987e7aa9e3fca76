"""Verification by itself. Decoding verifies on its way; nothing is checked here that it does not check."""

from __future__ import annotations

from jitree.vmfb.linkage import Linkage
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.signature import read_signatures
from jitree.vmfb.specification import walk_function


def verify_function(module: ModuleTables, function: FunctionRow) -> None:
    """Checks the descriptors of the module and the body of one function; raises what decoding raises."""
    walk_function(module, function, Linkage(module, read_signatures(module)))


def verify_module(module: ModuleTables) -> None:
    """Checks every function."""
    linkage = Linkage(module, read_signatures(module))
    for function in module.functions:
        walk_function(module, function, linkage)
