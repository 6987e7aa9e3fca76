"""Records of machine code of calls, by name of their fields."""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    AHEAD,
    ARGUMENT,
    AWAITED,
    CALL,
    CONVERSION,
    DTYPE,
    EXCHANGE,
    EXPORTS,
    NDARRAY,
    OWNERS,
    PYTHON,
    RESULT,
    SIZES,
    TENSOR,
    VERSIONED,
)
from jitree.codegen.record import MemoryRecord
from jitree.modules.hal.native.records import Entry, HandlePoolRecord, State
from jitree.regs.layout import FRAME, GATE


class Python(MemoryRecord, layout=PYTHON):
    pass


class Owners(MemoryRecord, layout=OWNERS):
    handle_pool: HandlePoolRecord
    ahead: Ahead


class Ahead(MemoryRecord, layout=AHEAD):
    view: Entry
    copy: Entry


class Conversion(MemoryRecord, layout=CONVERSION):
    pass


class AwaitedRecord(MemoryRecord, layout=AWAITED):
    pass


class CallRecord(MemoryRecord, layout=CALL):
    owners: Owners
    gate: GateRecord
    state: State
    lent: Entry
    shared: Entry
    sizes: Sizes


class Dtype(MemoryRecord, layout=DTYPE):
    pass


class Exchange(MemoryRecord, layout=EXCHANGE):
    pass


class Exports(MemoryRecord, layout=EXPORTS):
    python: Python


class Tensor(MemoryRecord, layout=TENSOR):
    pass


class VersionedTensor(MemoryRecord, layout=VERSIONED):
    pass


class Argument(MemoryRecord, layout=ARGUMENT):
    pass


class Ndarray(MemoryRecord, layout=NDARRAY):
    pass


class Sizes(MemoryRecord, layout=SIZES):
    pass


class Result(MemoryRecord, layout=RESULT):
    ahead: Ahead


class GateRecord(MemoryRecord, layout=GATE):
    pass


class FrameRecord(MemoryRecord, layout=FRAME):
    pass
