"""Performs collective operations on host memory: exchanges between members, sums in numpy.

Members reduce in the order of their ranks, so all of them get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.hal.command_layout import KIND_BARRIER
from jitree.hal.command_list import KIND_COLLECTIVE
from jitree.hal.groups.channel import LocalChannel
from jitree.hal.stepwise import memory

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.hal.command_buffer import Collective
    from jitree.hal.command_list import BoundCommands
    from jitree.hal.groups.rendezvous import Part

_SIZES: Final = {2: 2, 3: 2, 4: 4, 5: 4, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8, 11: 2}
"""Bytes by ABI element type; 0, 1 and the float8 types (12 to 15) have one."""
_LAST_TYPE: Final = 15
_TYPES: Final = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_BFLOAT16: Final = 11
_NO_MEMBER: Final = 0xFFFF
"""The source or target of a send_recv that has none."""
_MOVE: Final = 6
"""The operation that sends to one member, which receives."""
_OPERAND: Final = 1
_NUMBER: Final = 11
"""Places in a row: of its first operand, and of the number among the list's collectives."""
_SMALL_BYTES: Final = 1 << 14
"""Arrays up to that are sent whole, in one step."""


class LocalCall(NamedTuple):
    """Performs a collective of one run."""

    collective: Collective
    send: Bytes
    receive: Bytes

    @property
    def channel(self) -> LocalChannel:
        return cast("LocalChannel", self.collective.channel)

    @property
    def kind(self) -> int:
        return self.collective.operation & 0xFF

    @property
    def size(self) -> int:
        """Bytes of an element."""
        number = self.collective.operation >> 16
        if number > _LAST_TYPE:
            raise UnimplementedError(f"collectives have no element type {number}")
        return _SIZES.get(number, 1)

    def sent(self, count: int) -> Bytes:
        return self._part(self.send, "sends", count)

    def received(self, count: int) -> Bytes:
        return self._part(self.receive, "receives", count)

    def _part(self, data: Bytes, what: str, count: int) -> Bytes:
        if count * self.size > data.size:
            raise OutOfRangeError(
                f"a collective {what} {count} elements of {self.size} bytes, but its buffer has {data.size} "
                "bytes"
            )
        return data[: count * self.size]

    def member(self, number: int, what: str) -> int:
        """OUT_OF_RANGE for a number that is no member's."""
        if not 0 <= number < self.channel.count:
            raise OutOfRangeError(f"{what} {number} of a collective among {self.channel.count} members")
        return number

    def exchange(self, sent: Sequence[Part], received: Sequence[Part]) -> None:
        operation, root, count = self.collective.operation, self.collective.parameter, self.collective[3]
        self.channel.exchange((operation | (root & 0xFFFF) << 32, count), sent, received)

    def everyone(self, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """Sends part i to member i, and receives part i from it. All members wait for all others, also where
        nothing is to be moved."""
        self.exchange([*enumerate(sent)], [*enumerate(received)])


def execute_with_collectives(
    execute: Callable[[int, BoundCommands], None], queue_affinity: int, bound: BoundCommands
) -> None:
    """Executes a list, whose collectives wait for all members. ``execute`` runs the rows between them."""
    commands = bound.commands
    first, moves = 0, list[LocalCall]()
    rows = list(commands.decoded_rows())
    for number, row in enumerate([*rows, (KIND_BARRIER,)]):
        kind = row[0]
        if kind == KIND_COLLECTIVE:
            if first < number:
                execute(queue_affinity, bound._replace(commands=commands.part(range(first, number))))
            first = number + 1
            call = call_of(bound, row)
            if call.kind in _MOVES:
                moves.append(call)
            else:
                _perform(call)
        elif kind == KIND_BARRIER:
            _move(moves)
            moves.clear()
    if first < len(rows):
        execute(queue_affinity, bound._replace(commands=commands.part(range(first, len(rows)))))


def call_of(bound: BoundCommands, row: Sequence[int]) -> LocalCall:
    """The collective of a row."""
    operands = range(row[_OPERAND], row[_OPERAND] + 2)
    send, receive = (memory((bound.addresses[item], bound.lengths[item]), bound) for item in operands)
    return LocalCall(bound.commands.collectives[row[_NUMBER]], send, receive)


def check_channel(channel: object) -> None:
    if not isinstance(channel, LocalChannel):
        raise InvalidArgumentError(
            f"a channel of type {type(channel).__name__} cannot be used by a local device"
        )


def _move(calls: Sequence[LocalCall]) -> None:
    """What goes from one member to another, all at one time: members may name each other in any order."""
    for channel in dict.fromkeys(call.channel for call in calls):
        sent, received = list[Any](), list[Any]()
        own = [call for call in calls if call.channel is channel]
        for call in own:
            _MOVES[call.kind](call, sent, received)
        channel.exchange((_MOVE, 0), sent, received)


def _send(call: LocalCall, sent: list[Part], received: list[Part]) -> None:
    data = call.sent(call.collective.element_count)
    sent.append((call.member(call.collective.parameter, "target"), data))


def _receive(call: LocalCall, sent: list[Part], received: list[Part]) -> None:
    data = call.received(call.collective.element_count)
    received.append((call.member(call.collective.parameter, "source"), data))


def _send_receive(call: LocalCall, sent: list[Part], received: list[Part]) -> None:
    """Sends and receives: the parameter has the target low, the source high, in 16 bits. Without a source
    zeros are received."""
    count, parameter = call.collective.element_count, call.collective.parameter & 0xFFFFFFFF
    target, source = parameter & 0xFFFF, parameter >> 16
    if target != _NO_MEMBER:
        sent.append((call.member(target, "target"), _apart(call.sent(count), call.receive)))
    if source != _NO_MEMBER:
        received.append((call.member(source, "source"), call.received(count)))
    else:
        call.received(count)[...] = 0


_MOVES: Final = {6: _send, 7: _receive, 8: _send_receive}


def _perform(call: LocalCall) -> None:
    kind = _KINDS.get(call.kind)
    if kind is None:
        raise InvalidArgumentError(f"a collective of kind {call.kind}, which does not exist")
    kind(call)


def _all_gather(call: LocalCall) -> None:
    """Compilers state the elements sent up to 20240129, later those received: the ranges tell which."""
    stated, members = call.collective.element_count, call.channel.count
    count = call.send.size // call.size
    if stated not in (count, count * members):
        raise InvalidArgumentError(
            f"an all_gather of {stated} elements among {members} members sends a range of {count} elements"
        )
    sent = _apart(call.sent(count), call.receive)
    call.everyone([sent] * members, _parts(call.received(count * members), members))


def _all_to_all(call: LocalCall) -> None:
    count, members = call.collective.element_count, call.channel.count
    if count % members:
        raise InvalidArgumentError(f"an all_to_all of {count} elements among {members} members")
    sent = _apart(call.sent(count), call.receive)
    call.everyone(_parts(sent, members), _parts(call.received(count), members))


def _broadcast(call: LocalCall) -> None:
    count, members = call.collective.element_count, range(call.channel.count)
    root = call.member(call.collective.parameter, "root")
    target, nothing = call.received(count), np.empty(0, np.uint8)
    source = _apart(call.sent(count), target) if call.channel.rank == root else nothing
    call.everyone([source for _ in members], [target if member == root else nothing for member in members])


def _all_reduce(call: LocalCall) -> None:
    count = call.collective.element_count
    call.received(count)[...] = _reduced_everywhere(call, call.sent(count))


def _reduced_everywhere(call: LocalCall, sent: Bytes) -> Bytes:
    """Large arrays are reduced in parts, one at each member, and gathered."""
    members, reduce = call.channel.count, _reduction(call)
    if sent.size <= _SMALL_BYTES or members == 1:
        return reduce(_gathered(call, [sent] * members))
    count = sent.size // call.size
    bounds = [count * member // members * call.size for member in range(members + 1)]
    cuts = [slice(*pair) for pair in pairwise(bounds)]
    own = reduce(_gathered(call, [sent[cut] for cut in cuts]))
    result = np.empty_like(sent)
    call.everyone([own] * members, [result[cut] for cut in cuts])
    return result


def _reduce(call: LocalCall) -> None:
    count = call.collective.element_count
    root = call.member(call.collective.parameter, "root")
    nothing = np.empty(0, np.uint8)
    here, members = call.channel.rank == root, range(call.channel.count)
    sent = call.sent(count)
    found = np.empty((len(members), sent.size if here else 0), np.uint8)
    call.everyone([sent if member == root else nothing for member in members], list(found))
    if here:
        call.received(count)[...] = _reduction(call)(found)


def _reduce_scatter(call: LocalCall) -> None:
    """Reduces and scatters, with a count of what is sent or received, as all_gather."""
    stated, members = call.collective.element_count, call.channel.count
    count = call.receive.size // call.size
    if stated not in (count, count * members):
        raise InvalidArgumentError(
            f"a reduce_scatter of {stated} elements among {members} members receives a range of {count} "
            "elements"
        )
    found = _gathered(call, _parts(call.sent(count * members), members))
    call.received(count)[...] = _reduction(call)(found)


_KINDS: Final[dict[int, Callable[[LocalCall], None]]] = {
    0: _all_gather, 1: _all_reduce, 2: _all_to_all, 3: _broadcast, 4: _reduce, 5: _reduce_scatter,
}  # fmt: skip


def _gathered(call: LocalCall, sent: Sequence[Bytes]) -> Bytes:
    """What the members send to this one: a row of each."""
    found = np.empty((len(sent), sent[call.channel.rank].size), np.uint8)
    call.everyone(sent, list(found))
    return found


def _reduction(call: LocalCall) -> Callable[[Bytes], Bytes]:
    """Makes one row of many. UNIMPLEMENTED for types that are moved only."""
    number, reduction = call.collective.operation >> 16, call.collective.operation >> 8 & 0xFF
    if number > _BFLOAT16:
        raise UnimplementedError(f"elements of type {number} are not reduced")
    if not 1 <= reduction <= _AVERAGE:
        raise InvalidArgumentError(f"a collective with reduction {reduction}, which does not exist")
    if number == _BFLOAT16:
        import ml_dtypes

        kind = np.dtype(ml_dtypes.bfloat16)
    else:
        kind = np.dtype(_TYPES[number])
    wide = np.dtype(np.float32) if kind.itemsize == 2 and kind.kind not in "iu" else kind

    def reduce(rows: Bytes) -> Bytes:
        result = _reduce_rows(rows.view(kind).astype(wide, copy=False), reduction)
        return cast("Bytes", result.astype(kind).view(np.uint8))

    return reduce


_AVERAGE: Final = 5


def _reduce_rows(rows: Any, reduction: int) -> Any:
    """Halves are reduced as f32; sums of integers wrap."""
    if reduction == _AVERAGE:
        if rows.dtype.kind == "f":
            return _reduce_rows(rows, 1) / rows.dtype.type(len(rows))
        total = sum(row.astype(object) for row in rows)
        return np.array([int(abs(one) // len(rows)) * (1 if one >= 0 else -1) for one in total], rows.dtype)
    function: Any = (np.add, np.multiply, np.minimum, np.maximum)[reduction - 1]
    with np.errstate(all="ignore"):
        result = rows[0].copy()
        for row in rows[1:]:
            function(result, row, out=result)
    return result


def _parts(data: Bytes, members: int) -> list[Bytes]:
    return list(data.reshape(members, -1)) if data.size else [data] * members


def _apart(data: Bytes, other: Bytes) -> Bytes:
    """A copy where what is sent and received share memory."""
    return data.copy() if np.may_share_memory(data, other) else data
