"""Runs VMVX executables for the local drivers: one C function runs spans of workgroups."""

from __future__ import annotations

import atexit
import ctypes
import time
from _queue import Empty, SimpleQueue  # `queue` itself takes 1 ms to import
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import ref

from jitree.base.callbacks import Callback, keep, revive
from jitree.base.finalizers import Finalized, object_at
from jitree.codegen.record import size_of, words_of
from jitree.errors import FailedPreconditionError, ResourceExhaustedError, StatusError, is_interruption
from jitree.hal.command_layout import ENTRY_INTERPRETED, ENTRY_SPAN, KernelDispatch, KernelEntry, Workgroup
from jitree.hal.local import interrupts
from jitree.hal.local.executor import native_executor
from jitree.loaders.library import EntryPoint, EntryTable, TabledExecutable
from jitree.loaders.vmvx.kernels import KernelEnvironment
from jitree.loaders.vmvx.packed import will_be_told
from jitree.loaders.vmvx.policy import Running
from jitree.loaders.vmvx.worker import Worker, job_failure

if TYPE_CHECKING:
    from jitree.dispatch.engine import Engine
    from jitree.hal.executable import Replacing
    from jitree.loaders.vmvx.native import CompiledKernels

_ENTRY_WORDS: Final = size_of(KernelEntry) // 8
_ENTRY_POINT: Final = words_of(KernelEntry)
_NO_KERNEL: Final = (0,) * (size_of(KernelEnvironment) // 8 - words_of(KernelEnvironment).finish - 1)
"""What an environment says of compiled code, after the fields that :class:`_Function` sets."""
_CHANGED, _CHANGED_SIZE = (
    words_of(KernelEnvironment).changed,
    words_of(KernelEnvironment).changed_size,
)
_KEPT_FAILURES: Final = 256
"""More than threads can fail in at once: those after a dispatch's first that are never taken go."""
_WORTH_A_WORKER: Final = 1_000_000
"""Nanoseconds that kernels have taken for each worker before another is made: twice what making one takes."""
_LONGEST_WAIT: Final = 0.02
"""Seconds that a thread waits for a worker before it makes one all the same."""
_LARGEST_RESULT: Final = 0x7FFFFFFF
_UNFINISHED: Final = -1
"""What the C functions return when Python could not even say why they failed."""


class Workers(Finalized):
    """Lends the workers of one executable to threads.

    One takes half a millisecond of Python to make, for which all threads wait: there are more only as far as
    kernels take long.
    """

    def __init__(
        self,
        create: Callable[..., Worker],
        compiled: CompiledKernels | None,
        binding_counts: Iterable[int] = (),
        starter: Callable[[], Engine] | None = None,
    ) -> None:
        """``binding_counts``: of the dispatches that will come.

        ``starter`` gives what runs the initialiser of workers after the first, where that is not what runs
        kernels.
        """
        self._create_worker = create
        self._compiled = None if compiled is None else ref(compiled)
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        first = self._create()
        if starter is not None:
            self._create_worker = lambda: create(starter=starter())
        first.prepare(binding_counts)
        self._idle.put(first)
        self._failures: dict[int, BaseException] = {}
        self._closed = False
        self._count = 1
        self._nanoseconds = 0
        """Nanoseconds of processors that kernels have taken."""
        self._results = count(1)
        self.entries = array("q")
        """KernelEntry records of the kernels."""
        self.will_end()

    def end(self) -> None:
        self._closed = True  # other finalizers may still run kernels
        while not self._idle.empty():
            self._idle.get().close()

    def run(self, ordinal: int, label: str, dispatch: int, workgroup: int) -> int:
        """Runs the span that the two states describe; 0, or a failure's number.

        A span that compiled kernels can take over begins, in the workgroup state, where it has stopped.
        """
        try:
            worker = self._take()
        except BaseException as error:
            return self.fail(error, label, dispatch, workgroup)
        try:
            worker.heed(dispatch)
            before = worker.engine.nanoseconds
            done = worker.run(ordinal, dispatch, workgroup)
            self._tell_cost(ordinal, worker.engine.nanoseconds - before, done)
            Workgroup(workgroup).first += done
        except BaseException as error:
            group = Workgroup(workgroup)
            group.x, group.y, group.z = worker.call(ordinal).reached
            return self.fail(error, label, dispatch, workgroup)
        finally:
            self._idle.put(worker)
        return 0

    def fail(self, error: BaseException, label: str, dispatch: int, workgroup: int) -> int:
        """Numbers an error in the workgroup that the workgroup state names.

        What a signal handler raised is the thread's, whatever else fails.
        """
        if is_interruption(error):
            keep(error)
            return _UNFINISHED
        if job_failure(dispatch).value:  # of another part
            return _UNFINISHED
        if isinstance(error, StatusError):
            group = Workgroup(workgroup)
            error.with_context(f"in workgroup ({group.x}, {group.y}, {group.z}) of {label}")
        result = (next(self._results) - 1) % _LARGEST_RESULT + 1
        self._failures[result] = error
        while len(self._failures) > _KEPT_FAILURES:
            self._failures.pop(next(iter(self._failures)), None)
        return result

    def take_failure(self, result: int) -> BaseException | None:
        if result == _UNFINISHED:
            revive()
            return ResourceExhaustedError("no stack or memory was left for the code that runs the kernel")
        return self._failures.pop(result, None)

    def _tell_cost(self, ordinal: int, nanoseconds: int, workgroups: int) -> None:
        """Records the processor time of interpreted workgroups (ENTRY_INTERPRETED)."""
        self._nanoseconds += nanoseconds
        row, executor = ordinal * _ENTRY_WORDS, native_executor()
        if executor is not None and workgroups > 0 and self.entries[row + _ENTRY_POINT.code] == _RUN_ADDRESS:
            ticks = nanoseconds * executor.ticks_per_microsecond / 1000
            self.entries[row + _ENTRY_POINT.cost] = int(1024 * ticks / workgroups) | 1

    def _take(self) -> Worker:
        if self._closed:
            raise FailedPreconditionError("the executable has been dropped")
        worth = self._nanoseconds >= self._count * _WORTH_A_WORKER
        try:
            return self._idle.get(timeout=0 if worth else _LONGEST_WAIT)
        except Empty:
            self._count += 1
            return self._create()

    def _create(self) -> Worker:
        worker = self._create_worker()
        if self._compiled is not None:
            worker.promotion.compiled = self._compiled
        return worker


# At exit of the interpreter, before threads are joined: a kernel may never end.
atexit.register(interrupts.end)


class _Function:
    """An entry of an executable, found by its address from the C functions below.

    Their callers hold the executable.
    """

    __slots__ = ("__weakref__", "_compiled", "_environment", "_label", "_ordinal", "_workers")

    def __init__(self, workers: Workers, compiled: CompiledKernels | None, ordinal: int, label: str) -> None:
        self._workers = workers
        self._compiled = compiled
        self._ordinal = ordinal
        self._label = label
        contexts = 0 if compiled is None else compiled.contexts_address
        first = id(self), contexts, _RUN_ADDRESS, _SLOW_PATH_ADDRESS, _FINISH_ADDRESS
        self._environment = array("q", (*first, *_NO_KERNEL))

    @property
    def environment(self) -> int:
        return self._environment.buffer_info()[0]

    def fail(self, error: BaseException, dispatch: int, workgroup: int) -> int:
        """What to return for an error that came outside of the functions below, too."""
        return self._workers.fail(error, self._label, dispatch, workgroup)

    def run(self, dispatch: int, workgroup: int) -> int:
        """Runs a span on the VM until compiled kernels are sooner."""
        if self._compiled is not None and not self._compiled.has_left(self._ordinal):
            try:
                if self._compiled.look(self._ordinal, _beginning(dispatch, workgroup)):
                    return self._compiled.go_on(self._ordinal, self.environment, dispatch, workgroup)
            except BaseException as error:
                return self.fail(error, dispatch, workgroup)
        start = time.thread_time_ns()
        result = self._workers.run(self._ordinal, self._label, dispatch, workgroup)
        if self._compiled is not None:
            self._compiled.spend(self._ordinal, time.thread_time_ns() - start)
            group = Workgroup(workgroup)
            if result == 0 and group.first < group.last:
                return self._compiled.go_on(self._ordinal, self.environment, dispatch, workgroup)
        return result

    def slow_path(self, dispatch: int, workgroup: int) -> int:
        """Runs a span that waits for a context or for kernels."""
        assert self._compiled is not None
        try:
            will_be_told(self)
            result = self._compiled.run(self._ordinal, self.environment, dispatch, workgroup)
        except BaseException as error:
            return self.fail(error, dispatch, workgroup)
        return self.run(dispatch, workgroup) if result is None else result

    def forget(self, address: int, size: int) -> None:
        """See :class:`~jitree.loaders.vmvx.packed.Told`."""
        changed, changed_size = self._environment[_CHANGED], self._environment[_CHANGED_SIZE]
        if changed < address + size and address < changed + changed_size:
            self._environment[_CHANGED_SIZE] = 0

    def look(self) -> int:
        """Looks what memory is left."""
        if self._compiled is not None:
            self._compiled.look_at_memory()
        return 0

    def finish(self, dispatch: int, workgroup: int, context: int) -> int:
        """Runs the rest of a workgroup that machine code left. It is not what its first part does."""
        assert self._compiled is not None
        try:
            own, parts = self._compiled.context(context), KernelDispatch(dispatch).parts
            if parts > 1 and own.reached % parts:
                own.abandon(self._ordinal)
            else:
                own.finish(self._ordinal, dispatch, workgroup)
        except BaseException as error:
            return self.fail(error, dispatch, workgroup)
        return 0


def _beginning(dispatch: int, workgroup: int) -> Running:
    group = Workgroup(workgroup)
    return Running(dispatch, 0, group.first, group.first, group.last)


def _run(environment: int, dispatch: int, workgroup: int) -> int:
    return _function(environment).run(dispatch, workgroup)


def _slow_path(environment: int, dispatch: int, workgroup: int) -> int:
    return _function(environment).slow_path(dispatch, workgroup)


def _look(environment: int, dispatch: int, workgroup: int) -> int:
    return _function(environment).look()


def _finish(environment: int, dispatch: int, workgroup: int, context: int) -> int:
    return _function(environment).finish(dispatch, workgroup, context)


def _function(environment: int) -> _Function:
    function: _Function = object_at(ctypes.c_int64.from_address(environment).value)
    return function


def _fail(error: BaseException, environment: int, dispatch: int, workgroup: int, context: int = 0) -> int:
    return _function(environment).fail(error, dispatch, workgroup)


_RUN: Final = Callback(_run, 3, _fail, _UNFINISHED)
_SLOW_PATH: Final = Callback(_slow_path, 3, _fail, _UNFINISHED)
_LOOK: Final = Callback(_look, 3, _fail, _UNFINISHED)
_FINISH: Final = Callback(_finish, 4, _fail, _UNFINISHED)
_RUN_ADDRESS, _SLOW_PATH_ADDRESS, _FINISH_ADDRESS = (
    _RUN.address,
    _SLOW_PATH.address,
    _FINISH.address,
)


class VmvxExecutable(TabledExecutable):
    """Runs a nested bytecode module; see :class:`jitree.loaders.vmvx.loader.VmvxLoader`."""

    def __init__(
        self,
        name: str,
        rows: Sequence[EntryPoint],
        workers: Workers,
        compiled: CompiledKernels | None = None,
        places: Callable[[int], list[str]] | None = None,
    ) -> None:
        """``rows`` lack code and environment; ``compiled`` takes over from the VM when it can; ``places``:
        see :meth:`Executable.places`."""
        self._workers = workers
        self._places = places
        self._compiled = compiled
        self._own_functions = [
            _Function(workers, compiled, ordinal, f"{row.name} of executable '{name}'")
            for ordinal, row in enumerate(rows)
        ]
        super().__init__(
            name,
            EntryTable.of([
                EntryPoint(
                    row.name, _RUN_ADDRESS, function.environment, row.local_memory, row.constant_count,
                    row.binding_count, row.flags | ENTRY_SPAN | ENTRY_INTERPRETED,
                )
                for row, function in zip(rows, self._own_functions, strict=True)
            ]),
        )  # fmt: skip
        workers.entries = self._entries
        if compiled is not None:
            compiled.serve(self._entries, _LOOK.address)

    @property
    def copied(self) -> int:
        return 0 if self._compiled is None else self._compiled.copied

    def add_constants(self, data: memoryview) -> None:
        if self._compiled is not None:
            self._compiled.add_constants(data)

    def places(self, ordinal: int) -> list[str]:
        return [] if self._places is None else self._places(ordinal)

    def prepare(self) -> None:
        """Has what compiles kernels started, which calls will want."""
        if self._compiled is not None:
            self._compiled.prepare()

    def require_compiled(self) -> None:
        """Has the kernels compiled now; dispatches wait for that."""
        if self._compiled is not None and not self._compiled.ready:
            self._compiled.start()
            for number in range(self.function_count):
                if not self._compiled.has_left(number):
                    self._entries[number * _ENTRY_WORDS + _ENTRY_POINT.code] = _SLOW_PATH_ADDRESS

    def replace_function(
        self, ordinal: int, kernel: Replacing, code: int, flags: int, environment: int
    ) -> array[int]:
        if self._compiled is not None:
            self._compiled.hold(ordinal)
        return super().replace_function(ordinal, kernel, code, flags, environment)

    def restore_function(self, ordinal: int) -> None:
        super().restore_function(ordinal)
        if self._compiled is not None:
            self._compiled.release(ordinal)

    def take_failure(self, result: int) -> BaseException | None:
        """The error of the call that returned ``result``, given once."""
        return super().take_failure(result) or self._workers.take_failure(result)
