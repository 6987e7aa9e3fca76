"""Calls made again from a recording, on devices that can.

In a call that keeps no state, what a program makes a device do depends on the shapes of its arguments, on
scalar arguments and on bytes that it reads back: so the second call of a kind is recorded, and the next ones
are submitted at once, without running the program. Whatever does not fit (other shapes, a failed call, a
program that keeps state or calls Python) runs as always.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from jitree.array import Array
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
    from jitree.cuda.device import CudaDevice
    from jitree.cuda.replay import CudaReplay, Located
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

    __slots__ = ("_gpu", "_kinds", "_last", "_suitable")

    def __init__(self, session: Session, vm_function: VmFunction, signature: Signature) -> None:
        super().__init__(session, vm_function, signature)
        self._gpu = cast("CudaDevice", session.device)
        self._is_direct = True  # replays are the shorter way here
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()
        self._last: _Last | None = None
        self._suitable: bool | None = None

    def transfer(self) -> ArrayTransfer:
        device = cast("CudaDevice", self._session.device)

        def view_of(array: Array) -> BufferView:
            fence = array.fence
            if fence is not None and not device.replays.follows(fence):
                array.wait()
            return array.view

        return ArrayTransfer(device, view_of, wrap_or_copy)

    def call_general(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        last = self._last
        if last is not None and not named and self._are(arguments, last):
            made = self._replay(last.kind, last.located, lambda: [array.view.buffer for array in arguments])
            if made is not None:
                return self._unpack(*made)
        packed = self._pack(arguments, named)
        kind = self._kind(packed)
        if kind is None:
            return self._unpack(self._invoke(packed))
        if kind.variants:
            buffers = _buffers(packed)
            located = self._gpu.replays.locate(buffers)
            self._last = _remembered(arguments, kind, located)
            made = self._replay(kind, located, lambda: buffers)
            if made is not None:
                return self._unpack(*made)
        if kind.wants_recording():
            return self._unpack(self._record(kind, packed))
        return self._unpack(self._invoke(packed))

    def _are(self, arguments: tuple[Any, ...], last: _Last) -> bool:
        """Whether a call has the very arguments of the last one, in a state in which it can be repeated."""
        references = last.arrays
        if len(arguments) != len(references) or not self._repeats(last.kind):
            return False
        follows = self._gpu.replays.follows
        for argument, reference in zip(arguments, references, strict=True):
            array = reference()
            if array is None or array is not argument:
                return False
            fence = array.fence
            if fence is not None and not follows(fence):
                return False
        return True

    def _repeats(self, kind: _Kind) -> bool:
        device = self._gpu
        return not (
            kind.never
            or device.profiler.mode
            or self.invoker.closed
            or device.device_allocator is not device.replays.allocator
        )

    def _kind(self, packed: Sequence[object]) -> _Kind | None:
        """What is known of calls with such arguments; None for those that are never repeated."""
        if self._suitable is None:
            self._suitable = _is_suitable(self._context)
        key = _key(packed) if self._suitable else None
        if key is None:
            return None
        kinds = self._kinds
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _Kind()
            if len(kinds) > _KINDS_KEPT:
                kinds.popitem(last=False)
        return kind if self._repeats(kind) else None

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
            kind.variants.insert(0, _Variant(replay, outputs, _fresh(outputs)))
        return results

    def _replay(
        self, kind: _Kind, located: Located, buffers: Callable[[], Sequence[Buffer]]
    ) -> tuple[list[Any], Fence] | None:
        """Results and their fence from a recording that was right, None when there is none."""
        replays = self._gpu.replays
        for variant in tuple(kind.variants):
            try:
                made = replays.run(variant.replay, located)
            except StatusError as error:
                self._in_call(error)
                raise
            if made is not None:
                kind.found(variant)
                fresh = dict(zip(variant.fresh, made[0], strict=True))
                return [output.value(buffers, fresh) for output in variant.outputs], made[1]
        return None

    def forget(self) -> None:
        """Drops the recordings, with the memory that they keep."""
        self._kinds.clear()
        self._last = None


class _Variant(NamedTuple):
    """One way that calls of a kind have gone."""

    replay: CudaReplay
    outputs: tuple[_Output, ...]
    fresh: tuple[int, ...]
    """Numbers of the allocations that results lie in."""


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


class _Last(NamedTuple):
    """The last call with arrays only: as long as these are passed again, nothing about them is new."""

    arrays: tuple[weakref.ref[Array], ...]
    kind: _Kind
    located: Located


def _remembered(arguments: Sequence[object], kind: _Kind, located: Located) -> _Last | None:
    if not all(type(argument) is Array for argument in arguments):
        return None
    return _Last(tuple(weakref.ref(cast(Array, argument)) for argument in arguments), kind, located)


class _Output(NamedTuple):
    """A result: a number, or a view of an argument's, a fresh or a lasting buffer."""

    constant: object
    """What it is when it depends on nothing."""
    argument: int = -1
    allocation: int = -1
    offset: int = 0
    length: int = 0
    view: BufferView | None = None

    def value(self, arguments: Callable[[], Sequence[Buffer]], fresh: dict[int, Buffer]) -> object:
        view = self.view
        if view is None:
            return self.constant
        whole = arguments()[self.argument] if self.argument >= 0 else fresh[self.allocation]
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


def _fresh(outputs: Iterable[_Output]) -> tuple[int, ...]:
    return tuple(sorted({output.allocation for output in outputs if output.allocation >= 0}))


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
