"""VMVX executables as the local drivers run them: one C function that runs spans of workgroups on the VM."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final
from weakref import WeakValueDictionary

from jitree.errors import StatusError
from jitree.hal.local.commands import ENTRY_SPAN
from jitree.hal.local.kernel_call import WORKGROUP_STATE
from jitree.loaders.entry_points import EntryPoint, TabledExecutable
from jitree.loaders.vmvx_worker import Worker, read_span
from jitree.regs.layout import Record

ENVIRONMENT: Final = Record(
    "vmvx environment",
    """
    i64 number            # of the function, under which the process finds it
    """,
)
"""What a function's calls get as environment; the function owns it."""

_KEPT_FAILURES: Final = 256
"""More than threads can fail in at once: failures that nobody takes, behind the first of a dispatch, go."""
_LARGEST_RESULT: Final = 0x7FFFFFFF
_WORKGROUP: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_functions: WeakValueDictionary[int, _Function] = WeakValueDictionary()
_numbers: Final = count(1)


class Workers:
    """The workers of one executable: as many as threads have been in it at once."""

    def __init__(self, create: Callable[[], Worker]) -> None:
        self._create = create
        self._idle = [create()]
        self._failures: dict[int, BaseException] = {}
        self._results = count(1)

    def __del__(self) -> None:
        if not sys.is_finalizing():
            for worker in getattr(self, "_idle", ()):
                worker.close()

    def run(self, ordinal: int, label: str, dispatch: int, workgroup: int) -> int:
        """Runs the span that the two states describe; 0, or the number of the failure."""
        try:
            worker = self._take()
        except BaseException as error:
            return self._keep(error)
        try:
            worker.run(ordinal, read_span(dispatch, workgroup))
        except BaseException as error:
            x, y, z = worker.workgroup
            WORKGROUP_STATE.pack_into(
                (ctypes.c_uint8 * WORKGROUP_STATE.size).from_address(workgroup), 0, x, y, z, 0, 0, 0, 0
            )
            if isinstance(error, StatusError):
                error.with_context(f"in workgroup ({x}, {y}, {z}) of {label}")
            return self._keep(error)
        finally:
            self._idle.append(worker)
        return 0

    def take_failure(self, result: int) -> BaseException | None:
        return self._failures.pop(result, None)

    def _take(self) -> Worker:
        try:
            return self._idle.pop()
        except IndexError:
            return self._create()

    def _keep(self, error: BaseException) -> int:
        result = (next(self._results) - 1) % _LARGEST_RESULT + 1
        self._failures[result] = error
        while len(self._failures) > _KEPT_FAILURES:
            self._failures.pop(next(iter(self._failures)), None)
        return result


class _Function:
    """An entry of an executable, found by its number from the C function below."""

    __slots__ = ("__weakref__", "_environment", "_label", "_ordinal", "_workers")

    def __init__(self, workers: Workers, ordinal: int, label: str) -> None:
        number = next(_numbers)
        self._workers = workers
        self._ordinal = ordinal
        self._label = label
        self._environment = array("q", (number,))
        _functions[number] = self

    @property
    def environment(self) -> int:
        return self._environment.buffer_info()[0]

    def run(self, dispatch: int, workgroup: int) -> int:
        return self._workers.run(self._ordinal, self._label, dispatch, workgroup)


def _run_span(environment: int, dispatch: int, workgroup: int) -> int:
    number = ctypes.c_int64.from_address(environment).value
    return _functions[number].run(dispatch, workgroup)


_SPAN_FUNCTION: Final = _WORKGROUP(_run_span)
_CODE: Final = ctypes.cast(_SPAN_FUNCTION, ctypes.c_void_p).value or 0


class VmvxExecutable(TabledExecutable):
    """A nested bytecode module; see :class:`jitree.loaders.vmvx.VmvxLoader`."""

    def __init__(self, name: str, rows: Sequence[EntryPoint], workers: Workers) -> None:
        """``rows`` lack code and environment."""
        self._workers = workers
        self._own_functions = [
            _Function(workers, ordinal, f"{row.name} of executable '{name}'")
            for ordinal, row in enumerate(rows)
        ]
        super().__init__(
            name,
            [
                EntryPoint(
                    row.name, _CODE, function.environment, row.local_memory, row.constant_count,
                    row.binding_count, row.flags | ENTRY_SPAN,
                )
                for row, function in zip(rows, self._own_functions, strict=True)
            ],
        )  # fmt: skip

    def take_failure(self, result: int) -> BaseException | None:
        """The error of the call that returned ``result``, given once."""
        return self._workers.take_failure(result)
