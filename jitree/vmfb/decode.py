"""Verifies a module's function bodies and makes them one :class:`~jitree.vmfb.program.DecodedModule`."""

from __future__ import annotations

from jitree.vmfb.native import decoding
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.signature import read_signatures
from jitree.vmfb.size_arithmetic import may_compute_sizes


def decode_module(module: ModuleTables) -> DecodedModule:
    """The decoded form of all functions.

    Every instruction is verified on the way: a module that decodes can be run without checks of operands.
    Raises the status of the failed check with function, byte offset and mnemonic as contexts. Machine code
    does it where that is there; what it does not accept is looked at again, by what says why.
    """
    signatures = read_signatures(module)
    program = decoding.decode(module, signatures)
    if program is None:
        from jitree.vmfb import specification

        program = specification.decode(module, signatures)
    if may_compute_sizes(module, program):
        from jitree.vmfb.sizes import check_sizes

        check_sizes(module, program)
    return program
