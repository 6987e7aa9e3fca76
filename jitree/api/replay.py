"""Makes calls again from a recording, on devices that can.

In a call that keeps no state, what a program makes a device do depends on the shapes of its arguments, on
scalar arguments and on bytes that it reads back: so the second call of a kind is recorded, and the next ones
are submitted at once, without running the program. Whatever does not fit (other shapes, a failed call, a
program that keeps state or calls Python) runs as always.
"""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from jitree.api import replay_state
from jitree.api.array import WRITES, Array
from jitree.api.calls.declaration import Signature
from jitree.api.calls.tensor_packing import ArrayTransfer
from jitree.api.function import Function
from jitree.base.cancel_scopes import require_going_on
from jitree.dispatch.function import VmFunction as VmFunction
from jitree.errors import StatusError
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.command_layout import BINDING_ALIGNMENT
from jitree.hal.fence import Fence

if TYPE_CHECKING:
    from jitree.api.function import Owner
    from jitree.hal.recording import CallRecording, Replay, Replays

_KINDS_KEPT: Final = 16
"""Recordings of one function."""
_MOST_VARIANTS: Final = 4
"""Ways that calls of one kind have gone, each recorded."""
_MOST_MISSES: Final = 8
"""Calls on end that went none of the recorded ways, before a kind of call is left to the program."""
_MOST_ANEW: Final = 32
"""Calls on end that no recording made, before all of them are: each has other numbers or shapes."""


