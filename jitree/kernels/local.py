"""Runs kernels of the user in place of functions of local devices' executables.

Python runs what Numba has not compiled: Python's functions, and those of Numba that raise, so that a
traceback is the user's. It also runs the first dispatch of a kernel that is to be verified, and a dispatch of
a run that comes alone.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count, islice, product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import said
from jitree.base.callbacks import Callback, keep
from jitree.base.folding import fold_tracebacks
from jitree.base.records import rows_of
from jitree.codegen.record import atomic_load, place_of
from jitree.dispatch.backtrace import add_note
from jitree.errors import InternalError, InvalidArgumentError, StatusError, is_interruption
from jitree.hal.command_layout import (
    ENTRY_INTERPRETED,
    ENTRY_SEQUENTIAL,
    ENTRY_SPAN,
    Job,
    KernelDispatch,
    KernelEntry,
    Workgroup,
)
from jitree.hal.command_list import COMMAND_ROW, ENTRY_FIELD, warn_of_order
from jitree.hal.stepwise import looked_at, memory
from jitree.kernels.kernel import WORKGROUP, Kernel, KernelCall
from jitree.kernels.run import first_of_run, job_of, operand_of
from jitree.kernels.verification import CheckedDispatch, CopiedMemory
from jitree.regs.layout import ACCESS_PRIVATE, ACCESS_WRITE

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.executable import LocalExecutable
    from jitree.hal.stepwise import Extent
    from jitree.kernels.kernel import BoundTensor
    from jitree.observe.tolerance import Tolerance


class RunningDispatch:
    """A dispatch of a job. ``row`` is the address of the first row of the run that it belongs to, else 0."""

    def __init__(self, address: int) -> None:
        self.address = address
        self._dispatch = dispatch = KernelDispatch(address)
        self.counts = dispatch.count_x, dispatch.count_y, dispatch.count_z
        self.total = dispatch.count_x * dispatch.count_y * dispatch.count_z
        self.job = job_of(address)
        count = dispatch.constant_count
        data = ctypes.string_at(dispatch.constants, 4 * count) if count else b""
        self.constants = np.frombuffer(data, np.uint32)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Those of the list that it is in."""
        commands = Job(self.job).list
        data = ctypes.string_at(place_of(commands.rows), commands.row_count * COMMAND_ROW.size)
        return rows_of(COMMAND_ROW, data)

    def workgroups(self, first: int, last: int) -> Sequence[tuple[int, int, int]]:
        """The coordinates of some, x fastest."""
        x, y, z = self.counts
        return [(i, j, k) for k, j, i in islice(product(range(z), range(y), range(x)), first, last)]

    def extents(self, counts: Sequence[int], row: int) -> list[list[Extent]]:
        """Address and bytes of so many bindings of each dispatch of the run."""
        return [
            [*zip(_numbers(addresses, count), _numbers(lengths, count), strict=True)]
            for count, (addresses, lengths, _) in zip(counts, self._operands(len(counts), row), strict=True)
        ]

    def may_store(self, counts: Sequence[int], row: int) -> list[list[bool]]:
        """Whether so many bindings of each dispatch of the run may be stored to: constants of a file may lie
        in pages that are read-only."""
        return [
            [access & _STORED != 0 for access in _numbers(accesses, count)]
            for count, (*_, accesses) in zip(counts, self._operands(len(counts), row), strict=True)
        ]

    def _operands(self, count: int, row: int) -> list[tuple[int, int, int]]:
        """Where the addresses, lengths and accesses of each dispatch's bindings are."""
        dispatch, job = self._dispatch, Job(self.job)
        if not row:
            return [(dispatch.addresses, dispatch.lengths, dispatch.accesses)]
        places = [8 * operand_of(row, number) for number in range(count)]
        return [(job.addresses + place, job.lengths + place, job.accesses + place) for place in places]

    @contextmanager
    def bound_to(self, extents: list[list[Extent]], row: int) -> Iterator[None]:
        """Has the run work on other memory. Other rows of the job find theirs where it is."""
        job, dispatch = Job(self.job), self._dispatch
        own, place = job.addresses, dispatch.addresses - job.addresses
        addresses = array("q", _numbers(own, job.list.operand_count))
        for part, (at, *_) in zip(extents, self._operands(len(extents), row), strict=True):
            first = (at - own) // 8
            addresses[first : first + len(part)] = array("q", [address for address, _ in part])
        job.addresses = addresses.buffer_info()[0]
        dispatch.addresses = job.addresses + place
        try:
            yield
        finally:
            job.addresses, dispatch.addresses = own, own + place


