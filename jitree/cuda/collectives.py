"""Collective operations as calls of NCCL on a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError

if TYPE_CHECKING:
    from jitree.cuda.commands import Collective
    from jitree.cuda.stream import Stream

_TYPES: Final = {0: (0, 1), 1: (1, 1), 4: (2, 4), 5: (3, 4), 6: (4, 8), 7: (5, 8), 8: (6, 2), 9: (7, 4),
                 10: (8, 8), 11: (9, 2)}  # fmt: skip
"""ABI element type: (ncclDataType_t, bytes). 11 is bfloat16, which upstream passes as float64."""
_MOVED_TYPES: Final = {2: 2, 3: 2, 12: 1, 13: 1, 14: 1, 15: 1}
"""Bytes of element types that NCCL moves but does not reduce: 16-bit integers and the newer compilers'
float8."""
_BYTES: Final = 0
"""ncclInt8, for moving."""
_REDUCTIONS: Final = {1: 0, 2: 1, 3: 3, 4: 2, 5: 4}
"""ABI reduction (sum, product, minimum, maximum, average): ncclRedOp_t."""
_NOBODY: Final = 0xFFFF
"""As source or target of a send_recv."""


class Call(NamedTuple):
    """A collective with the ranges of one run; addresses are the device's, lengths bytes."""

    collective: Collective
    send: int
    receive: int
    send_length: int
    receive_length: int

    @property
    def kind(self) -> int:
        return self.collective.operation & 0xFF

    @property
    def reduction(self) -> int:
        """ncclRedOp_t. INVALID_ARGUMENT for a number that means none."""
        number = self.collective.operation >> 8 & 0xFF
        found = _REDUCTIONS.get(number)
        if found is None:
            raise InvalidArgumentError(f"a collective with reduction {number}, which does not exist")
        return found

    @property
    def element_type(self) -> int:
        return self.collective.operation >> 16 & 0xFF

    @property
    def members(self) -> int:
        return self.collective.channel.count

    @property
    def communicator(self) -> int:
        return self.collective.channel.communicator

    @property
    def element_size(self) -> int:
        """Bytes. UNIMPLEMENTED for a type that NCCL does not know."""
        known = _TYPES.get(self.element_type)
        size = _MOVED_TYPES.get(self.element_type) if known is None else known[1]
        if size is None:
            raise UnimplementedError(f"collectives have no element type {self.element_type}")
        return size

    @property
    def reduced_type(self) -> int:
        """ncclDataType_t. UNIMPLEMENTED for a type that NCCL only moves."""
        known = _TYPES.get(self.element_type)
        if known is None:
            raise UnimplementedError(f"NCCL does not reduce elements of type {self.element_type}")
        return known[0]

    def member(self, number: int, what: str) -> int:
        """OUT_OF_RANGE for a number that is no member's."""
        if number >= self.members:
            raise OutOfRangeError(f"{what} {number} of a collective among {self.members} members")
        return number

    def check(self, sent: int, received: int) -> None:
        """OUT_OF_RANGE when the ranges have fewer elements than are sent and received."""
        size = self.element_size
        for what, count, length in (
            ("sends", sent, self.send_length),
            ("receives", received, self.receive_length),
        ):
            if count * size > length:
                raise OutOfRangeError(
                    f"a collective {what} {count} elements of {size} bytes, but its buffer has {length} bytes"
                )


def run_collectives(stream: Stream, calls: Sequence[Call]) -> None:
    """Enqueues collectives, which NCCL may run together.

    OUT_OF_RANGE for ranges with too few elements and members that do not exist; else as NCCL says.
    """
    library = calls[0].collective.channel.library
    for call in calls:
        call.collective.channel.check()
    works = [_work(call) for call in calls]
    handle = int(stream.handle)
    library.call("ncclGroupStart")
    try:
        for work in works:
            for name, arguments in work.calls:
                library.call(name, *arguments, handle)
    finally:
        library.call("ncclGroupEnd")
    for work in works:
        if work.cleared is not None:
            address, length = work.cleared
            stream.kernels.fill(stream, address, length, 0, 1)


class _Work(NamedTuple):
    calls: list[tuple[str, tuple[int, ...]]]
    """Name and arguments, without the stream."""
    cleared: tuple[int, int] | None = None
    """A range (address, bytes) that is filled with zeros."""


def _work(call: Call) -> _Work:
    kind = _KINDS.get(call.kind)
    if kind is None:
        raise InvalidArgumentError(f"a collective of kind {call.kind}, which does not exist")
    return kind(call)


