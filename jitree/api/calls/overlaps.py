"""Keeps arguments apart that lie in the same memory, and takes donated ones.

The compiler takes the storage of a result for memory that nothing else lies in, and may have a kernel write
there before all of another argument has been read. So an argument in that memory is copied before the call.
It stays where it is if it is exactly the memory of the storage, and the program does no more than copy it
there at its end, as its bytecode shows: so programs update caches of their callers.

What a call gives to the program for good (:func:`jitree.donate`) lies in memory of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import Parameter, Signature
from jitree.api.calls.tensor_packing import Donation, as_array, is_object
from jitree.api.calls.transfers import copy_view
from jitree.dispatch.function import BytecodeFunction
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import Buffer, BufferView
from jitree.regs.list import without_lists
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import IMPORT_BIT, REF_BIT, REF_MASK, InstructionRecord, read_instructions

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.device import Device

    class CalledFunction(Protocol):
        """What is asked of a function whose arguments are packed."""

        signature: Signature

        @property
        def name(self) -> str: ...
        @property
        def vm_function(self) -> VmFunction: ...
        @property
        def invoker(self) -> Invoker: ...
        @property
        def session(self) -> Any: ...
        @property
        def device(self) -> Device: ...
        @property
        def updates_in_place(self) -> Pairs: ...


_TWICE: Final = (
    "is donated and passed a second time: the program may overwrite it while it reads it. Pass it once, or "
    "donate a copy: donate(session.to_device(numpy.array(array)))"
)

_COPY, _CREATE, _EXECUTE, _BUFFER, _VIEW = (
    "hal.command_buffer.copy_buffer", "hal.command_buffer.create", "hal.device.queue.execute",
    "hal.buffer_view.buffer", "hal.buffer_view.create",
)  # fmt: skip
_ENDING: Final = frozenset({
    "hal.buffer_view.assert", "hal.buffer.assert", "hal.device.allocator", "hal.device.queue.dealloca",
    "hal.fence.create", "hal.fence.await", _VIEW,
})  # fmt: skip
"""Imports that read and write no elements."""
_AFTER_COPIES: Final = _ENDING | {
    "hal.command_buffer.execution_barrier", "hal.command_buffer.finalize", _EXECUTE,
}  # fmt: skip
_MOST_BYTES: Final = 1 << 14
"""The most bytes of a function that is read: more in Python takes longer than copies do."""

Pairs = frozenset[tuple[int, int]]
"""Positions of a storage and of another argument."""


def separated(function: CalledFunction, arguments: Sequence[Any], packed: Sequence[object]) -> list[object]:
    """Copies each packed tensor that lies in a result's storage. INVALID_ARGUMENT for others that lie there,
    such as another storage."""
    separate, parameters = list(packed), function.signature.arguments
    for place, storage in enumerate(parameters):
        for index, other in enumerate(parameters if storage.storage_of is not None else ()):
            if index == place or not shares_memory(packed[place], [packed[index]]):
                continue
            view, value = packed[index], arguments[index]
            is_same = _extent(packed[place]) == _extent(view)
            if is_same and (place, index) in function.updates_in_place:
                continue
            is_read = other.tensor is not None and other.storage_of is None
            view = view.buffer_view if isinstance(view, Array) else view
            if not is_read or not isinstance(view, BufferView) or isinstance(value, Donation):
                raise InvalidArgumentError(
                    f"{other.name} lies in the memory of {storage.name}, where the program puts a result; "
                    "pass other memory, such as session.empty(shape)"
                )
            if isinstance(value, Array):
                value.wait()
            separate[index] = copy_view(view, function.device)
    return separate


def shares_memory(one: object, others: Iterable[object]) -> bool:
    """Whether any of the others lies in the memory of one."""
    return any(
        mine.address < other.address + other.byte_length and other.address < mine.address + mine.byte_length
        for mine in _buffers([one])
        for other in _buffers(others)
    )


def _buffers(packed: Iterable[object]) -> Iterator[Buffer]:
    for value in without_lists(packed):
        if isinstance(value, Array):
            value = value.buffer_view
        if isinstance(value, BufferView):
            value = value.buffer
        if isinstance(value, Buffer) and value.byte_length:
            yield value


def _extent(value: object) -> list[tuple[int, int]]:
    return [(buffer.address, buffer.byte_length) for buffer in _buffers([value])]


def arrays_of(arguments: Iterable[Any]) -> Iterator[Array]:
    """Lists device arrays of a call, donated and nested ones too."""
    for value in arguments:
        if isinstance(value, Donation):
            yield value.array
        elif isinstance(value, Array):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from arrays_of(value)


def require_once(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> None:
    """Raises INVALID_ARGUMENT for arrays donated and passed twice. A numpy array over the same memory
    counts."""
    passed = list(arrays_of(arguments))
    for parameter, value in zip(parameters, arguments, strict=True):
        if not isinstance(value, Donation):
            continue
        if sum(value.array is array for array in passed) > 1 or _is_on_host(value.array, arguments):
            raise InvalidArgumentError(f"{parameter.name}: the array {_TWICE}")


def _is_on_host(array: Array, arguments: Iterable[Any]) -> bool:
    """Whether an argument to be copied lies in the tensor's memory. It is not known any more then."""
    if array.is_donated or array.buffer_view.buffer.host_address is None:
        return False
    memory = array.buffer_view.buffer.host_array()
    return any(np.may_share_memory(memory, other) for other in _host_arrays(arguments))


