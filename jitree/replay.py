"""Calls made again from a recording, on devices that can.

In a call that keeps no state, what a program makes a device do depends on the shapes of its arguments, on
scalar arguments and on bytes that it reads back: so the second call of a kind is recorded, and the next ones
are submitted at once, without running the program. Whatever does not fit (other shapes, a failed call, a
program that keeps state or calls Python) runs as always.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from jitree.declaration import Signature
from jitree.dispatch.context import ContextFlags
from jitree.dispatch.function import Function as VmFunction
from jitree.errors import StatusError
from jitree.hal import recording
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.module import Function
from jitree.modules.hal.module import HalModule
from jitree.packing import ArrayTransfer
from jitree.regs.list import VmList
from jitree.regs.objects import VmBuffer
from jitree.transfers import wrap_or_copy
from jitree.vmfb.words import BASE_OPCODE, OPCODE

if TYPE_CHECKING:
    from jitree.array import Array
    from jitree.cuda.device import CudaDevice
    from jitree.cuda.replay import CudaReplay
    from jitree.dispatch.context import Context
    from jitree.regs.records import ModuleRecord
    from jitree.session import Session

_KINDS_KEPT: Final = 16
"""Recordings of one function."""
_MOST_VARIANTS: Final = 4
"""Ways that calls of one kind have gone, each recorded."""
_MOST_MISSES: Final = 8
"""Calls on end that went none of the recorded ways, before a kind of call is left to the program."""
_STATEFUL: Final = ("global.store.", "trace", "print", "break", "cond_break")
"""Instructions outside of the initialiser that make calls differ from what they look like."""
_STATEFUL_IMPORTS: Final = (
    "hal.buffer_view.trace", "hal.buffer.allocation.", "hal.ex.", "hal.channel.", "hal.fence.query",
    "hal.fence.signal",
    "hal.fence.fail",
)  # fmt: skip
_INITIALISER: Final = "__init"


class ReplayingFunction(Function):
    """A function of a session whose device repeats recorded calls."""

    __slots__ = ("_checked", "_gpu", "_kinds", "_suitable")

    def __init__(self, session: Session, vm_function: VmFunction, signature: Signature) -> None:
        super().__init__(session, vm_function, signature)
        self._gpu = cast("CudaDevice", session.device)
        self._is_direct = True  # replays are the shorter way here
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()
        self._checked = 0
        self._suitable = False

    def transfer(self) -> ArrayTransfer:
        device = cast("CudaDevice", self._session.device)

        def view_of(array: Array) -> BufferView:
            fence = array.fence
            if fence is not None and not device.replays.follows(fence):
                array.wait()
            return array.view

        return ArrayTransfer(device, view_of, wrap_or_copy)

    def call_general(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        packed = self._pack(arguments, named)
        kind = self._kind(packed)
        if kind is None:
            return self._unpack(self._invoke(packed))
        for variant in tuple(kind.variants):
            made = self._replay(variant, packed)
            if made is not None:
                kind.found(variant)
                return self._unpack(*made)
        if kind.wants_recording():
            return self._unpack(self._record(kind, packed))
        return self._unpack(self._invoke(packed))

    def _kind(self, packed: Sequence[object]) -> _Kind | None:
        """What is known of calls with such arguments; None for those that are never repeated."""
        count = len(self._context.modules)
        if self._checked != count:  # modules may be added later
            self._checked, self._suitable = count, _is_suitable(self._context)
        device = self._gpu
        if not self._suitable or device.device_allocator is not device.replays.allocator:
            return None
        key = _key(packed)
        if key is None:
            return None
        kinds = self._kinds
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _Kind()
            if len(kinds) > _KINDS_KEPT:
                kinds.popitem(last=False)
        return None if kind.never or device.profiler.mode or self.invoker.closed else kind

    def _record(self, kind: _Kind, packed: list[object]) -> list[Any]:
        replays = self._gpu.replays
        arguments = _buffers(packed)
        with (
            self.invoker.lock,
            recording.recording(replays.stream, arguments, replays.recording_limit) as made,
        ):
            results = self._invoke(packed)
            lasting = _lasting_memory(self._context)
        if made is None:
            return results
        outputs = None if lasting is None else _outputs(results, made, lasting)
        replay = None if outputs is None else replays.make(made, _fresh(outputs))
        if outputs is None or replay is None:
            kind.never = True
        else:
            kind.variants.insert(0, _Variant(replay, outputs))
        return results

    def _replay(self, variant: _Variant, packed: list[object]) -> tuple[list[Any], Fence] | None:
        arguments = _buffers(packed)
        try:
            made = self._gpu.replays.run(variant.replay, arguments)
        except StatusError as error:
            self._in_call(error)
            raise
        if made is None:
            return None
        buffers = dict(zip(_fresh(variant.outputs), made[0], strict=True))
        return [output.value(arguments, buffers) for output in variant.outputs], made[1]

    def forget(self) -> None:
        """Drops the recordings, with the memory that they keep."""
        self._kinds.clear()


class _Variant(NamedTuple):
    """One way that calls of a kind have gone."""

    replay: CudaReplay
    outputs: tuple[_Output, ...]


class _Kind:
    """Calls with arguments of the same shapes, types and scalars."""

    __slots__ = ("_calls", "_misses", "never", "variants")

    def __init__(self) -> None:
        self._calls = 0
        self._misses = 0
        self.never = False
        """Whether such calls are left to the program for good."""
        self.variants: list[_Variant] = []
        """By what the program read on the host; the last one that was right comes first."""

    def found(self, variant: _Variant) -> None:
        """A recording was right."""
        self._misses = 0
        if self.variants and self.variants[0] is not variant and variant in self.variants:
            self.variants.remove(variant)
            self.variants.insert(0, variant)

    def wants_recording(self) -> bool:
        """No recording was right: whether to make another one of the call, which is not the first."""
        self.variants = [variant for variant in self.variants if not variant.replay.dropped]
        self._calls += 1
        self._misses += bool(self.variants)
        if self._misses > _MOST_MISSES:
            self.never = True
            self.variants = []
            return False
        return self._calls > 1 and len(self.variants) < _MOST_VARIANTS


class _Output(NamedTuple):
    """A result: a number, or a view of an argument's, a fresh or a lasting buffer."""

    constant: object
    """What it is when it depends on nothing."""
    argument: int = -1
    allocation: int = -1
    offset: int = 0
    length: int = 0
    view: BufferView | None = None

    def value(self, arguments: Sequence[Buffer], buffers: dict[int, Buffer]) -> object:
        view = self.view
        if view is None:
            return self.constant
        whole = arguments[self.argument] if self.argument >= 0 else buffers[self.allocation]
        buffer = whole.subspan(self.offset, self.length)
        return BufferView(buffer, view.shape, view.element_type, view.encoding)