def _numbers(address: int, count: int) -> list[int]:
    return (ctypes.c_int64 * count).from_address(address)[:] if count else []


def views_of(
    tensors: Sequence[Sequence[BoundTensor]],
    extents: Sequence[Sequence[Extent]],
    may_store: Sequence[Sequence[bool]],
) -> list[npt.NDArray[Any]]:
    """The arrays of all tensors, in their order. What a program may only read they only show."""
    return [
        tensor.view((memory if may_store[part][tensor.binding] else looked_at)(extents[part][tensor.binding]))
        for part, bound in enumerate(tensors)
        for tensor in bound
    ]


def _shown_copy(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy that is not writable either."""
    copy = view.copy()
    copy.flags.writeable = False
    return copy


# -- The dispatch that runs ------------------------------------------------------------------------------


Function = tuple["LocalExecutable", int]
"""An executable and the ordinal of its function."""

_CODE: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_UNFINISHED: Final = -1
_results: Final = count(1 << 30)
"""Numbers of failures, which no function is likely to return."""
_STORED: Final = ACCESS_WRITE | ACCESS_PRIVATE
"""What a buffer allows that kernels may store to."""
_BY_PYTHON: Final = ENTRY_SPAN | ENTRY_SEQUENTIAL | ENTRY_INTERPRETED


class LocalKernel:
    """Runs a kernel in place of a function or a run."""

    def __init__(self, kernel: Kernel, functions: Sequence[Function], verify: Tolerance | None) -> None:
        """``verify``: how near results of the first dispatch are to be to the originals'; None: any."""
        self.names = [executable.function_name(ordinal) for executable, ordinal in functions]
        self.name = " and ".join(self.names)
        self._kernel = kernel
        self.functions = functions
        counts = [executable.binding_count(ordinal) for executable, ordinal in functions]
        self._tensors = kernel.tensors(self.names, counts)
        self._counts = [count or 0 for count in counts]
        self._counts[-1] = max([self._counts[-1], *(tensor.binding + 1 for tensor in self._tensors[-1])])
        """How many bindings each dispatch has."""
        self._takes_call = not kernel.address and kernel.takes_call(sum(map(len, self._tensors)))
        self._failures: dict[int, BaseException] = {}
        self._verify = verify
        self._copied: dict[int, tuple[CopiedMemory, list[list[Extent]]]] = {}
        """What runs of dispatches began with, by job, until they are verified."""
        self._has_warned = False
        """Whether it was looked at why dispatches of the run came alone."""
        self._verifying = set[int]()
        """Jobs whose copies machine code works on."""
        self.entries = array("q", [executable.entry_point(ordinal) for executable, ordinal in functions])
        """The KernelEntry records of the functions."""
        self._callbacks = [
            Callback(partial(self._run, number), 3, self._fail, _UNFINISHED)
            for number in range(len(functions))
        ]
        self._versions = [self._compile()]
        """Machine code, the last one's runs; others may still run on other threads."""
        self._environments = [
            array("q", [callback.address, self.entries.buffer_info()[0]]) for callback in self._callbacks
        ]
        """What it finds fallbacks and entries in, of each function."""
        self._originals: list[array[int]] = []
        try:
            for number, (executable, ordinal) in enumerate(functions):
                code = self._callbacks[number].address, _BY_PYTHON, self._environment(number)
                self._originals.append(executable.replace_function(ordinal, self, *code))
        except BaseException:
            self.undo()
            raise
        if verify is None:
            self._install()

    def undo(self) -> None:
        """Runs the originals again."""
        for executable, ordinal in self.functions:
            executable.restore_function(ordinal)

    @property
    def run(self) -> Sequence[int]:
        """The entry points of the run, but while the originals run, to be compared."""
        return self.entries if self._verify is None else ()

    def take_failure(self, result: int) -> BaseException | None:
        """The error of the call that returned ``result``, given once."""
        return self._failures.pop(result, None)

    def _compile(self) -> list[Any]:
        if self._kernel.address and len(self.functions) > 1:
            raise InvalidArgumentError(f"kernel {self._kernel.name}: a C function replaces one dispatch")
        if not self._kernel.is_compiled or self._kernel.address:
            return []
        from jitree.kernels.compiled import compiled_kernel

        return compiled_kernel(self._kernel, self._tensors)

    @property
    def _compiled(self) -> list[Any]:
        return self._versions[-1]

    def _lock(self, may_store: Sequence[Sequence[bool]]) -> bool:
        """Has machine code take as not writable what the program may only read.

        Whether any is new; PERMISSION_DENIED where the kernel stores to it."""
        locked = [
            tuple(
                tensor._replace(is_locked=tensor.is_locked or not may_store[part][tensor.binding])
                for tensor in bound
            )
            for part, bound in enumerate(self._tensors)
        ]
        if locked == self._tensors:
            return False
        from jitree.kernels.compiled import compiled_kernel

        self._versions.append(compiled_kernel(self._kernel, locked))
        self._tensors = locked
        if self._verify is None:
            self._install()
        return True

    def _environment(self, number: int) -> int:
        """The address of what code is given, also before it runs: another thread may have read that of a
        record when the code changes."""
        return self._environments[number].buffer_info()[0] if self._compiled else 0

    def _code(self, number: int) -> tuple[int, int, int]:
        """Gives the address, ENTRY_* and environment of code that verifies nothing. It runs when that
        dispatch of the run comes."""
        if self._kernel.address:
            return self._kernel.address, 0, 0
        if not self._compiled:
            return self._callbacks[number].address, _BY_PYTHON, 0
        is_shared = self._kernel.by == WORKGROUP and number == len(self.functions) - 1
        flags = ENTRY_SPAN | (0 if is_shared else ENTRY_SEQUENTIAL)
        return self._compiled[number].address, flags, self._environment(number)

    def _install(self) -> None:
        self._verify = None
        for number, (executable, ordinal) in enumerate(self.functions):
            executable.replace_function(ordinal, self, *self._code(number))

    # -- by Python -------------------------------------------------------------------------------------

    def _run(self, number: int, environment: int, dispatch: int, workgroup: int) -> int:
        """Does a span. A kernel of the whole grid does all with the first workgroup, and one of a run with
        the first of the last dispatch."""
        group, state = Workgroup(workgroup), RunningDispatch(dispatch)
        is_last = number == len(self.functions) - 1
        row = 0
        if len(self.functions) > 1:
            row = first_of_run(dispatch, self.entries.buffer_info()[0], len(self.entries), number)
            if row == 0:
                if not self._has_warned:
                    self._has_warned = True
                    names = dict(zip(self.entries, self.names, strict=True))
                    warn_of_order(self.entries, state.rows(), lambda row: names[row[ENTRY_FIELD]])
                self._run_original(number, state, group)
                return 0
        if self._verify is not None and state.job not in self._verifying:
            self._run_verified(number, row, state, group, self._verify)
        elif is_last and self._compiled and self._lock(state.may_store(self._counts, row)):
            done: int = _CODE(self._code(number)[0])(environment, dispatch, workgroup)
            return done
        elif is_last:
            self._call(state, state.extents(self._counts, row), row, group.first, group.last)
        return 0

    def _call(
        self, state: RunningDispatch, extents: list[list[Extent]], row: int, first: int, last: int
    ) -> None:
        views = views_of(self._tensors, extents, state.may_store(self._counts, row))
        if self._compiled:  # Numba's types leave ways to store
            views = [view if view.flags.writeable else _shown_copy(view) for view in views]
        places = state.workgroups(first, last) if self._kernel.by == WORKGROUP else ((0, 0, 0),)
        for place in places if first == 0 or self._kernel.by == WORKGROUP else ():
            call = KernelCall(place, state.counts, state.constants)
            self._kernel.function(*views, *([call] if self._takes_call else ()))

    def _run_verified(
        self, number: int, row: int, state: RunningDispatch, group: Workgroup, allowed: Tolerance
    ) -> None:
        """Runs the kernel on copies of what the run began with, and the originals; FAILED_PRECONDITION where
        they differ."""
        if number == 0:
            extents = state.extents(self._counts, row)
            self._copied[state.job] = CopiedMemory([*chain(*extents)]), extents
        if number < len(self.functions) - 1:
            self._run_original(number, state, group)
            return
        copied, extents = self._copied.pop(state.job)
        copied.keep_changes()
        moved = iter(copied.extents)
        copies = [[next(moved) for _ in part] for part in extents]
        code, flags, environment = self._code(number)
        if not self._compiled and not self._kernel.address:
            self._call(state, copies, row, 0, state.total)
        else:
            self._verifying.add(state.job)
            try:
                with state.bound_to(copies, row):
                    self._execute(code, flags, environment, state, group)
            finally:
                self._verifying.discard(state.job)
        self._run_original(number, state, group)
        parts = [*map(CheckedDispatch, self.names, self._tensors, extents)]
        copied.require_near(f"kernel {self._kernel.name} and {self.name}", parts, allowed)
        self._install()

    def _run_original(self, number: int, state: RunningDispatch, group: Workgroup) -> None:
        entry = KernelEntry(self._originals[number].buffer_info()[0])
        # order of code: acquires what it needs: `CompiledKernels._use`
        self._execute(atomic_load(entry.code), entry.flags, entry.environment, state, group)

    def _execute(
        self, code: int, flags: int, environment: int, state: RunningDispatch, group: Workgroup
    ) -> None:
        """Runs all workgroups of a dispatch by machine code, with its error."""
        function = _CODE(code)
        place = place_of(group)
        if flags & ENTRY_SPAN:
            group.first, group.last = 0, state.total
            self._require(function(environment, state.address, place))
            return
        for x, y, z in state.workgroups(0, state.total):
            group.x, group.y, group.z = x, y, z
            self._require(function(environment, state.address, place))

    def _require(self, result: int) -> None:
        if result:
            kept = (executable.take_failure(result) for executable, _ in self.functions)
            raise next(filter(None, kept), None) or InternalError(f"{self.name} returned {result}")

    def _fail(self, error: BaseException, environment: int, dispatch: int, workgroup: int) -> int:
        if is_interruption(error) or not isinstance(error, Exception):
            keep(error)
            return _UNFINISHED
        failure = failure_of(error, f"in kernel {self._kernel.name}, which replaces {self.name}")
        result = next(_results)
        self._failures[result] = failure
        return result


def failure_of(error: Exception, what: str) -> StatusError:
    """What a kernel raised, as the failure of its dispatch."""
    if isinstance(error, StatusError):
        return error.with_context(what)
    add_note(error, what)
    fold_tracebacks(error)
    failure = InternalError(said(error), what)
    failure.raised, failure.raised_at = error, error.__traceback__
    failure.__cause__ = error
    return failure
