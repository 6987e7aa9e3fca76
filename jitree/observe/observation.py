"""Tells observers of a session (taps, checks) of each dispatch, with its tensors.

While there is one, devices execute commands one by one (:mod:`jitree.hal.stepwise`). Memory that a program
asks for is filled with a pattern, so that what a dispatch writes there can be told from what was left there;
a program that reads before it writes reads that.
"""

from __future__ import annotations

import abc
import ctypes
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from jitree.base.events import ALLOCATION, CALL, DISPATCH, EventReader, listen, stop_listening, unobserved
from jitree.base.finalizers import SharedWeakKeys, Unique, guard
from jitree.base.records import NamedTuple
from jitree.errors import UnimplementedError, locations
from jitree.hal.command_list import ListCommandBuffer
from jitree.hal.stepwise import DeviceStep, Extent, merged
from jitree.observe.export_names import TensorKind, parse
from jitree.observe.origins import CallOrigin, ObservedCall, Origins
from jitree.observe.regions import (
    PlacedTensor,
    Regions,
    Types,
    completed,
    contains,
    inputs_of,
    joined,
    outputs_of,
    overlaps,
    place_factors,
)
from jitree.observe.tensors import (
    ALIKE,
    READ,
    ComparedMemory,
    Digest,
    Group,
    ObservedDispatch,
    ObservedTensor,
)

if TYPE_CHECKING:
    from jitree.base.events import Source
    from jitree.hal.device import Device
    from jitree.hal.executable import Executable
    from jitree.hal.stepwise import Look
    from jitree.regs.handles import HandleTable

_ANY_QUEUE: Final = -1
PATTERN: Final = 0x5A
"""Neither zero nor, as a number of any type, anything but finite."""


Place = tuple[int, int, int]
"""Binding, offset and length of what a dispatch writes."""


class FoundTensors(NamedTuple):
    """Keeps the tensors of a step. They are the same each time that it does the same to the same memory."""

    inputs: Group
    outputs: Group
    places: tuple[Place, ...]
    """What it has written; empty where that is not known."""
    after: Regions
    """What lies where then."""


class KnownWrites(NamedTuple):
    """What a dispatch has written when it was looked at before."""

    places: tuple[Place, ...]
    bindings: frozenset[int]
    are_whole: bool
    """Whether it writes all of these bindings: no comparison tells more."""


class KnownExecutable:
    """What was seen of an executable's dispatches."""

    def __init__(self) -> None:
        self.writes: dict[object, KnownWrites] = {}
        self._kernels: dict[int, tuple[str, str]] = {}

    def kernel(self, step: DeviceStep) -> tuple[str, str]:
        """The executable's name, and what it says of where a dispatch comes from."""
        found = self._kernels.get(step.function)
        if found is None:
            executable: Any = step.executable
            places = executable.places(step.function) if executable and step.kind == DISPATCH else ()
            text = f"; compiled from {locations(places)}" if places else ""
            found = self._kernels[step.function] = getattr(executable, "name", ""), text
        return found

    def learn(self, key: object, places: tuple[Place, ...], operands: Sequence[Extent]) -> None:
        """Keeps what a dispatch has written."""
        bindings = frozenset(binding for binding, _, _ in places)
        are_whole = all((binding, 0, operands[binding][1]) in places for binding in bindings)
        self.writes[key] = KnownWrites(places, bindings, are_whole)