def _all_gather(call: Call) -> _Work:
    """Compilers state the elements sent up to 20240129, later those received: the ranges tell which."""
    stated, members = call.collective.element_count, call.members
    sent = call.send_length // call.element_size
    if stated not in (sent, sent * members):
        raise InvalidArgumentError(
            f"an all_gather of {stated} elements among {members} members sends a range of {sent} elements"
        )
    call.check(sent, sent * members)
    bytes_sent = sent * call.element_size
    return _Work([("ncclAllGather", (call.send, call.receive, bytes_sent, _BYTES, call.communicator))])


def _all_reduce(call: Call) -> _Work:
    count = call.collective.element_count
    call.check(count, count)
    return _Work([
        ("ncclAllReduce", (call.send, call.receive, count, call.reduced_type, call.reduction,
        call.communicator))
    ])  # fmt: skip


def _all_to_all(call: Call) -> _Work:
    count, members = call.collective.element_count, call.members
    call.check(count, count)
    if count % members:
        raise InvalidArgumentError(f"an all_to_all of {count} elements among {members} members")
    part = count // members * call.element_size
    calls: list[tuple[str, tuple[int, ...]]] = []
    for member in range(members):
        calls.append(("ncclSend", (call.send + member * part, part, _BYTES, member, call.communicator)))
        calls.append(("ncclRecv", (call.receive + member * part, part, _BYTES, member, call.communicator)))
    return _Work(calls)


def _broadcast(call: Call) -> _Work:
    count = call.collective.element_count
    root = call.member(call.collective.parameter, "root")
    call.check(count if call.collective.channel.rank == root else 0, count)
    length = count * call.element_size
    return _Work([("ncclBroadcast", (call.send, call.receive, length, _BYTES, root, call.communicator))])


def _reduce(call: Call) -> _Work:
    count = call.collective.element_count
    root = call.member(call.collective.parameter, "root")
    call.check(count, count if call.collective.channel.rank == root else 0)
    return _Work([
        ("ncclReduce", (call.send, call.receive, count, call.reduced_type, call.reduction, root,
        call.communicator))
    ])  # fmt: skip


def _reduce_scatter(call: Call) -> _Work:
    """The count may be of what is sent or of what is received, as with all_gather."""
    stated, members = call.collective.element_count, call.members
    received = call.receive_length // call.element_size
    if stated not in (received, received * members):
        raise InvalidArgumentError(
            f"a reduce_scatter of {stated} elements among {members} members receives a range of {received} "
            "elements"
        )
    call.check(received * members, received)
    return _Work([
        ("ncclReduceScatter", (call.send, call.receive, received, call.reduced_type, call.reduction,
        call.communicator))
    ])  # fmt: skip


def _send(call: Call) -> _Work:
    count = call.collective.element_count
    call.check(count, 0)
    peer = call.member(call.collective.parameter, "target")
    return _Work([("ncclSend", (call.send, count * call.element_size, _BYTES, peer, call.communicator))])


def _receive(call: Call) -> _Work:
    count = call.collective.element_count
    call.check(0, count)
    peer = call.member(call.collective.parameter, "source")
    return _Work([("ncclRecv", (call.receive, count * call.element_size, _BYTES, peer, call.communicator))])


def _send_receive(call: Call) -> _Work:
    """The parameter has the target in its low and the source in its high 16 bits. Without a source zeros are
    received."""
    count, parameter = call.collective.element_count, call.collective.parameter & 0xFFFFFFFF
    target, source = parameter & 0xFFFF, parameter >> 16
    length = count * call.element_size
    call.check(count if target != _NOBODY else 0, count)
    calls: list[tuple[str, tuple[int, ...]]] = []
    if target != _NOBODY:
        peer = call.member(target, "target")
        calls.append(("ncclSend", (call.send, length, _BYTES, peer, call.communicator)))
    if source == _NOBODY:
        return _Work(calls, (call.receive, length))
    peer = call.member(source, "source")
    calls.append(("ncclRecv", (call.receive, length, _BYTES, peer, call.communicator)))
    return _Work(calls)


_KINDS: Final[dict[int, Callable[[Call], _Work]]] = {
    0: _all_gather, 1: _all_reduce, 2: _all_to_all, 3: _broadcast, 4: _reduce, 5: _reduce_scatter, 6: _send,
    7: _receive, 8: _send_receive,
}  # fmt: skip
