"""The image of what all compiled kernels have in common. Only its builder and tests import this module."""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.frontend import compiled, signature_of
from jitree.codegen.image.compile import Target, optimized_module
from jitree.codegen.image.generated import STRAIGHT, Generated, one_unit
from jitree.dispatch.semantics_rows import TARGET, declaration, definition, metadata_of
from jitree.loaders.vmvx_spans import let_go, run_span, withdraw
from jitree.loaders.vmvx_workgroups import workgroups


def generate() -> Generated:
    """The code that runs spans; as notes, ``workgroups`` as LLVM IR that is simplified once and not with each
    kernel, and declarations of what it calls."""
    name = workgroups.__name__
    text = compiled(workgroups, name, signature_of(workgroups)).text
    module = optimized_module([text], [name], Target(*TARGET), STRAIGHT)
    lines = [
        declaration(function)
        if function.is_declaration
        else definition(function, metadata_of(module), "define", 'nounwind "no-builtins"')
        for function in module.functions
    ]
    entries = (run_span, withdraw, let_go)
    names = [entry.__name__ for entry in entries]
    return one_unit(functions.texts(entries), names, "\n".join(lines).encode())
