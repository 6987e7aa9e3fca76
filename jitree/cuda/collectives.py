"""Submits collective operations as calls of NCCL on a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.hal.enums import BufferUsage, MemoryType

if TYPE_CHECKING:
    from jitree.cuda.channel import CudaChannel
    from jitree.cuda.stream import Stream
    from jitree.hal.command_buffer import Collective

_TYPES: Final = {0: (0, 1), 1: (1, 1), 4: (2, 4), 5: (3, 4), 6: (4, 8), 7: (5, 8), 8: (6, 2), 9: (7, 4),
                 10: (8, 8), 11: (9, 2)}  # fmt: skip
"""ABI element type: (ncclDataType_t, bytes). 11 is bfloat16, which upstream passes as float64."""
_MOVED_TYPES: Final = {2: 2, 3: 2, 12: 1, 13: 1, 14: 1, 15: 1}
"""Bytes of element types that NCCL moves but does not reduce: 16-bit integers and the newer compilers'
float8."""
_SI16: Final = 2
_UI16: Final = 3
_SI32: Final = 4
_UI32: Final = 5
"""ABI element types."""
_REDUCE: Final = 4
_REDUCE_SCATTER: Final = 5
_REDUCING_KINDS: Final = (1, _REDUCE, _REDUCE_SCATTER)
"""all_reduce, reduce, reduce_scatter"""
_DEVICE_LOCAL: Final = int(MemoryType.DEVICE_LOCAL)
_STORAGE: Final = int(BufferUsage.DEFAULT)
_BYTES: Final = 0
"""ncclInt8, for moving."""
_REDUCTIONS: Final = {1: 0, 2: 1, 3: 3, 4: 2, 5: 4}
"""ABI reduction (sum, product, minimum, maximum, average): ncclRedOp_t."""
_NO_MEMBER: Final = 0xFFFF
"""As source or target of a send_recv."""


class CollectiveCall(NamedTuple):
    """Binds a collective to the ranges of one run. Addresses are the device's, lengths bytes."""

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
    def needs_widening(self) -> bool:
        return self.kind in _REDUCING_KINDS and self.element_type in (_SI16, _UI16)

    @property
    def channel(self) -> CudaChannel:
        return cast("CudaChannel", self.collective.channel)

    @property
    def members(self) -> int:
        return self.channel.count

    @property
    def communicator(self) -> int:
        return self.channel.joined.handle

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


def run_collectives(stream: Stream, calls: Sequence[CollectiveCall]) -> None:
    """Enqueues collectives, which NCCL may run together.

    OUT_OF_RANGE for ranges with too few elements and members that do not exist; else as NCCL says.
    """
    library = calls[0].channel.library
    for call in calls:
        call.channel.check()
    widened = [_Widened(stream, call) for call in calls if call.needs_widening]
    wide = [*(call for call in calls if not call.needs_widening), *(one.wide for one in widened)]
    works = [(call.channel.joined, _work(call)) for call in wide]
    for one in widened:
        one.before()
    handle = int(stream.handle)
    channel = calls[0].channel
    with channel.watch.watched(frozenset(call.channel.joined for call in calls if call.members > 1)):
        library.call("ncclGroupStart")
        try:
            for joined, work in works:
                for name, arguments in work.calls:
                    joined.begin(name, arguments)
                    library.call(name, *arguments, handle)
        finally:
            library.call("ncclGroupEnd")
    for one in widened:
        one.after()
    for _, work in works:
        if work.cleared is not None:
            address, length = work.cleared
            stream.kernels.fill(stream, address, length, 0, 1)