class ReplayingFunction(Function):
    """A function of a session whose device repeats recorded calls."""

    __slots__ = (
        "_anew",
        "_is_known",
        "_is_left",
        "_kinds",
        "_last",
        "_replays",
        "_variables",
        "_writes_to_arguments",
    )

    def __init__(self, session: Owner, vm_function: VmFunction, signature: Signature) -> None:
        self._replays = cast("Replays", session.device.replays)
        super().__init__(session, vm_function, signature)
        self._anew = 0
        """Calls since the last one that a recording made."""
        self._is_left = False
        """Whether all calls are left to the program."""
        self._is_settled = True  # as long as replays may be the shorter way
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()
        self._last: _Last | None = None
        self._writes_to_arguments = any(item.storage_of is not None for item in signature.arguments)
        self._is_known = False
        self._variables: replay_state.Variables | None = None
        """None: calls of the context are not made again, once that is known."""

    def transfer(self) -> ArrayTransfer:
        follows = self._replays.follows

        def view_of(array: Array) -> BufferView:
            fence = array.fence
            # Programs may look at memory that the host sees without waiting for anything.
            if fence is not None and (array.view.buffer.host_address is not None or not follows(fence)):
                array.wait()
            return array.view

        return ArrayTransfer(self._device, view_of)

    def call_slowly(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.readers or self._session.is_observed:
            return super().call_slowly(arguments, named)
        require_going_on()
        last = self._last
        if last is not None and not named and self._are(arguments, last):
            made = self._replay(last.kind, last.located, lambda: [array.view.buffer for array in arguments])
            if made is not None:
                WRITES[0] += 1
                return self.unpack(*made)
        packed = self._pack(arguments, named)
        if not self._is_known:
            self._variables = replay_state.find_variables(self._context)
            self._is_known = True
        variables = self._variables
        if variables is None:
            return self.unpack(self._run(packed))
        if variables:
            with self.invoker.lock:  # no other thread changes them meanwhile
                return self.unpack(*self._call(arguments, packed, variables))
        return self.unpack(*self._call(arguments, packed, variables))

    def _call(
        self, arguments: tuple[Any, ...], packed: list[object], variables: replay_state.Variables
    ) -> tuple[list[Any], Fence | None]:
        """Results, and what is reached when they are computed."""
        state = variables.read() if variables else []
        kind = self._kind(packed, state)
        if kind is None:
            return self._run(packed), None
        if kind.variants:
            buffers = _buffers(packed) + replay_state.buffers_of(state)
            located = self._replays.locate(buffers)
            if not variables and not self._writes_to_arguments:
                self._last = _remembered(arguments, kind, located)
            made = self._replay(kind, located, lambda: buffers)
            if made is not None:
                return made
        if not self._is_left and kind.wants_recording():
            return self._record(kind, packed, state), None
        return self._run_anew(packed), None

    def _run(self, packed: list[object]) -> list[Any]:
        """A call that is not made again."""
        begun = time.thread_time()
        results = self._invoke(packed)
        self._has_run(begun, self._replays.pays(0))
        return results

    def _run_anew(self, packed: list[object]) -> list[Any]:
        """A call that is recorded when it is made again, unless it submits too little."""
        begun, before = time.thread_time(), self._replays.submitted
        results = self._invoke(packed)
        self._has_run(begun, self._replays.pays(self._replays.submitted - before))
        return results

    async def _invoke_async(self, /, *arguments: Any, **named: Any) -> Any:
        begun, before = time.thread_time(), self._replays.submitted
        results = await super()._invoke_async(*arguments, **named)
        if not self._is_left:  # no recording makes awaited calls
            self._has_run(begun, self._replays.pays(self._replays.submitted - before))
        return results

    def _has_run(self, begun: float, is_repeated: bool) -> None:
        """No recording has made a call. Once none is likely to make the next ones, machine code does."""
        self._anew += 1
        if not self._is_left and self._replays.are_usable:
            is_repeated = is_repeated or any(kind.variants for kind in self._kinds.values())
            self._is_left = not is_repeated or self._anew > _MOST_ANEW
            self._is_settled = not self._is_left
        if self._is_left and not self._is_settled:
            self._have_called(begun)

    def _are(self, arguments: tuple[Any, ...], last: _Last) -> bool:
        """Whether a call has the very arguments of the last one, in a state in which it can be repeated."""
        references = last.arrays
        if len(arguments) != len(references) or not self._repeats(last.kind):
            return False
        follows = self._replays.follows
        for argument, reference in zip(arguments, references, strict=True):
            array = reference()
            if array is None or array is not argument or array.is_donated:
                return False
            fence = array.fence
            if fence is not None and not follows(fence):
                return False
        return True

    def _repeats(self, kind: _Kind) -> bool:
        return not (kind.never or self.invoker.closed) and self._replays.are_usable

    def _kind(self, packed: Sequence[object], state: Sequence[object]) -> _Kind | None:
        """What is known of calls with such arguments; None for those that are never repeated."""
        key = _key(packed, state)
        if key is None:
            return None
        follows = self._replays.follows
        if not all(follows(value) for value in state if isinstance(value, Fence)):
            return None
        kinds = self._kinds
        kind = kinds.get(key)
        if kind is None:
            kind = kinds[key] = _Kind()
            if len(kinds) > _KINDS_KEPT:
                kinds.popitem(last=False)
        return kind if self._repeats(kind) else None

    def _record(self, kind: _Kind, packed: list[object], state: Sequence[object]) -> list[Any]:
        replays, variables = self._replays, self._variables
        assert variables is not None
        own = _buffers(packed)
        arguments = own + replay_state.buffers_of(state)
        if _overlap(arguments):  # other libraries may lend the same memory twice
            return self._run_anew(packed)
        with self.invoker.lock, replays.record(arguments) as made:
            results = self._invoke(packed)
            lasting = replay_state.lasting_memory(self._context, variables)
            if lasting is not None and (
                _overlap([*arguments, *lasting]) or _is_seen(lasting, state, variables)
            ):
                lasting = None
            stores = None if made is None else variables.stores(state, made, len(own))
        if made is None:
            return results
        outputs = None if lasting is None else _outputs(results, made, lasting)
        variant = None
        if outputs is not None and stores is not None:
            fresh = _fresh([*(output.place for output in outputs), *(store.place for store in stores)])
            replay = replays.make(made, fresh)
            variant = None if replay is None else _Variant(replay, outputs, stores, fresh)
        if variant is None:
            kind.never = True
        else:
            kind.variants.insert(0, variant)
        return results

    def _replay(
        self, kind: _Kind, located: object, buffers: Callable[[], Sequence[Buffer]]
    ) -> tuple[list[Any], Fence] | None:
        """Results and their fence from a recording that was right, None when there is none."""
        replays, variables = self._replays, self._variables
        assert variables is not None
        for variant in tuple(kind.variants):
            try:
                made = replays.run(variant.replay, located)
            except StatusError as error:
                self._in_call(error)
                raise
            if made is None:
                continue
            kind.found(variant)
            self._anew = 0
            fresh = dict(zip(variant.fresh, made[0], strict=True))
            for variable, place in variant.stores:
                variables.write(variable, made[1] if place is None else place.find(buffers, fresh))
            return [output.make(buffers, fresh) for output in variant.outputs], made[1]
        return None

    def leave_machine_code(self) -> None:
        super().leave_machine_code()
        self._is_settled = bool(self.readers) or not self._is_left

    def twin(self) -> Function:
        twin = cast(ReplayingFunction, super().twin())
        twin._kinds, twin._is_left = self._kinds, self._is_left
        return twin

    def forget(self) -> None:
        """Drops the recordings, with the memory that they keep."""
        self._kinds.clear()
        self._last = None


class _Variant(NamedTuple):
    """One way that calls of a kind have gone."""

    replay: Replay
    outputs: tuple[_Output | _ViewOutput, ...]
    stores: tuple[replay_state.Store, ...]
    fresh: tuple[int, ...]
    """Numbers of the allocations that results and variables lie in."""


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
    located: object


def _remembered(arguments: Sequence[object], kind: _Kind, located: object) -> _Last | None:
    if not all(type(argument) is Array for argument in arguments):
        return None
    return _Last(tuple(weakref.ref(cast(Array, argument)) for argument in arguments), kind, located)


class _Output(NamedTuple):
    """A result that is always the same."""

    value: Any
    place: None = None

    def make(self, arguments: Callable[[], Sequence[Buffer]], fresh: dict[int, Buffer]) -> object:
        return self.value


class _ViewOutput(NamedTuple):
    """A result that is a view of an argument's or a fresh buffer. It keeps nothing of the recorded call."""

    place: replay_state.Place
    shape: tuple[int, ...]
    element_type: int
    encoding: int

    def make(self, arguments: Callable[[], Sequence[Buffer]], fresh: dict[int, Buffer]) -> object:
        return BufferView(self.place.find(arguments, fresh), self.shape, self.element_type, self.encoding)


def _key(packed: Iterable[object], state: Sequence[object]) -> tuple[object, ...] | None:
    """All that a program can find out about its arguments and variables; None when that is too much, or when
    they share memory."""
    key: list[object] = []
    allocations = {id(buffer.allocation) for buffer in replay_state.buffers_of(state)}
    count = sum(type(value) is Buffer for value in state)
    if state:
        found = replay_state.state_key(state)
        if found is None:
            return None
        key += found
    for value in packed:
        if type(value) is BufferView:
            buffer = value.buffer
            if buffer.address % BINDING_ALIGNMENT:  # dispatches refuse it
                return None
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


def _overlap(buffers: Iterable[Buffer]) -> bool:
    """Whether two of them share memory, however they came by it."""
    ranges = sorted((b.address, b.address + b.byte_length) for b in buffers if b.byte_length)
    return any(start < end for (_, end), (start, _) in pairwise(ranges))


def _is_seen(lasting: Iterable[Buffer], state: Iterable[object], variables: replay_state.Variables) -> bool:
    """Whether a program keeps memory that the host sees. It looks there without waiting, when a call that has
    waited is over; one that is made again goes on after its end."""
    kept = (*lasting, *replay_state.buffers_of(state), *replay_state.buffers_of(variables.read()))
    return any(buffer.host_address is not None for buffer in kept)


def _buffers(packed: Iterable[object]) -> list[Buffer]:
    return [value.buffer for value in packed if isinstance(value, BufferView)]


def _outputs(
    results: Sequence[Any], made: CallRecording, lasting: Sequence[Buffer]
) -> tuple[_Output | _ViewOutput, ...] | None:
    """How to make the results again; None when that is not known."""
    kept = {id(buffer.allocation) for buffer in lasting}
    outputs: list[_Output | _ViewOutput] = []
    for value in results:
        if type(value) is not BufferView:
            if type(value) not in (int, float):
                return None
            outputs.append(_Output(value))
            continue
        place = replay_state.place_of(value.buffer, made)
        if place is not None:
            outputs.append(_ViewOutput(place, value.shape, value.element_type, value.encoding))
        elif id(value.buffer.allocation) in kept:
            outputs.append(_Output(value))
        else:
            return None
    return tuple(outputs)


def _fresh(variant_places: Iterable[replay_state.Place | None]) -> tuple[int, ...]:
    """Numbers of the allocations among places."""
    return tuple(sorted({place.allocation for place in variant_places if place and place.allocation >= 0}))
