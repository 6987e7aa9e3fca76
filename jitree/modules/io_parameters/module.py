"""Functions of ``io_parameters``.

All three are queue operations: they return at once, wait for a fence and reach another one when the bytes are
where they belong. The tables are looked up by the call itself, so that what is missing fails it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.hal.enums import BufferUsage
from jitree.modules.hal.module import RowModule
from jitree.modules.io_parameters.agreement import ReadingProgram, require_agreement
from jitree.modules.io_parameters.batch import Batch, Where
from jitree.modules.io_parameters.providers import ScopeProvider
from jitree.modules.io_parameters.requests import ParameterRequest, Tables, in_turn, resolve, scope_name
from jitree.regs.list import VmList

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

_TRANSFER_TARGET: Final = int(BufferUsage.TRANSFER_TARGET)
_SHARING_IMMUTABLE: Final = int(BufferUsage.SHARING_IMMUTABLE)


class ParametersState:
    """The state of one context."""

    __slots__ = ("buffer_type", "program", "providers")

    def __init__(self, providers: Sequence[ScopeProvider], buffer_type: int, program: ReadingProgram) -> None:
        self.providers = providers
        self.program = program
        self.buffer_type = buffer_type
        """Number of the reference type ``hal.buffer``: of what lists of loaded parameters hold."""


def load(state: ParametersState, where: Where, tables: Tables, memory_types: int, usage: int) -> VmList:
    """A list of one buffer a span. Memory that the device can use where it is, such as a mapped file, is not
    copied when the program promises to leave it as it is (usage SHARING_IMMUTABLE), and keeps that as far as
    its bytecode says: what a variable starts with may be changed in place, by kernels that would fault on
    read-only pages."""
    with Batch(*where) as batch:
        requests = resolve(state.providers, tables, batch.memory)
        require_agreement(state.program, scope_name(tables), requests)
        is_left = bool(usage & _SHARING_IMMUTABLE) and not state.program.stores_to_constants(where[0].loaders)
        load_one = _used_in_place if is_left else _copied
        buffers = [load_one(where[0], batch, request, memory_types, usage) for request in in_turn(requests)]
        batch.submit()
    loaded = VmList(state.buffer_type, len(buffers))
    for buffer in buffers:
        loaded.append(buffer)
    return loaded


def _used_in_place(
    device: Device, batch: Batch, request: ParameterRequest, memory_types: int, usage: int
) -> Buffer:
    """A buffer over the memory of a parameter, where the device can use that, else as :func:`_copied`."""
    parameter, start, buffer_offset, length = request
    if parameter.pattern is None and not buffer_offset:
        source = parameter.contents()[start : start + length].toreadonly()
        imported = device.device_allocator.import_host(source, memory_types, usage)
        if imported is not None:
            for executable in device.executables:
                executable.add_constants(source)
            return imported
    return _copied(device, batch, request, memory_types, usage)


def _copied(device: Device, batch: Batch, request: ParameterRequest, memory_types: int, usage: int) -> Buffer:
    parameter, start, buffer_offset, length = request
    if buffer_offset:
        raise InvalidArgumentError(
            f"parameter '{parameter.key}' is loaded into a separate buffer, where it cannot begin at "
            f"{buffer_offset}"
        )
    buffer = device.device_allocator.allocate(memory_types, usage | _TRANSFER_TARGET if usage else 0, length)
    _read(batch, ParameterRequest(parameter, start, 0, length), buffer)
    return buffer


def gather(state: ParametersState, where: Where, tables: Tables, target: Buffer) -> None:
    """Copies ranges of parameters into one buffer."""
    with Batch(*where) as batch:
        requests = resolve(state.providers, tables, batch.memory)
        require_agreement(state.program, scope_name(tables), requests)
        for request in in_turn(requests):
            target.range(request.buffer_offset, request.length)
            _read(batch, request, target)
        batch.submit()


def _read(batch: Batch, request: ParameterRequest, target: Buffer) -> None:
    parameter, start, offset, length = request
    if parameter.pattern is not None:
        batch.fill(parameter.pattern, start, target, offset, length)
    else:
        batch.read(parameter.contents()[start : start + length].toreadonly(), target, offset)


def scatter(state: ParametersState, where: Where, tables: Tables, source: Buffer) -> None:
    """Copies ranges of a buffer into parameters.

    FAILED_PRECONDITION for a splat, PERMISSION_DENIED for a parameter that was not opened for writing; then
    none is written.
    """
    with Batch(*where) as batch:
        for parameter, start, offset, length in in_turn(resolve(state.providers, tables, batch.memory)):
            if parameter.pattern is not None:
                raise FailedPreconditionError(
                    f"parameter '{parameter.key}' is a repeated pattern, which cannot be written to"
                )
            if not parameter.writable:
                raise PermissionDeniedError(f"parameter '{parameter.key}' is read-only")
            source.range(offset, length)
            batch.write(source, offset, parameter.contents()[start : start + length])
        batch.submit()


class IoParametersModule(RowModule):
    """``io_parameters`` over providers, of which the first one of a scope answers for it."""

    name = "io_parameters"
    version = 0

    def __init__(self, providers: Sequence[ScopeProvider] = ()) -> None:
        self.providers = tuple(providers)

    def create_state(self, context: ModuleContext) -> ParametersState:
        return ParametersState(
            self.providers, context.ref_types.lookup("hal.buffer"), ReadingProgram(context)
        )
