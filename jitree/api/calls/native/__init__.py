"""Calls functions by machine code, from arguments to arrays; its image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.image import Recipe

if TYPE_CHECKING:
    from jitree.codegen.image.generated import Generated

RECIPE: Final = Recipe("calls", "the code of calls", "jitree.api.calls.native:generate", 12.0)


def generate() -> Generated:
    """The LLVM IR of calls, in the builder process."""
    from jitree.api.calls.native.arrays import (
        array_method,
        buffer_method,
        destroy_owner,
        find_elements,
        new_owner,
        take_back,
    )
    from jitree.api.calls.native.exports import (
        allocate_managed,
        convert_array,
        current_work_stream,
        destroy_managed,
        export_managed,
        export_tensor,
        import_managed,
    )
    from jitree.api.calls.native.function import (
        attempt_method,
        direct_method,
        function_method,
        run_method,
        run_rows,
        submit_method,
    )
    from jitree.api.calls.native.reading import fetch_method
    from jitree.codegen import functions
    from jitree.codegen.image.generated import one_unit

    entries = (
        function_method, submit_method, attempt_method, direct_method, run_method, run_rows, array_method,
        buffer_method, find_elements, fetch_method, new_owner, destroy_owner, take_back, export_managed,
        export_tensor, import_managed, current_work_stream, allocate_managed, destroy_managed, convert_array,
    )  # fmt: skip
    return one_unit(functions.texts(entries), (function.__name__ for function in entries))
