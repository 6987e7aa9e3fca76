"""The image of what all compiled kernels have in common. Only its builder and tests import this module."""

from __future__ import annotations

from jitree.codegen import functions
from jitree.codegen.image.generated import Generated, one_unit
from jitree.loaders.vmvx.spans import let_go, run_span, withdraw

_ENTRIES = (run_span, withdraw, let_go)


def generate() -> Generated:
    """The code that runs spans."""
    return one_unit(functions.texts(_ENTRIES), [entry.__name__ for entry in _ENTRIES])
