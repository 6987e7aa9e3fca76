"""Reads a dispatch that runs as the functions of executables see it."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.base.records import rows_of
from jitree.codegen.record import place_of
from jitree.hal.command_layout import Job, KernelDispatch
from jitree.hal.command_list import COMMAND_ROW
from jitree.hal.stepwise import memory
from jitree.kernels.run import job_of, operand_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.stepwise import Extent
    from jitree.kernels.kernel import BoundTensor


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
            for count, (addresses, lengths) in zip(counts, self._operands(len(counts), row), strict=True)
        ]

    def _operands(self, count: int, row: int) -> list[tuple[int, int]]:
        """Where the addresses and lengths of each dispatch's bindings are."""
        if not row:
            return [(self._dispatch.addresses, self._dispatch.lengths)]
        job = Job(self.job)
        places = [8 * operand_of(row, number) for number in range(count)]
        return [(job.addresses + place, job.lengths + place) for place in places]

    @contextmanager
    def bound_to(self, extents: list[list[Extent]], row: int) -> Iterator[None]:
        """Has the run work on other memory. Other rows of the job find theirs where it is."""
        job, dispatch = Job(self.job), self._dispatch
        own, place = job.addresses, dispatch.addresses - job.addresses
        addresses = array("q", _numbers(own, job.list.operand_count))
        for part, (at, _) in zip(extents, self._operands(len(extents), row), strict=True):
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
    tensors: Sequence[Sequence[BoundTensor]], extents: Sequence[Sequence[Extent]]
) -> list[npt.NDArray[Any]]:
    """The arrays of all tensors, in their order."""
    return [
        tensor.view(memory(extents[part][tensor.binding]))
        for part, bound in enumerate(tensors)
        for tensor in bound
    ]
