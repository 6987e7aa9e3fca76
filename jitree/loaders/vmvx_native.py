"""Compiled kernels of a VMVX executable: from asking for them to the threads that run them."""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final

from jitree.base.endings import Ended, guard
from jitree.base.memory import NAMES_CODE, name_code
from jitree.codegen import image
from jitree.dispatch.fast.engine import LOOP
from jitree.dispatch.native.tiering import NativeModule
from jitree.errors import FailedPreconditionError
from jitree.hal.command_layout import ENTRY_INTERPRETED, ENTRY_POINT
from jitree.hal.local import interrupts
from jitree.hal.local.executor.records import KernelDispatch, KernelEntry
from jitree.loaders.vmvx_context import WorkerContext
from jitree.loaders.vmvx_images import SPANS
from jitree.loaders.vmvx_layout import CONTEXTS, MAXIMUM_CONTEXTS, symbol
from jitree.loaders.vmvx_packed import Copies, PackedConstants
from jitree.loaders.vmvx_records import KernelEnvironment
from jitree.loaders.vmvx_worker import job_failure

PATIENCE: Final = 20_000_000
"""Nanoseconds that a kernel runs on the VM before it is compiled in the background: what is not worth that
much ends before a builder has started."""

_BUSY: Final = 0.001
"""Seconds between two looks for a worker context, where all that there can be are in use."""
_SPAN: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_ENTRY_WORDS: Final = ENTRY_POINT.size // 8
_CODE: Final = ENTRY_POINT.word("code")
_COST: Final = ENTRY_POINT.word("cost")
_ENVIRONMENT: Final = ENTRY_POINT.word("environment")