def _key(packed: Iterable[object]) -> tuple[object, ...] | None:
    """All that a program can find out about its arguments; None when that is too much."""
    key: list[object] = []
    allocations = set()
    count = 0
    for value in packed:
        if type(value) is BufferView:
            buffer = value.buffer
            allocations.add(id(buffer.allocation))
            count += 1
            key += (
                value.shape, value.element_type, value.encoding, buffer.byte_length, buffer.memory_type,
                buffer.allowed_usage, buffer.allowed_access,
            )  # fmt: skip
        elif type(value) in (int, float) and value == value:
            key += (type(value), value, str(value) if value == 0 else "")
        else:
            return None
    return tuple(key) if len(allocations) == count else None


def _buffers(packed: Iterable[object]) -> list[Buffer]:
    return [value.buffer for value in packed if isinstance(value, BufferView)]


def _fresh(outputs: Iterable[_Output]) -> list[int]:
    return sorted({output.allocation for output in outputs if output.allocation >= 0})


def _outputs(
    results: Sequence[Any], made: recording.Recording, lasting: set[int]
) -> tuple[_Output, ...] | None:
    """How to make the results again; None when that is not known, or when the program keeps an argument."""
    arguments = {id(buffer.allocation): n for n, buffer in enumerate(made.arguments)}
    requests = {id(request.buffer.allocation): n for n, request in enumerate(made.requests)}
    if lasting & arguments.keys():
        return None
    outputs = []
    for value in results:
        if type(value) is not BufferView:
            if type(value) not in (int, float):
                return None
            outputs.append(_Output(value))
            continue
        buffer = value.buffer
        key = id(buffer.allocation)
        if key in arguments:
            number = arguments[key]
            base = made.arguments[number]
            offset = buffer.byte_offset - base.byte_offset
            if offset < 0 or offset + buffer.byte_length > base.byte_length:
                return None
            outputs.append(_Output(None, number, -1, offset, buffer.byte_length, value))
        elif key in requests:
            number = requests[key]
            offset = buffer.byte_offset - made.requests[number].buffer.byte_offset
            outputs.append(_Output(None, -1, number, offset, buffer.byte_length, value))
        elif key in lasting:
            outputs.append(_Output(value))
        else:
            return None
    return tuple(outputs)


def _lasting_memory(context: Context) -> set[int] | None:
    """ids of the allocations that modules keep; None when one keeps something that calls change unseen."""
    found = set()
    for record in context.module_records:
        for handle in record.ref_globals:
            value = context.table.object(handle) if handle else None
            if isinstance(value, VmList) or (isinstance(value, VmBuffer) and value.writable):
                return None
            buffer = value.buffer if isinstance(value, BufferView) else value
            if isinstance(buffer, Buffer):
                found.add(id(buffer.allocation))
    return found


def _is_suitable(context: Context) -> bool:
    """Whether calls of the context's functions keep no state and call nothing but the HAL."""
    if context.flags != ContextFlags.NONE:
        return False
    compiled = {record.module.name for record in context.module_records}
    lasting = {"io_parameters", *compiled}
    hal = [module for module in context.modules if module.name == "hal"]
    return all(isinstance(module, HalModule) for module in hal) and all(
        _keeps_no_state(record) and _calls_hal_only(record, lasting) for record in context.module_records
    )


def _calls_hal_only(record: ModuleRecord, others: set[str]) -> bool:
    for item in record.module.imports:
        name = item.full_name
        if name.startswith(_STATEFUL_IMPORTS):
            return False
        if not name.startswith("hal.") and name.partition(".")[0] not in others:
            return False
    return True


def _keeps_no_state(record: ModuleRecord) -> bool:
    """No instruction outside of the initialiser is one of _STATEFUL."""
    program = record.program
    initialiser = record.module.export(_INITIALISER)
    ordinal = -1 if initialiser is None else initialiser.ordinal
    spans = [(f.start, f.end) for f in program.functions if f.ordinal != ordinal]
    words = program.words
    opcodes = {
        BASE_OPCODE[words[word]]
        for word in program.instruction_words
        if any(start <= word < end for start, end in spans)
    }
    return not opcodes & _STATEFUL_OPCODES


_STATEFUL_OPCODES: Final = {number for name, number in OPCODE.items() if name.startswith(_STATEFUL)}
