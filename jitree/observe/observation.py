"""Tells observers of a session (taps, checks) of each dispatch, with its tensors.

While there is one, devices execute commands one by one (:mod:`jitree.hal.stepwise`). Memory that a program
asks for is filled with a pattern, so that what a dispatch writes there can be told from what was left there;
a program that reads before it writes reads that.

Programs bind all of their constants to each dispatch, and say in a number of the dispatch, a push constant,
where in them the weights of a product of matrices begin. What else such numbers are for, other tensors tell.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from jitree.base.events import ALLOCATION, CALL, DISPATCH, EventReader, listen, stop_listening, unobserved
from jitree.base.finalizers import Unique, guard
from jitree.base.weak_sets import SharedWeakKeys
from jitree.errors import UnimplementedError
from jitree.hal.command_list import ListCommandBuffer
from jitree.hal.stepwise import DeviceStep, Extent, memory
from jitree.observe.export_names import TensorKind, parse
from jitree.observe.origins import CallOrigin, ObservedCall, Origins
from jitree.observe.regions import (
    PlacedTensor,
    Regions,
    Types,
    contains,
    inputs_of,
    joined,
    outputs_of,
    overlaps,
)
from jitree.observe.tensors import (
    ALIKE,
    ARGUMENT,
    DECLARED,
    ELEMENTS_NAMED,
    NAMED,
    READ,
    UNKNOWN,
    Digest,
    ObservedDispatch,
    ObservedTensor,
)

if TYPE_CHECKING:
    from jitree.base.events import Source
    from jitree.hal.device import Device
    from jitree.hal.executable import Executable
    from jitree.observe.export_names import ExportName
    from jitree.regs.handles import HandleTable

_ALIGNMENT: Final = 64
"""Tensors in a block begin at multiples of it."""

_ANY_QUEUE: Final = -1
PATTERN: Final = 0x5A
"""Neither zero nor, as a number of any type, anything but finite."""


def place_factors(
    inputs: Sequence[ObservedTensor],
    outputs: Sequence[ObservedTensor],
    operands: Sequence[Extent],
    name: ExportName,
    constants: Sequence[int],
) -> None:
    """Gives inputs, whole blocks of constants, the part that the dispatch's name says. Its constants say it
    too. That is so where there is one way only: as many blocks as places and operands that nothing else
    explains."""
    blocks = [tensor for tensor in inputs if _is_block(tensor, operands)]
    others = [tensor for tensor in (*inputs, *outputs) if tensor not in blocks]
    places = list(constants)
    for tensor in others:
        offset = tensor.extent[0] - operands[tensor.binding][0]
        if offset in places:
            places.remove(offset)
    kinds = _unread(name, [tensor for tensor in others if tensor not in outputs])
    if not blocks or not len(blocks) == len(places) == len(kinds):
        return
    parts = list(zip(blocks, places, kinds, strict=True))
    if all(_fits(tensor, place, kind) for tensor, place, kind in parts):
        for tensor, place, kind in parts:
            tensor.extent = tensor.extent[0] + place, kind.byte_length
            tensor.kind, tensor.source, tensor.offset = kind, NAMED, place


def _is_block(tensor: ObservedTensor, operands: Sequence[Extent]) -> bool:
    is_whole = tensor.extent == operands[tensor.binding]
    return is_whole and tensor.source in (ELEMENTS_NAMED, UNKNOWN) and tensor.origin in ("", READ)


def _unread(name: ExportName, known: Sequence[ObservedTensor]) -> list[TensorKind]:
    """Operands of the product that are none of the known inputs."""
    kinds = list(name.factors)
    for tensor in known:
        found = next((kind for kind in kinds if kind.byte_length == tensor.extent[1]), None)
        if found is not None:
            kinds.remove(found)
    return kinds


def _fits(tensor: ObservedTensor, place: int, kind: TensorKind) -> bool:
    return 0 <= place <= tensor.extent[1] - kind.byte_length and place % _ALIGNMENT == 0


class Onlooker(abc.ABC):
    """Hears of dispatches and transfers, one by one, on the executing thread."""

    def begins(self, call: ObservedCall) -> None:
        """The first step of a call is about to be done; its arguments are ready."""
        return None

    def is_about(self, step: DeviceStep, ordinal: int | None) -> None:
        """A step is about to be done; ``ordinal`` is that of a dispatch."""
        return None

    def types(self, dispatch: ObservedDispatch) -> Types:
        """Types of bindings that the user has given."""
        return {}

    @abc.abstractmethod
    def looks_at(self, dispatch: ObservedDispatch) -> None:
        """It is done, and its memory is as it has left it."""


class Observation(EventReader):
    """Observes one session. Onlookers come and go; it listens while there are any."""

    reads_calls = True

    def __init__(self, table: HandleTable, devices: Sequence[Device]) -> None:
        self._devices = devices
        self.needs_python = any(device.shared_timeline is not None for device in devices)
        self._sources: tuple[Source, ...] = (*devices, table)
        self._origins = Origins(table)
        self._lock = guard()  # forgotten onlookers are removed wherever the garbage collector runs
        self._looking: tuple[ref[Onlooker], ...] = ()
        """One that nothing else refers to ends by itself; the next submission finds that it is gone."""
        self._listens = False
        self._regions = Regions()
        self._writes: SharedWeakKeys[Executable, dict[object, list[tuple[int, int, int]]]] = SharedWeakKeys()
        """(binding, offset, length) of what a dispatch has written when it was looked at before."""

    @property
    def is_on(self) -> bool:
        return bool(self._onlookers)

    @property
    def count(self) -> int:
        """How many look."""
        return len(self._onlookers)

    @property
    def _onlookers(self) -> list[Onlooker]:
        return [onlooker for onlooker in (look() for look in self._looking) if onlooker is not None]

    def add(self, onlooker: Onlooker) -> None:
        """UNIMPLEMENTED for devices that do not tell of single steps."""
        for device in self._devices:
            if not device.is_observable:
                raise UnimplementedError(
                    f"{device.uri} tells nothing of single dispatches; look at the program on local-sync or "
                    "local-task"
                )
        with self._lock:
            before: tuple[ref[Onlooker], ...] | None = None
            while before is not self._looking:  # else another one has been removed while this was made
                before = self._looking
                after = *before, ref(onlooker)
            self._looking = after
            if not before:
                self._stop_listening()
                self._listens = True  # first: an interrupt of what follows leaves what ends it
                self._origins.forget()
                for source in self._sources:
                    listen(source, self)

    def remove(self, onlooker: Onlooker | None) -> None:
        """None: those that are gone."""
        with self._lock:
            if self._looking:
                self._looking = tuple(look for look in self._looking if look() not in (onlooker, None))
            if not self._looking:
                self._stop_listening()

    def _stop_listening(self) -> None:
        """Also does what an interrupt has left."""
        if self._listens:
            for source in self._sources:
                stop_listening(source, self)
            self._regions = Regions()
            self._listens = False

    def close(self) -> None:
        for onlooker in self._onlookers:
            self.remove(onlooker)

    # -- what devices tell ---------------------------------------------------------------------------

    def begins(self, event: Any) -> None:
        if event.kind == CALL and event.machine is not None:
            self._origins.begin(event)

    def ends(self, event: Any) -> None:
        """Memory of a program is there: what it writes there can be told from the pattern."""
        if event.kind != ALLOCATION or self._origins.is_foreign(event.place):
            return
        buffer = event.buffer
        if not any(other.device_allocator.is_zeroed for other in self._devices):
            if buffer is None or buffer.host_address == buffer.address:
                memory(event.extent).fill(PATTERN)
            else:
                with unobserved():
                    event.device.queue_fill(_ANY_QUEUE, None, None, buffer, 0, event.extent[1], PATTERN, 1)
        with self._lock:
            self._regions.forget(event.extent)

    def submitted(self, work: Any) -> EventReader | None:
        if not self.is_on:
            self.remove(None)
            return None
        origin = self._origins.find(getattr(work, "told_at", None))
        if origin is None:
            return None
        with self._lock:
            call = origin.call
            if call is None:
                return _Submission(self, origin, 0)
            first = call.dispatches
            for number, value in call.arguments.items():
                if isinstance(value, tuple) and not first:
                    self._regions.put(PlacedTensor(*value, DECLARED, f"{ARGUMENT}{number}"))
            commands = work.commands if isinstance(work, ListCommandBuffer) else work
            call.dispatches += getattr(commands, "dispatch_count", 0)
            return _Submission(self, origin, first)

    # -- one step --------------------------------------------------------------------------------------

    def begin(self, step: DeviceStep, call: ObservedCall | None, first: int) -> list[Digest]:
        """What has to be known of memory before the step."""
        onlookers = self._onlookers
        if call is not None and call.arguments:
            call.look = step.look
            for onlooker in onlookers:
                onlooker.begins(call)
            call.arguments = {}
        for onlooker in onlookers:
            onlooker.is_about(step, first + step.index if step.kind == DISPATCH else None)
        if step.written is not None:
            return []
        known = self._known(step).get(_key(step))
        numbers = range(len(step.operands)) if known is None else {binding for binding, _, _ in known}
        extents = _merged([step.operands[number] for number in numbers])
        return [Digest(extent, step.look) for extent in extents]

    def end(self, step: DeviceStep, origin: CallOrigin, first: int, digests: Sequence[Digest]) -> None:
        """The step is done: tells the onlookers."""
        ordinal = first + step.index if step.kind == DISPATCH else None
        dispatch = ObservedDispatch(step, origin, ordinal)
        onlookers = self._onlookers
        types: dict[int, TensorKind] = {}
        for onlooker in onlookers:
            types |= onlooker.types(dispatch)
        with self._lock:
            if step.kind == DISPATCH:
                self._find_tensors(dispatch, step, digests, types)
            else:
                self._find_moved(dispatch, step, types)
            for tensor in (*dispatch.inputs, *dispatch.outputs):
                tensor.look = step.look
            for tensor in dispatch.outputs:
                tensor.origin = _origin(dispatch)
                self._regions.put(PlacedTensor(tensor.extent, tensor.kind, tensor.source, tensor.origin))
        dispatch.bound = partial(self._bound, step, dispatch)
        try:
            for onlooker in onlookers:
                onlooker.looks_at(dispatch)
        finally:
            dispatch.bound = tuple
            for tensor in (*dispatch.inputs, *dispatch.outputs):
                tensor.end()

    def _bound(self, step: DeviceStep, dispatch: ObservedDispatch) -> Sequence[ObservedTensor]:
        known = [*dispatch.outputs, *(tensor for tensor in dispatch.inputs if tensor.offset is not None)]
        return [
            ObservedTensor(binding, *region, step.look)
            for binding, operand in enumerate(step.operands)
            for region in self._regions.inside(operand)
            if not any(overlaps(region.extent, tensor.extent) for tensor in known)
        ]

    def _writes_of(self, step: DeviceStep, changes: Sequence[Extent]) -> list[Extent]:
        """What a dispatch has written; where that made no difference, what it has written before."""
        known = self._known(step).get(_key(step), [])
        written = [(step.operands[binding][0] + offset, length) for binding, offset, length in known]
        for change in changes:
            if not any(contains(old, change) for old in written):
                written = [*(old for old in written if not overlaps(old, change)), change]
        return written

    def _find_tensors(
        self, dispatch: ObservedDispatch, step: DeviceStep, digests: Sequence[Digest], types: Types
    ) -> None:
        name, operands = parse(step.name), step.operands
        groups = [group for digest in digests for group in digest.changes()]
        changes = [run for group in groups for run in group]
        writes = self._writes_of(step, joined(groups, name))
        outputs = outputs_of(operands, writes or operands[-1:], name, types, self._regions)
        if writes:  # later observers may give other types, or none
            found = outputs_of(operands, writes, name, {}, self._regions) if types else outputs
            places = [(t.binding, t.extent[0] - operands[t.binding][0], t.extent[1]) for t in found]
            self._known(step)[_key(step)] = places
        for tensor in outputs:
            tensor.changes = changes
        dispatch.outputs = tuple(outputs)
        dispatch.inputs = tuple(inputs_of(operands, outputs, name, types, self._regions))
        place_factors(dispatch.inputs, outputs, operands, name, step.constants)
        if not name.types:
            for tensor in dispatch.inputs:
                tensor.guess_element(self._regions.elements, ALIKE)
        for tensor in outputs:
            tensor.guess(dispatch.inputs)

    def _find_moved(self, dispatch: ObservedDispatch, step: DeviceStep, types: Types) -> None:
        """What is copied keeps its type; fills and the like have bytes."""
        tensors = []
        for number, extent in enumerate(step.operands):
            region = self._regions.at(step.operands[0]) if step.kind == "copy" else self._regions.at(extent)
            kind = types.get(number) or (None if region is None else region.kind)
            if kind is not None and kind.byte_length != extent[1]:
                kind = None
            source = "unknown" if kind is None or region is None else region.source
            origin = "" if region is None else region.origin
            tensors.append(ObservedTensor(number, extent, kind, source, origin))
        written = step.written or ()
        dispatch.outputs = tuple(tensors[number] for number in written)
        dispatch.inputs = tuple(tensor for tensor in tensors if tensor.binding not in written)

    def _known(self, step: DeviceStep) -> dict[object, list[tuple[int, int, int]]]:
        return {} if step.executable is None else self._writes.setdefault(step.executable, {})


class _Submission(Unique, EventReader):
    """Observes one submission."""

    def __init__(self, observation: Observation, origin: CallOrigin, first: int) -> None:
        self._observation = observation
        self._origin = origin
        self._first = first
        self._digests: list[Digest] = []

    def begins(self, step: DeviceStep) -> None:
        self._digests = self._observation.begin(step, self._origin.call, self._first)

    def ends(self, step: DeviceStep) -> None:
        digests, self._digests = self._digests, []
        self._observation.end(step, self._origin, self._first, digests)


_MOVED: Final = {"read": READ, "update": "an update with data of the program", "fill": "a fill"}
"""What made a tensor that no dispatch made."""
_COPY: Final = "a copy of "


def _origin(dispatch: ObservedDispatch) -> str:
    if dispatch.kind == "copy":
        return _COPY + (dispatch.inputs[0].origin.removeprefix(_COPY) or "what no dispatch made")
    return _MOVED.get(dispatch.kind, dispatch.label)


def _key(step: DeviceStep) -> object:
    return step.function, step.constants, tuple(length for _, length in step.operands)


def _merged(extents: Sequence[Extent]) -> list[Extent]:
    """Ranges that share no byte."""
    found: list[Extent] = []
    for address, length in sorted(extents):
        if found and address <= sum(found[-1]):
            start = found[-1][0]
            found[-1] = start, max(sum(found[-1]), address + length) - start
        else:
            found.append((address, length))
    return found


class Dispatches(Onlooker):
    """All that was done, without contents."""

    def __init__(self) -> None:
        self.done: list[ObservedDispatch] = []

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        self.done.append(dispatch)


class Makers(Onlooker):
    """What made the tensors of a call. What is copied was made by what made it where it comes from."""

    def __init__(self) -> None:
        self._writes: list[tuple[Extent, ObservedDispatch | None]] = []
        self.results: Sequence[ObservedDispatch | None] = ()
        """The dispatches that made the results of the call."""

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        maker: ObservedDispatch | None = dispatch
        if dispatch.kind != DISPATCH:
            maker = self.of(dispatch.inputs[0].extent) if dispatch.inputs else None
        self._writes += [(tensor.extent, maker) for tensor in dispatch.outputs]

    def of(self, extent: Extent) -> ObservedDispatch | None:
        """None for what no dispatch has made."""
        found = (maker for written, maker in reversed(self._writes) if overlaps(written, extent))
        return next(found, None)