class _Widened:
    """Reduces 16-bit integers, which NCCL does not have, as 32-bit ones: the low halves of its sums and
    products are right, and its other results fit."""

    def __init__(self, stream: Stream, call: CollectiveCall) -> None:
        self._stream = stream
        self._call = call
        self._sign = int(call.element_type == _SI16)
        self._sent = call.send_length // 2
        self._received = call.receive_length // 2
        if call.kind != _REDUCE_SCATTER:  # what lies after it is not the collective's
            self._received = min(self._received, call.collective.element_count)
        allocator = stream.allocator
        assert allocator is not None
        # What comes back is used again in the order of the stream only.
        self._send = allocator.allocate(_DEVICE_LOCAL, _STORAGE, 4 * self._sent)
        self._receive = allocator.allocate(_DEVICE_LOCAL, _STORAGE, 4 * self._received)
        operation = call.collective.operation & 0xFFFF | (_SI32 if self._sign else _UI32) << 16
        self.wide = CollectiveCall(
            call.collective._replace(operation=operation), self._send.address, self._receive.address,
            4 * self._sent, 4 * self._received,
        )  # fmt: skip

    def before(self) -> None:
        self._stream.kernels.widen(self._stream, self._send.address, self._call.send, self._sent, self._sign)

    def after(self) -> None:
        call = self._call
        if call.kind != _REDUCE or call.collective.parameter == call.channel.rank:
            self._stream.kernels.narrow(self._stream, call.receive, self._receive.address, self._received)


class _Work(NamedTuple):
    calls: list[tuple[str, tuple[int, ...]]]
    """Name and arguments, without the stream."""
    cleared: tuple[int, int] | None = None
    """A range (address, bytes) that is filled with zeros."""


def _work(call: CollectiveCall) -> _Work:
    kind = _KINDS.get(call.kind)
    if kind is None:
        raise InvalidArgumentError(f"a collective of kind {call.kind}, which does not exist")
    return kind(call)


def _all_gather(call: CollectiveCall) -> _Work:
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


def _all_reduce(call: CollectiveCall) -> _Work:
    count = call.collective.element_count
    call.check(count, count)
    return _Work([
        ("ncclAllReduce", (call.send, call.receive, count, call.reduced_type, call.reduction,
        call.communicator))
    ])  # fmt: skip


def _all_to_all(call: CollectiveCall) -> _Work:
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


def _broadcast(call: CollectiveCall) -> _Work:
    count = call.collective.element_count
    root = call.member(call.collective.parameter, "root")
    call.check(count if call.channel.rank == root else 0, count)
    length = count * call.element_size
    return _Work([("ncclBroadcast", (call.send, call.receive, length, _BYTES, root, call.communicator))])


def _reduce(call: CollectiveCall) -> _Work:
    count = call.collective.element_count
    root = call.member(call.collective.parameter, "root")
    call.check(count, count if call.channel.rank == root else 0)
    return _Work([
        ("ncclReduce", (call.send, call.receive, count, call.reduced_type, call.reduction, root,
        call.communicator))
    ])  # fmt: skip


def _reduce_scatter(call: CollectiveCall) -> _Work:
    """Takes a count of what is sent or of what is received. As all_gather does."""
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


def _send(call: CollectiveCall) -> _Work:
    count = call.collective.element_count
    call.check(count, 0)
    peer = call.member(call.collective.parameter, "target")
    return _Work([("ncclSend", (call.send, count * call.element_size, _BYTES, peer, call.communicator))])


def _receive(call: CollectiveCall) -> _Work:
    count = call.collective.element_count
    call.check(0, count)
    peer = call.member(call.collective.parameter, "source")
    return _Work([("ncclRecv", (call.receive, count * call.element_size, _BYTES, peer, call.communicator))])


def _send_receive(call: CollectiveCall) -> _Work:
    """Sends to the parameter's low 16 bits, receives from its high ones. Without a source zeros are
    received."""
    count, parameter = call.collective.element_count, call.collective.parameter & 0xFFFFFFFF
    target, source = parameter & 0xFFFF, parameter >> 16
    length = count * call.element_size
    call.check(count if target != _NO_MEMBER else 0, count)
    calls: list[tuple[str, tuple[int, ...]]] = []
    if target != _NO_MEMBER:
        peer = call.member(target, "target")
        calls.append(("ncclSend", (call.send, length, _BYTES, peer, call.communicator)))
    if source == _NO_MEMBER:
        return _Work(calls, (call.receive, length))
    peer = call.member(source, "source")
    calls.append(("ncclRecv", (call.receive, length, _BYTES, peer, call.communicator)))
    return _Work(calls)


_KINDS: Final[dict[int, Callable[[CollectiveCall], _Work]]] = {
    0: _all_gather, 1: _all_reduce, 2: _all_to_all, 3: _broadcast, 4: _reduce, 5: _reduce_scatter, 6: _send,
    7: _receive, 8: _send_receive,
}  # fmt: skip
