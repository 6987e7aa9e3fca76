"""Verifying and decoding in Python: what the machine code of loading has to do, and why it refuses."""

from __future__ import annotations

from array import array

import numpy as np

from jitree.errors import StatusError
from jitree.vmfb.blocks import CodeLayout
from jitree.vmfb.fuse import carry_comparisons, fuse
from jitree.vmfb.linkage import Linkage
from jitree.vmfb.program import DecodedModule, decoded_functions
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.signature import FunctionSignature
from jitree.vmfb.walk import FunctionWalk


def decode(module: ModuleTables, signatures: tuple[FunctionSignature, ...]) -> DecodedModule:
    """The decoded form of all functions. Raises the status of the failed check with function, byte offset and
    mnemonic as contexts."""
    linkage = Linkage(module, signatures)
    layout = CodeLayout()
    ends = [0]
    for function in module.functions:
        blocks = walk_function(module, function, linkage).blocks
        carry_comparisons(blocks)
        layout.add(blocks)
        ends.append(len(layout.words))
    fuse(layout.words, layout.instruction_words)
    return DecodedModule(
        module,
        words=np.array(layout.words, np.int32),
        functions=decoded_functions(signatures, ends[:-1], ends[1:]),
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
