"""The image of what all compiled kernels have in common. Only its builder and tests import this module."""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.frontend import compiled, signature_of
from jitree.codegen.image.generated import Generated, one_unit
from jitree.loaders.vmvx_spans import let_go, run_span, withdraw
from jitree.loaders.vmvx_workgroups import workgroups


def generate() -> Generated:
    """The code that runs spans; as notes, the IR of ``workgroups`` without its first line, a comment that
    counts what the process compiled before."""
    _, _, text = compiled(workgroups, workgroups.__name__, signature_of(workgroups)).text.partition("\n")
    entries = (run_span, withdraw, let_go)
    return one_unit(functions.texts(entries), [entry.__name__ for entry in entries], text.encode())
