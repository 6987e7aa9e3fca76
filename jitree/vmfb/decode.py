"""Verifies a module's function bodies and makes them one :class:`~jitree.vmfb.program.DecodedModule`."""

from __future__ import annotations

from jitree.errors import InternalError
from jitree.vmfb.arithmetic import STRICT
from jitree.vmfb.native.code import compiled, interpreted
from jitree.vmfb.native.decoding import Decoding
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.signature import read_signatures
from jitree.vmfb.size_arithmetic import may_compute_sizes


def decode_module(module: ModuleTables, arithmetic: str = STRICT) -> DecodedModule:
    """The decoded form of all functions, with one of :data:`jitree.vmfb.arithmetic.MULTIPLY_ADD`.

    Every instruction is verified on the way: a module that decodes can be run without checks of operands.
    Raises the status of the failed check with function, byte offset and mnemonic as contexts.
    """
    signatures = read_signatures(module)
    decoding = Decoding(module, signatures, arithmetic)
    program = decoding.run(compiled() or interpreted())
    if program is None:
        from jitree.vmfb.refusals import require_sound

        for function in module.functions[decoding.accepted :]:
            require_sound(module, function, signatures)
        raise InternalError(f"module '{module.name}' is refused, but no check of its functions says why")
    if may_compute_sizes(module, program):
        from jitree.vmfb.sizes import check_sizes

        check_sizes(module, program)
    return program