def _host_arrays(arguments: Iterable[Any]) -> Iterator[npt.NDArray[Any]]:
    for value in arguments:
        if isinstance(value, (tuple, list)):
            yield from _host_arrays(value)
        elif not (isinstance(value, (Array, Donation)) or is_object(value)):
            array = as_array(value)
            if array is not None:
                yield array


def give_up(parameters: Sequence[Parameter], arguments: Sequence[Any], packed: Sequence[object]) -> None:
    """Takes the donated arrays from their owners: when all arguments are packed, and none can be refused any
    more. INVALID_ARGUMENT if another argument lies in their memory."""
    for position, value in enumerate(arguments):
        others = [other for index, other in enumerate(packed) if index != position]
        if isinstance(value, Donation) and shares_memory(packed[position], others):
            raise InvalidArgumentError(f"{parameters[position].name}: the memory of the array {_TWICE}")
    for value in arguments:
        if isinstance(value, Donation):
            value.array._give_up()


def find_updates(function: VmFunction) -> Pairs:
    """Pairs storage with arguments that a program copies there last: no command follows that could see the
    difference, and none before it has to do with the storage.

    All commands must be in the first block, and one command buffer: there they happen in order."""
    if not isinstance(function, BytecodeFunction):
        return frozenset()
    module = cast(BytecodeModule, function.module).module
    names = [row.full_name for row in module.imports]
    body = bytes(module.body(module.functions[function.ordinal]))
    references = [index for index, item in enumerate(function.convention.arguments) if item == "r"]
    block = _FirstBlock(dict(enumerate(references)))
    blocks = 0
    for record in read_instructions(body, module.bytecode_version[0]) if len(body) <= _MOST_BYTES else ():
        blocks += record.instruction.block_marker
        is_call = record.instruction.mnemonic.startswith("call")
        name = names[record.operands[0] & ~IMPORT_BIT] if is_call and record.operands[0] & IMPORT_BIT else ""
        if blocks <= 1:
            block.step(record, name)
        elif is_call and name not in _ENDING:
            return frozenset()
    return frozenset(block.copies) if block.counts == {_CREATE: 1, _EXECUTE: 1} else frozenset()


class _FirstBlock:
    """What its instructions do with arguments; ``copies`` is empty once a command follows."""

    def __init__(self, arguments: dict[int, int]) -> None:
        self._held = arguments
        """The argument in each ref register, or its buffer."""
        self._used: set[int] = set()
        """Arguments that are passed on."""
        self.copies: set[tuple[int, int]] = set()
        self.counts = {_CREATE: 0, _EXECUTE: 0}

    def step(self, record: InstructionRecord, name: str) -> None:
        refs, held = _refs(record, False), None
        if name in self.counts:
            self.counts[name] += 1
        if name == _COPY:
            self._copy(record.operands[-2])
        elif name == _BUFFER:
            held = self._held.get(refs[0])
        elif name not in _AFTER_COPIES or name == _VIEW:
            self._used |= {self._held[ref] for ref in refs if ref in self._held}
            if name != _VIEW and record.instruction.mnemonic.startswith("call"):
                self.copies.clear()
        for ref in _refs(record, True):
            self._held.pop(ref, None)
            if held is not None:
                self._held[ref] = held

    def _copy(self, words: Sequence[int]) -> None:
        source, target = [at for at, word in enumerate(words) if word & REF_BIT][1:]
        argument, storage = (self._held.get(words[at] & REF_MASK) for at in (source, target))
        if (
            argument is None
            or storage is None
            or storage in self._used
            or words[source + 1] != words[target + 1]
        ):
            self.copies.clear()
        else:
            self.copies.add((storage, argument))
        self._used |= set() if storage is None else {storage}


def _refs(record: InstructionRecord, output: bool) -> list[int]:
    """Ref registers that an instruction reads or writes."""
    found: list[int] = []
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        if (
            operand.output == output
            and operand.kind.startswith(("r.", "list."))
            and operand.kind != "list.segment"
        ):
            words = value if isinstance(value, tuple) else (value,)
            found += [word & REF_MASK for word in words if word & REF_BIT]
    return found


def extent_of(array: Array) -> tuple[int, int]:
    """Address and bytes of an array's buffer. FAILED_PRECONDITION for a donated array."""
    keeper, owner = array._keeper, array._owner
    found = None if array._view is not None or keeper is None or owner is None else keeper.extent(owner)
    if found is None or not found[0]:
        buffer = array.buffer_view.buffer
        return buffer.address, buffer.byte_length
    return found