class CompiledKernels(Ended):
    """The compiled kernels of one executable; its entry points are changed over when they are there.

    Any thread may call any method.
    """

    def __init__(
        self,
        provider: image.Provider,
        alone: Callable[[int], image.Provider],
        hot: Callable[[int], image.Provider],
        ordinals: Sequence[int],
        names: Sequence[str],
        create_context: Callable[[PackedConstants | None], WorkerContext],
        copies: Copies | None = None,
    ) -> None:
        """``alone`` gives the image of one kernel, which is there sooner than that of all; ``hot`` the one
        for workers in the middle of it. ``ordinals`` are those of the kernels' functions in the module, in
        the order of the executable's entries, ``names`` what they are called; ``copies``: of constants, which
        contexts may read. Nothing happens until :meth:`serve`."""
        self._provider = provider
        self._alone = cache(lambda ordinal: alone(ordinals[ordinal]))
        self._hot = cache(lambda ordinal: NativeModule(hot(ordinals[ordinal])))
        self._ordinals = ordinals
        self._symbols = [symbol(ordinal) for ordinal in ordinals]
        self._names = names
        self._nanoseconds = [0] * len(ordinals)
        """Nanoseconds that each kernel has run on the VM."""
        self._create_context = create_context
        self._copies = copies
        self._records: array[int] | None = None
        self._adding, self._publishing = guard(), guard()
        self._contexts: dict[int, WorkerContext] = {}
        self._table = array("q", bytes(CONTEXTS.size + 8 * (MAXIMUM_CONTEXTS - 1)))
        self._images: dict[int, image.Image] = {}
        """The machine code of kernels, by ordinal."""
        self._ready = False
        self._closed = False
        self._run_span: Callable[[int, int, int], int]
        self.will_end()

    def end(self) -> None:
        self._closed = True  # other finalizers may still run kernels
        self._table[CONTEXTS.word("count")] = 0
        for context in self._contexts.values():
            context.close()

    @property
    def contexts_address(self) -> int:
        """The address of the CONTEXTS record."""
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
        """Has copies of constants given up where memory is short. Threads that run kernels call it now and
        then."""
        if self._copies is not None:
            self._copies.look()

    @property
    def ready(self) -> bool:
        """Whether all kernels that can be compiled run as machine code."""
        return self._ready

    def serve(self, records: array[int], look: int = 0) -> None:
        """``records`` are the ENTRY_POINT records to change over, ``look`` the address of a C function that
        calls :meth:`look_at_memory` (CONTEXTS); uses what is in the cache already. Begins
        to compile if the VM has no machine code yet: one workgroup would take it longer."""
        self._records = records
        if self._copies is not None:
            self._copies.watch(self._table, look)
        self._use_all(self._provider.get() if image.get(LOOP) is None else self._provider.find())

    def start(self) -> None:
        """Has the kernels compiled now."""
        self._provider.start()

    def spend(self, ordinal: int, nanoseconds: int) -> None:
        """Counts time that the VM took for a kernel, and has it compiled when that is worth it."""
        self._nanoseconds[ordinal] += nanoseconds
        self.look(ordinal, 0)

    def look(self, ordinal: int, nanoseconds: int) -> bool:
        """Whether the rest of a span, which the VM has run for so long, can be compiled code's. A kernel that
        is worth it is compiled first, and after the first one all of them."""
        if self._nanoseconds[ordinal] + nanoseconds >= PATIENCE and not self.has_left(ordinal):
            alone = self._alone(ordinal)
            self._use(alone.get())
            if alone.settled or self._images:
                self._use_all(self._provider.get())
        return ordinal in self._images

    def has_left(self, ordinal: int) -> bool:
        """Whether compiled code cannot run what the VM still runs of a kernel."""
        return self._ready or ordinal in self._images

    def hot(self, ordinal: int) -> NativeModule:
        """A kernel for workers that are in the middle of it."""
        return self._hot(ordinal)

    def go_on(self, ordinal: int, environment: int, dispatch: int, group: int) -> int:
        """Runs the rest of a span, after :meth:`look`."""
        return self._run_span(environment, dispatch, group)

    def run(self, ordinal: int, environment: int, dispatch: int, group: int) -> int | None:
        """Runs a span that has found no worker context, waiting for the kernels if they are not there; None
        when there cannot be more, or the kernel is not compiled. UNAVAILABLE if they cannot be built."""
        if self._closed:
            raise FailedPreconditionError("the executable has been dropped")
        if not self.has_left(ordinal):
            image.wait(SPANS)
            self._use_all(self._provider.wait(partial(interrupts.require_going_on, job_failure(dispatch))))
        elif ordinal in self._images:
            while not self._add_context():
                if KernelDispatch(dispatch).parts <= 1:
                    return None
                interrupts.require_going_on(job_failure(dispatch))  # the VM knows no parts
                time.sleep(_BUSY)
        return self._run_span(environment, dispatch, group) if ordinal in self._images else None

    def context(self, address: int) -> WorkerContext:
        """The one with a CONTEXT record."""
        return self._contexts[address]

    def _use_all(self, ready: image.Image | None) -> None:
        self._ready = self._use(ready)

    def _use(self, ready: image.Image | None) -> bool:
        """Whether the kernels of an image run from now on."""
        spans = None if ready is None else image.get(SPANS)
        if ready is None or spans is None or not (self._contexts or self._add_context()):
            return False
        assert self._records is not None
        run_span = spans.addresses["run_span"]
        self._run_span = _SPAN(run_span)
        parts: dict[str, int] = {}
        if next(iter(self._contexts.values())).runs_parts:
            import json  # 2 ms, and a device with one thread has no parts

            parts = json.loads(ready.notes)["parts"]
        for ordinal, name in enumerate(self._symbols):
            if name in ready.addresses:
                row = ordinal * _ENTRY_WORDS
                self._images[ordinal] = ready
                KernelEnvironment(self._records[row + _ENVIRONMENT]).workgroups = ready.addresses[name]
                entry = KernelEntry(self._records.buffer_info()[0] + 8 * row)
                entry.flags &= ~ENTRY_INTERPRETED
                entry.parts = parts.get(str(self._ordinals[ordinal]), 0)
                self._records[row + _COST] = 0
                self._records[row + _CODE] = run_span
        if NAMES_CODE:
            names = zip(self._symbols, self._names, strict=True)
            found = {name: ready.addresses[key] for key, name in names if key in ready.addresses}
            name_code(found, ready.end)
        return True

    def _add_context(self) -> bool:
        """Whether there is one that no thread has, or room for one more. To make one takes a millisecond of
        Python, and often what another thread ran meanwhile is over after that."""
        with self._adding:  # nothing is idle for other threads that machine code does not see yet
            if any(context.is_idle for context in self._contexts.values()):
                return True
            count = len(self._contexts)
            if count == MAXIMUM_CONTEXTS:
                return False
            context = self._new_context()
            self._contexts[context.address] = context
            self._table[CONTEXTS.word("first") + count] = context.address
            with self._publishing:  # orders the stores for threads that see the count
                self._table[CONTEXTS.word("count")] = count + 1
        return True

    def _new_context(self) -> WorkerContext:
        copies = self._copies
        context = self._create_context(None if copies is None else copies.constants)
        if copies is not None:
            copies.add(context)
        return context
