"""Verifies a module's function bodies and decodes them into one :class:`~jitree.vmfb.program.Program`."""

from __future__ import annotations

from array import array

import numpy as np

from jitree.errors import StatusError
from jitree.vmfb.blocks import CodeLayout
from jitree.vmfb.fuse import carry_comparisons, fuse
from jitree.vmfb.linkage import Linkage
from jitree.vmfb.program import DecodedFunction, Program
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.signature import read_signatures
from jitree.vmfb.walk import FunctionWalk


def decode_module(module: ModuleTables) -> Program:
    """The decoded form of all functions.

    Every instruction is verified on the way: a module that decodes can be run without checks of operands.
    Raises the status of the failed check with function, byte offset and mnemonic as contexts.
    """
    signatures = read_signatures(module)
    linkage = Linkage(module, signatures)
    layout = CodeLayout()
    functions = []
    for function, signature in zip(module.functions, signatures, strict=True):
        walk = walk_function(module, function, linkage)
        start = len(layout.words)
        carry_comparisons(walk.blocks)
        layout.add(walk.blocks)
        functions.append(
            DecodedFunction(
                ordinal=function.ordinal,
                start=start,
                end=len(layout.words),
                value_count=max(signature.value_count, 1) + 1 & ~1,
                ref_count=max(signature.ref_count, 1),
                cconv=signature.cconv,
                argument_slots=signature.argument_slots,
                result_tags=signature.cconv.result_tags,
            )
        )
    fuse(layout.words, layout.instruction_words)
    return Program(
        module,
        words=np.array(layout.words, np.int32),
        functions=tuple(functions),
        site_words=layout.call_words,
        site_segments=linkage.site_segments,
        instruction_words=array("i", layout.instruction_words),
        instruction_offsets=array("i", layout.instruction_offsets),
    )


def walk_function(module: ModuleTables, function: FunctionRow, linkage: Linkage) -> FunctionWalk:
    """Verifies one function; the walk holds its blocks."""
    signature = linkage.signatures[function.ordinal]
    walk = FunctionWalk(function, bytes(module.body(function)), signature, linkage)
    try:
        walk.run()
    except StatusError as error:
        raise error.with_context(f"function '{module.function_name(function.ordinal)}'") from None
    return walk
