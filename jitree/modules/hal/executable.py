"""Answer ``hal.executable.*``: load executables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.errors import InvalidArgumentError
from jitree.hal.enums import CachingMode
from jitree.hal.executable import Executable, ExecutableParameters
from jitree.modules.import_rows import text

if TYPE_CHECKING:
    from jitree.hal.device import Device
    from jitree.hal.pipeline_layout import PipelineLayout
    from jitree.modules.hal.module import HalState
    from jitree.regs.buffer import VmBuffer


def create(
    state: HalState,
    device: Device,
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
    layouts: Sequence[PipelineLayout] = (),
) -> Executable:
    """Loads an executable with the context's cache of that device.

    INVALID_ARGUMENT when the constants are not whole words; for the rest see ``ExecutableCache``.
    """
    parameters = parameters_of(executable_format, data, constants, layouts)
    executable = state.executable_cache(device).prepare_executable(parameters)
    state.supplier.expect(executable.function_count)
    return executable


def create_for_queues(
    state: HalState,
    device: Device,
    _queue_affinity: int,
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
) -> Executable:
    """:func:`create` since ABI 0.6; executables run on all queues."""
    return create(state, device, executable_format, data, constants)


def parameters_of(
    executable_format: VmBuffer,
    data: VmBuffer,
    constants: VmBuffer | None,
    layouts: Sequence[PipelineLayout] = (),
) -> ExecutableParameters:
    """What a program passes as loaders take it."""
    return ExecutableParameters(
        text(executable_format),
        data.view,
        constant_words(constants),
        CachingMode.NONE if data.writable else CachingMode.ALIAS_PROVIDED_DATA,
        tuple(layouts),
    )


def constant_words(constants: VmBuffer | None) -> tuple[int, ...]:
    """Little-endian u32 words; none for null."""
    if constants is None:
        return ()
    if constants.length % 4:
        raise InvalidArgumentError(f"executable constants of {constants.length} bytes; they are 32-bit words")
    return struct.unpack(f"<{constants.length // 4}I", constants.view)