class Onlooker(abc.ABC):
    """Hears of dispatches and transfers, one by one, on the executing thread."""

    needs_changes = False
    """Whether it asks which bytes have changed, also where a dispatch is known to write all of a binding."""

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
        self.lock = guard()  # forgotten onlookers are removed wherever the garbage collector runs
        self.looking: tuple[ref[Onlooker], ...] = ()
        """One that nothing else refers to ends by itself; the next submission finds that it is gone."""
        self._listens = False
        self._fills = True
        """Whether memory of programs gets the pattern."""
        self.regions = Regions()
        self._executables: SharedWeakKeys[Executable, KnownExecutable] = SharedWeakKeys()

    @property
    def is_on(self) -> bool:
        return bool(self.onlookers)

    @property
    def count(self) -> int:
        """How many look."""
        return len(self.onlookers)

    @property
    def onlookers(self) -> list[Onlooker]:
        return [onlooker for look in self.looking if (onlooker := look()) is not None]

    def add(self, onlooker: Onlooker) -> None:
        """UNIMPLEMENTED for devices that do not tell of single steps."""
        for device in self._devices:
            if not device.is_observable:
                raise UnimplementedError(
                    f"{device.uri} tells nothing of single dispatches; look at the program on local-sync or "
                    "local-task"
                )
        with self.lock:
            before: tuple[ref[Onlooker], ...] | None = None
            while before is not self.looking:  # else another one has been removed while this was made
                before = self.looking
                after = *before, ref(onlooker)
            self.looking = after
            if not before:
                self._stop_listening()
                self._listens = True  # first: an interrupt of what follows leaves what ends it
                self._origins.forget()
                self._fills = not any(device.device_allocator.is_zeroed for device in self._devices)
                for source in self._sources:
                    listen(source, self)

    def remove(self, onlooker: Onlooker | None) -> None:
        """None: those that are gone."""
        with self.lock:
            if self.looking:
                self.looking = tuple(look for look in self.looking if look() not in (onlooker, None))
            if not self.looking:
                self._stop_listening()

    def _stop_listening(self) -> None:
        """Also does what an interrupt has left."""
        if self._listens:
            for source in self._sources:
                stop_listening(source, self)
            self.regions = Regions()
            self._listens = False

    def close(self) -> None:
        for onlooker in self.onlookers:
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
        if self._fills and (buffer is None or buffer.host_address == buffer.address):
            ctypes.memset(event.extent[0], PATTERN, event.extent[1])
        elif self._fills:
            with unobserved():
                event.device.queue_fill(_ANY_QUEUE, None, None, buffer, 0, event.extent[1], PATTERN, 1)
        with self.lock:
            self.regions = self.regions.forget(event.extent)

    def submitted(self, work: Any) -> EventReader | None:
        looking = self.looking
        onlookers = self.onlookers
        if not onlookers:
            self.remove(None)
            return None
        origin = self._origins.find(getattr(work, "told_at", None))
        if origin is None:
            return None
        call = origin.call
        if call is None:
            return _Submission(self, origin, 0, looking, onlookers)
        with self.lock:
            first = call.dispatches
            if call.arguments and not first:
                self.regions = self.regions.declare(call.arguments)
            count = getattr(work, "dispatch_count", None)
            if count is None and isinstance(work, ListCommandBuffer):
                count = work.commands.dispatch_count
            call.dispatches += count or 0
        return _Submission(self, origin, first, looking, onlookers)

    def known(self, executable: Executable | None) -> KnownExecutable:
        """What was seen of an executable."""
        if executable is None:
            return KnownExecutable()
        known = self._executables.get(executable)
        return self._executables.setdefault(executable, KnownExecutable()) if known is None else known


class _Submission(Unique, EventReader):
    """Observes one submission, step by step."""

    def __init__(
        self,
        observation: Observation,
        origin: CallOrigin,
        first: int,
        looking: object,
        onlookers: Sequence[Onlooker],
    ) -> None:
        """``looking``: the observation's, with which it has these onlookers."""
        self._observation = observation
        self._looking = looking
        self._onlookers = onlookers
        self._origin = origin
        self._first = first
        self._digests: list[Digest] = []
        self._writes: KnownWrites | None = None

    def begins(self, step: DeviceStep) -> None:
        """Notes what has to be known of memory before the step."""
        call, onlookers = self._origin.call, self._who_looks()
        if call is not None and call.arguments:
            call.look = step.look
            for onlooker in onlookers:
                onlooker.begins(call)
            call.arguments = {}
        ordinal = self._first + step.index if step.kind == DISPATCH else None
        self._digests, needs_changes = [], False
        for onlooker in onlookers:
            onlooker.is_about(step, ordinal)
            needs_changes = needs_changes or onlooker.needs_changes
        if step.kind != DISPATCH:
            return
        self._known = self._observation.known(step.executable)
        self._key = step.function, step.constants, tuple([length for _, length in step.operands])
        writes = self._writes = self._known.writes.get(self._key)
        if step.left_to:
            return
        if writes is None or needs_changes or not writes.are_whole:
            numbers = range(len(step.operands)) if writes is None else writes.bindings
            extents = merged([step.operands[number] for number in numbers])
            self._digests = [Digest(extent, step.look) for extent in extents]

    def ends(self, step: DeviceStep) -> None:
        """Finds the tensors of a step that is done, and tells the onlookers."""
        observation, is_dispatch = self._observation, step.kind == DISPATCH
        ordinal = self._first + step.index if is_dispatch else None
        kernel = self._known.kernel(step) if is_dispatch else ("", "")
        dispatch = ObservedDispatch(step, self._origin, ordinal, kernel)
        types: dict[int, TensorKind] = {}
        onlookers = self._who_looks()
        for onlooker in onlookers:
            types |= onlooker.types(dispatch)
        changes, written = self._changes(step) if is_dispatch else ((), ())
        with observation.lock:
            regions = observation.regions
            key = step.name, step.left_to, ordinal, step.operands, step.constants, written, *types.items()
            found: FoundTensors | None = regions.after.get(key)
            if found is None:
                find = _tensors_of_dispatch if is_dispatch else _tensors_moved
                found = regions.keep(key, find(step, dispatch.label, written, types, regions))
            observation.regions = found.after
        if found.places and (self._writes is None or self._writes.places != found.places):
            self._known.learn(self._key, found.places, step.operands)
        dispatch.show(found.inputs, found.outputs, changes)
        dispatch.bound = partial(_bound, dispatch, step.look, found.after)
        try:
            for onlooker in onlookers:
                onlooker.looks_at(dispatch)
        finally:
            dispatch.end()

    def _who_looks(self) -> Sequence[Onlooker]:
        looking = self._observation.looking
        if looking is not self._looking:
            self._looking, self._onlookers = looking, self._observation.onlookers
        return self._onlookers

    def _changes(self, step: DeviceStep) -> tuple[Sequence[Extent] | ComparedMemory, tuple[Extent, ...]]:
        """What a dispatch has changed, and what it has written: where that made no difference, what it has
        written before."""
        writes, digests = self._writes, self._digests
        self._digests = []
        if step.left_to:
            return (), ()
        written: list[Extent] = []
        if writes is not None:
            written = [(step.operands[binding][0] + offset, size) for binding, offset, size in writes.places]
            if writes.are_whole or all([digest.is_as_before(written) for digest in digests]):
                return ComparedMemory(digests, written) if digests else written, tuple(written)
        groups = [group for digest in digests for group in digest.changes()]
        name, regions = parse(step.name), self._observation.regions
        for part in joined(groups, name):
            change = completed(part, step.operands, name, regions)
            if not any(contains(old, change) for old in written):
                written = [*(old for old in written if not overlaps(old, change)), change]
        return [run for group in groups for run in group], tuple(written)


