"""Compiles the kernels of a VMVX executable and gives threads contexts to run them."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import Finalized, guard
from jitree.base.memory import NAMES_CODE, name_code, note_stores
from jitree.base.platform.threads import order_stores
from jitree.codegen import image
from jitree.codegen.image.flat import FIRST, PUT_OFF
from jitree.codegen.record import atomic_store, size_of, words_of
from jitree.dispatch.fast import LOOP
from jitree.dispatch.native.tiering import NativeModule
from jitree.errors import FailedPreconditionError
from jitree.hal.command_layout import ENTRY_INTERPRETED, KernelDispatch, KernelEntry
from jitree.hal.local import interrupts
from jitree.loaders.vmvx.arguments import make_writable, private_bindings
from jitree.loaders.vmvx.context import WorkerContext
from jitree.loaders.vmvx.kernels import (
    MAXIMUM_BINDINGS,
    MAXIMUM_CONTEXTS,
    SPANS,
    Contexts,
    KernelEnvironment,
    numbers_of,
)
from jitree.loaders.vmvx.packed import Copies, PackedConstants
from jitree.loaders.vmvx.policy import (
    ALL,
    ALONE,
    EVEN,
    LATER,
    NOTHING,
    SOONER,
    LeftToDo,
    Running,
    Sizes,
    WaitingPolicy,
    fills_few,
    rest_of,
    saved,
)
from jitree.loaders.vmvx.worker import job_failure

if TYPE_CHECKING:
    from jitree.codegen.image.batch import ImageBatch
    from jitree.codegen.image.estimates import Bar

INTERPRETED_FIRST: Final = 20_000_000
"""Nanoseconds that kernels run on the VM before a small executable is compiled
(:mod:`jitree.loaders.vmvx.policy`): what is not worth that much ends before a builder has started."""

_MUCH: Final = 0.23
"""Seconds of a processor. Models whose kernels take as long to build have no short calls on the VM; to start
a builder takes a program 5 ms, as long as short ones take."""
_POLL: Final = 0.002
"""Seconds between two looks for machine code that a thread waits for."""
_BUSY: Final = 0.001
"""Seconds between two looks for a worker context, where all that there can be are in use."""
_SPAN: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ENTRY_WORDS: Final = size_of(KernelEntry) // 8
_ENTRY_POINT: Final = words_of(KernelEntry)
_telling: Final = guard()
"""Of what kernels store to: one thread at a time changes the two words."""


class CompiledKernels(Finalized):
    """Compiles the kernels of one executable, and changes its entry points over.

    Any thread may call any method.
    """

    def __init__(
        self,
        batch: ImageBatch,
        hot: Callable[[int], image.Provider],
        ordinals: Sequence[int],
        names: Sequence[str],
        create_context: Callable[[PackedConstants | None], WorkerContext],
        sizes: Sizes,
        copies: Copies | None = None,
    ) -> None:
        """``batch`` has the image of each kernel; ``hot`` gives the one for workers in the middle of it.
        ``ordinals`` are those of the kernels' functions in the module, in
        the order of the executable's entries, ``names`` what they are called; ``copies``: of constants, which
        contexts may read. Nothing happens until :meth:`serve`."""
        self._batch = batch
        self.hot = cache(lambda ordinal: NativeModule(hot(ordinals[ordinal])))
        """A kernel for workers that are in the middle of it."""
        self._ordinals = ordinals
        self._names = names
        self._policy = WaitingPolicy(batch, len(ordinals))
        self._sizes = sizes
        self._create_context = create_context
        self._copies = copies
        self._records: array[int] | None = None
        self._adding = guard()
        self._contexts: dict[int, WorkerContext] = {}
        self._table = array("q", bytes(size_of(Contexts) + 8 * (MAXIMUM_CONTEXTS - 1)))
        self._images: dict[int, image.Image] = {}
        """The machine code of kernels, by ordinal."""
        self._refused: set[int] = set()
        self._held: set[int] = set()
        """Kernels that are not compiled."""
        self._gaining = self._unknown = frozenset[int]()
        """Kernels by which a call ends sooner, as the last look says; those that its first list has not,
        where to build all takes less than that list: the next lists may need them."""
        self._seen: object = None
        """What the last look at a command list says of each kernel."""
        self._gain = 0.0
        """Seconds that a call ends sooner by those of its kernels."""
        self._starts_later = False
        """Whether a builder is to be started with the second call that runs kernels."""
        self._starts = False
        """Whether one starts, and no kernel has run yet."""
        self._first_call: int | None = None
        """How many calls of this process had ended when kernels were first run, the initialiser's too."""
        self._closed = False
        self._run_span: Callable[[int, int, int], int]
        self.will_end()

    def end(self) -> None:
        self._closed = True  # other finalizers may still run kernels
        self._table[words_of(Contexts).count] = 0
        for context in self._contexts.values():
            context.close()

    @property
    def contexts_address(self) -> int:
        """The address of their record."""
        return self._table.buffer_info()[0]

    @property
    def copied(self) -> int:
        """Bytes of copies of constants."""
        return 0 if self._copies is None else self._copies.kept

    def add_constants(self, data: memoryview) -> None:
        """Kernels may copy these, which nothing changes."""
        if self._copies is not None:
            self._copies.extend(data)

    def look_at_memory(self) -> None:
        """Has copies of constants given up where memory is short.

        Threads that run kernels call it now and then.
        """
        if self._copies is not None:
            self._copies.look()

    @property
    def ready(self) -> bool:
        """Whether all kernels that can be compiled run as machine code."""
        return len(self._images) + len(self._refused) == len(self._ordinals)

    def serve(self, records: array[int], look: int = 0) -> None:
        """Changes the ENTRY_POINT ``records`` over as kernels are there, from the cache first.

        ``look`` is the address of a C function that calls :meth:`look_at_memory` (`Contexts`). Begins to
        compile if the VM has no machine code yet: one workgroup would take it longer.
        """
        self._records = records
        if self._copies is not None:
            self._copies.watch(self._table, look)
        (self._batch.get if image.get(LOOP) is None else self._batch.find)()
        self._use_all()

    def prepare(self) -> None:
        """Starts a builder for kernels that the cache lacks.

        Calls say which of them it is to build. It starts now if that is much, else with the second call: the
        first may be as short.
        """
        if not self.ready and self._batch.stated >= _MUCH:
            self._batch.prepare()
            self._starts = True
        else:
            self._starts_later = not self.ready

    def start(self) -> None:
        """Has the kernels compiled now."""
        self._batch.start()

    def spend(self, ordinal: int, nanoseconds: int) -> None:
        """Counts time that the VM took for a kernel."""
        self._policy.spend(ordinal, nanoseconds)

    def look(self, ordinal: int, running: Running) -> bool:
        """Whether the rest of a span can be compiled code's.

        Waits for that while the program has had its share of the processors
        (:mod:`jitree.loaders.vmvx.policy`); raises why the thread is to end.
        """
        if self._starts_later and self._is_second_call():
            self._starts_later = False
            self._batch.prepare()
        if self._starts:  # what it imports waits until it is known whether the call ends before
            self._starts = False
            if fills_few(running):
                self._batch.hold()
        if not self._policy.worth(INTERPRETED_FIRST, running.nanoseconds):
            return ordinal in self._images
        with ExitStack() as waiting:
            bar: Bar | None = None
            is_resting = False
            while not self.has_left(ordinal):
                self._decide(ordinal, running)
                self._ask(ordinal, running)
                wanted = self._batch.providers[ordinal]
                is_building = wanted.begun is not None and not wanted.settled
                if self.has_left(ordinal) or not is_building:
                    break
                if self._policy.may_go_on(running):
                    if self._policy.share == ALL and ordinal not in self._gaining | self._unknown:
                        wanted.put(PUT_OFF)  # what this call waits for comes first
                    break
                wanted.put(FIRST)
                if not is_resting:
                    is_resting = True
                    waiting.enter_context(interrupts.resting(running.job))
                if bar is None and self._policy.is_shown:
                    bar = self._batch.shown()
                    if bar is not None:
                        waiting.enter_context(bar)
                if bar is not None:
                    bar.show(time.monotonic() - (wanted.begun or 0.0))
                self._rest(wanted, running)
        return ordinal in self._images

    def _rest(self, wanted: image.Provider, running: Running) -> None:
        """Sleeps until an image may be there, or it is time to decide again.

        Looks take the builder's processor: each asks for nothing but whether there is a file.
        """
        failure = job_failure(running.dispatch)
        while True:
            time.sleep(_POLL)
            interrupts.require_going_on(failure)
            if wanted.may_be_there() or self._policy.is_over():
                return

    def _is_second_call(self) -> bool:
        ended = interrupts.calls_ended()
        if self._first_call is None:
            self._first_call = ended
        return ended != self._first_call

    def goes_in(self, ordinal: int, running: Running) -> bool:
        """Whether a long workgroup has code made for its middle.

        It has not while it waits for that of all kernels, nor where its threads need the processors and end
        half as soon.
        """
        if self.has_left(ordinal):
            return True
        self._decide(ordinal, running)
        policy = self._policy
        worth = policy.kernel >= self.hot(ordinal).provider.estimate / 2
        return policy.share != NOTHING and (worth or not policy.fills)

    def _decide(self, ordinal: int, running: Running) -> None:
        policy, batch = self._policy, self._batch
        if not policy.is_due(ordinal):
            return
        assert self._records is not None
        arguments = running, ordinal, self._records, self._sizes, self._images, policy.spent_by_call()
        rest = policy.left_to_do(ordinal, partial(rest_of, *arguments))
        is_new = rest.of_kernels is not self._seen
        if is_new:
            self._see(rest)
        is_alone = not self._gaining - {ordinal}
        own = batch.start_seconds + batch.shares[ordinal] * (ALONE if is_alone else 1.0)
        policy.decide(running, rest, own, self._gain)
        (batch.hold if policy.holds else batch.release)()
        batch.gives_way = policy.share not in (LATER, EVEN)
        if policy.builds and (is_new or batch.begun is None):
            batch.start()  # asks for each image: too much for each kernel, and for each thread that waits

    def _see(self, rest: LeftToDo) -> None:
        """Takes what a new look says of all kernels of the list."""
        batch, self._seen = self._batch, rest.of_kernels
        gains = saved(rest, batch.shares)
        gaining = [kernel for kernel, seconds in gains.items() if seconds > 0]
        self._gaining = frozenset(gaining)
        self._gain = sum(map(gains.__getitem__, gaining)) - batch.start_seconds
        if batch.begun is None:
            if rest.everything / rest.threads >= SOONER * batch.estimate:
                self._unknown = frozenset(range(len(self._ordinals))) - gains.keys()
            batch.order((*gaining, *sorted(self._unknown)), (*gains, *self._policy.dearest()))
        else:
            batch.bring(gaining)

    def _ask(self, ordinal: int, running: Running) -> None:
        """Uses a kernel's image if it is there, else has it built in time."""
        policy, wanted = self._policy, self._batch.providers[ordinal]
        if wanted.begun is not None:
            is_time = wanted.may_be_there()
        else:  # :meth:`serve` has looked
            is_time = policy.builds or policy.worth_aside(INTERPRETED_FIRST, running.nanoseconds)
        if is_time:
            self._use(ordinal, wanted.get())
            if policy.holds:  # also a builder that is only now to start
                self._batch.hold()

    def has_left(self, ordinal: int) -> bool:
        """Whether compiled code cannot run what the VM still runs of a kernel."""
        return ordinal in self._images or ordinal in self._refused

    def go_on(self, ordinal: int, environment: int, dispatch: int, group: int) -> int:
        """Runs the rest of a span, after :meth:`look`."""
        return self._run_span(environment, dispatch, group)

    def run(self, ordinal: int, environment: int, dispatch: int, group: int) -> int | None:
        """Runs a span that found no worker context, after the kernels are there.

        None when there cannot be more contexts, none has so many bindings, or the kernel is not compiled.
        UNAVAILABLE if they cannot be built.
        """
        if self._closed:
            raise FailedPreconditionError("the executable has been dropped")
        if not self.has_left(ordinal):
            image.wait(SPANS)
            look = partial(interrupts.require_going_on, job_failure(dispatch))
            self._use(ordinal, self._batch.providers[ordinal].wait(look))
        elif ordinal in self._images:
            if KernelDispatch(dispatch).binding_count > MAXIMUM_BINDINGS:
                return None
            self._tell_of_stores(environment, dispatch)
            while not self._add_context():
                if KernelDispatch(dispatch).parts <= 1:
                    return None
                interrupts.require_going_on(job_failure(dispatch))  # the VM knows no parts
                time.sleep(_BUSY)
        return self._run_span(environment, dispatch, group) if ordinal in self._images else None

    @staticmethod
    def _tell_of_stores(environment: int, dispatch: int) -> None:
        """Gives up copies of constants that a compiled kernel may store to.

        To this dispatch they are memory as any other from now on, whatever machine code, which remembers one
        place, knows by then.
        """
        own, places = KernelEnvironment(environment), set[tuple[int, int]]()
        for number, address, length in private_bindings(dispatch):
            if own.stores >> number & 1:
                places.add(note_stores(address, length))
                make_writable(dispatch, number)
        if len(places) == 1:
            ((changed, size),) = places
            words = (own.changed_size, 0), (own.changed, changed), (own.changed_size, size)
            with _telling:  # another thread may have another pair
                for word, value in words:
                    # order of changed, changed_size: `spans.is_news`
                    atomic_store(word, value)
                    order_stores()

    def context(self, address: int) -> WorkerContext:
        """The one with a record."""
        return self._contexts[address]

    def hold(self, ordinal: int) -> None:
        """Leaves a kernel's record alone, which another kernel has, until :meth:`release`."""
        self._held.add(ordinal)

    def release(self, ordinal: int) -> None:
        """Gives a kernel its own record back, and machine code built since."""
        self._held.discard(ordinal)
        self._use(ordinal, self._batch.providers[ordinal].image)

    def _use_all(self) -> None:
        """Those that are there."""
        for ordinal, provider in enumerate(self._batch.providers):
            self._use(ordinal, provider.image)

    def _use(self, ordinal: int, ready: image.Image | None) -> None:
        """Runs a kernel as machine code from now on, if possible."""
        if ready is None or self.has_left(ordinal) or ordinal in self._held:
            return
        if not ready.addresses:
            self._refused.add(ordinal)
            return
        spans = image.get(SPANS)
        if spans is None or not (self._contexts or self._add_context()):
            return
        assert self._records is not None
        self._run_span = _SPAN(spans.addresses["run_span"])
        parts, stores, *room = numbers_of(ready.notes)
        if not next(iter(self._contexts.values())).runs_parts:
            parts = 0
        (code,) = ready.addresses.values()
        row = ordinal * _ENTRY_WORDS
        environment = KernelEnvironment(self._records[row + _ENTRY_POINT.environment])
        environment.kernel, environment.stores = self._ordinals[ordinal], stores
        environment.frames, environment.values, environment.refs = room
        environment.workgroup = code
        self._images[ordinal] = ready  # not before: other threads run the kernel from here on
        entry = KernelEntry(self._records.buffer_info()[0] + 8 * row)
        entry.flags &= ~ENTRY_INTERPRETED
        self._records[row + _ENTRY_POINT.cost] = 0
        # order of code: a thread that sees it sees what it needs
        order_stores()
        self._records[row + _ENTRY_POINT.code] = spans.addresses["run_span"]
        # order of parts: the VM, which runs the kernel until then, knows none
        order_stores()
        entry.parts = parts
        if NAMES_CODE:
            name_code({self._names[ordinal]: code}, ready.end)

    def _add_context(self) -> bool:
        """Whether there is one that no thread has, or room for one more.

        To make one takes a millisecond of Python, and often what another thread ran meanwhile is over after
        that.
        """
        with self._adding:  # nothing is idle for other threads that machine code does not see yet
            if any(context.is_idle for context in self._contexts.values()):
                return True
            count = len(self._contexts)
            if count == MAXIMUM_CONTEXTS:
                return False
            context = self._new_context()
            self._contexts[context.address] = context
            self._table[words_of(Contexts).first + count] = context.address
            # order of count: a thread that sees it sees the context
            order_stores()
            self._table[words_of(Contexts).count] = count + 1
        return True

    def _new_context(self) -> WorkerContext:
        copies = self._copies
        context = self._create_context(None if copies is None else copies.constants)
        if copies is not None:
            copies.add(context)
        return context