def _bound(dispatch: ObservedDispatch, look: Look, regions: Regions) -> Sequence[ObservedTensor]:
    known = [*dispatch.outputs, *(tensor for tensor in dispatch.inputs if tensor.offset is not None)]
    return [
        ObservedTensor(binding, *region, look)
        for binding, operand in enumerate(dispatch.operands)
        for region in regions.inside(operand)
        if not any(overlaps(region.extent, tensor.extent) for tensor in known)
    ]


def _tensors_of_dispatch(
    step: DeviceStep, label: str, written: Sequence[Extent], types: Types, regions: Regions
) -> FoundTensors:
    name, operands = parse(step.name), step.operands
    outputs = outputs_of(operands, written or operands[-1:], name, types, regions)
    # later observers may give other types, or none
    learnt = outputs_of(operands, written, name, {}, regions) if types and written else outputs
    places = [(t.binding, t.extent[0] - operands[t.binding][0], t.extent[1]) for t in learnt]
    inputs = inputs_of(operands, outputs, name, types, regions)
    place_factors(inputs, outputs, operands, name, step.constants)
    if not name.types:
        for tensor in inputs:
            tensor.guess_element(regions.elements, ALIKE)
    for tensor in outputs:
        tensor.guess(inputs)
    return _found(inputs, () if step.left_to else outputs, tuple(places) if written else (), label, regions)


def _tensors_moved(
    step: DeviceStep, label: str, written: Sequence[Extent], types: Types, regions: Regions
) -> FoundTensors:
    """What is copied keeps its type; fills and the like have bytes."""
    tensors = []
    for number, extent in enumerate(step.operands):
        region = regions.at(step.operands[0]) if step.kind == "copy" else regions.at(extent)
        kind = types.get(number) or (None if region is None else region.kind)
        if kind is not None and kind.byte_length != extent[1]:
            kind = None
        source = "unknown" if kind is None or region is None else region.source
        origin = "" if region is None else region.origin
        tensors.append(ObservedTensor(number, extent, kind, source, origin))
    numbers = step.written or ()
    inputs = [tensor for tensor in tensors if tensor.binding not in numbers]
    origin = _MOVED.get(step.kind, label)
    if step.kind == "copy":
        origin = _COPY + (inputs[0].origin.removeprefix(_COPY) or "what no dispatch made")
    return _found(inputs, [tensors[number] for number in numbers], (), origin, regions)


def _found(
    inputs: Sequence[ObservedTensor],
    outputs: Sequence[ObservedTensor],
    places: tuple[Place, ...],
    origin: str,
    regions: Regions,
) -> FoundTensors:
    """``origin``: that of the outputs, which lie there from now on."""
    for tensor in outputs:
        tensor.origin = origin
        regions = regions.put(PlacedTensor(tensor.extent, tensor.kind, tensor.source, origin))
    return FoundTensors(tuple(inputs), tuple(outputs), places, regions)


_MOVED: Final = {"read": READ, "update": "an update with data of the program", "fill": "a fill"}
"""What made a tensor that no dispatch made."""
_COPY: Final = "a copy of "


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
