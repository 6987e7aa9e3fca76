"""Makes the record by which machine code calls a function (:mod:`jitree.api.calls.native.function`).

The first calls of a function take the slow path (``Function.call_slowly``), which handles everything.
Then, when the context can make direct calls, the function gets a CallRecord. Machine code knows arguments in
their usual form: numbers, device arrays that fit, numpy arrays of the declared type. Of a call with any other
Python packs the arguments, or says what is wrong.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jitree.api.calls.declaration import DEPENDS, WORKSPACE, Parameter, storage_names
from jitree.api.calls.native.acceptance import Acceptance, LearntArrays, NotingPacker, numbers_of
from jitree.api.calls.native.cpython_layout import METH_KEYWORDS, METH_NOARGS, method_code, new_capsule
from jitree.api.calls.native.layout import (
    MAXIMUM_RANK,
    MOST_SHARED,
    PASS_ARRAY,
    PASS_BF16,
    PASS_BITS,
    PASS_CONSUMED,
    PASS_F16,
    PASS_F32,
    PASS_F64,
    PASS_I32,
    PASS_I64,
    PASS_REFERENCE,
    Argument,
    CallRecord,
    Result,
)
from jitree.api.calls.native.python_fallback import Rest
from jitree.api.calls.packing import narrow_integer, number_unpacker
from jitree.api.calls.transfers import wrap_in_place
from jitree.api.function import Function
from jitree.base.dlpack_names import tensor_type
from jitree.codegen.record import MemoryRecord, size_of, words_of
from jitree.dispatch.function import BytecodeFunction
from jitree.hal.enums import NOTHING, READING
from jitree.hal.heap import HeapAllocator
from jitree.modules.hal.native.handle_pool import HandlePool
from jitree.regs.layout import FrameRecord
from jitree.types import BY_CODE, BY_NAME, CLASS_INTEGER, CLASS_UNSIGNED, is_packed
from jitree.vmfb.cconv import TYPE_NAMES

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.calls.declaration import DeclaredTensor, Signature
    from jitree.api.calls.native.cpython_layout import CInterface
    from jitree.api.calls.native.handle_owners import Keeper
    from jitree.dispatch.engine import EngineEntry
    from jitree.hal.buffer import Buffer
    from jitree.hal.device import Device
    from jitree.regs.handles import HandleTable
    from jitree.regs.machine import Machine
    from jitree.types import ElementType
    from jitree.vmfb.cconv import Item, RegisterSlot

_ARGUMENT: Final = words_of(Argument)

_KINDS: Final = {"i": PASS_I32, "I": PASS_I64, "f": PASS_F32, "F": PASS_F64, "r": PASS_ARRAY}
_FRAME: Final = words_of(FrameRecord)
_BOOLEAN: Final = BY_NAME["i1"]
_FEWEST_SHARING: Final = 2
"""Arrays that a function takes, if they are to share an upload."""
_ANY_ARRAY: Final = (TYPE_NAMES["r"], "!hal.buffer_view")
_ANY_SIZES: Final = [-1] * MAXIMUM_RANK
_NARROW: Final = {"f16": PASS_F16, "bf16": PASS_BF16}


class Unsuitable(Exception):
    """The function has an argument that only the slow path handles."""


class DirectCall:
    """A CallRecord, and what it refers to."""

    __slots__ = ("_kept", "make", "packers", "record", "run", "words")

    def __init__(
        self,
        words: array[int],
        interface: CInterface,
        packers: tuple[Callable[[Any], object], ...],
        kept: object,
    ) -> None:
        self._kept = kept
        self.make = interface.make
        """Calls the function: is given the DirectCall and the arguments. Gives the DirectCall if that takes
        Python."""
        self.packers = packers
        """What packs arguments for ``run``: numpy arrays of the declared type are left as they are."""
        self.run = interface.run
        """As ``make``, of what Python has packed of all arguments. Gives NotImplemented where machine code
        cannot run it now."""
        self.words = words
        """The record."""
        self.record = new_capsule(words.buffer_info()[0])
        """A capsule of its address."""


def direct_call(
    function: Function,
    vm_function: BytecodeFunction,
    entry: EngineEntry,
    interface: CInterface,
    keeper: Keeper,
) -> DirectCall:
    """Calls of a function. The lock must be held, and the machine of direct calls must be ready or new.
    Unsuitable if there is an argument that only the slow path handles."""
    invoker, lock = function.invoker, function.invoker.lock
    signature, convention = function.signature, vm_function.convention
    machine = invoker.direct_machine(entry)
    frame, state = machine.host_words(vm_function.host)
    invoker.settle()
    rows = _Rows(function, vm_function, keeper, frame, interface)
    count = len(signature.arguments)
    extents = array("q", bytes(16 * count))
    rest = Rest(function, vm_function, entry, machine, rows.noting, rows.rewrites, extents)
    slots, items = vm_function.argument_slots[:count], convention.arguments[:count]
    arguments = rows.arguments(tuple(zip(signature.arguments, items, slots, strict=True)))
    results = rows.results(zip(signature.results, convention.results, vm_function.result_slots, strict=True))
    addresses = {
        "python": interface.record, "gate": invoker.gate_address, "owners": keeper.record,
        "state": machine.state_address, "frame": machine.frames_address, "refs": frame[_FRAME.refs],
        "run": ctypes.cast(entry.run, ctypes.c_void_p).value or 0,  # type: ignore[arg-type]
        "ref_count": vm_function.host.ref_count,
        "argument_count": count, "arguments": arguments.buffer_info()[0],
        "result_count": len(signature.results), "results": results.buffer_info()[0],
        "signal": rows.signal() if signature.fences else 0, "rewrites": int(rows.rewrites),
        "staging": rows.staging(arguments),
        "workspace": rows.workspace, "sizes": rows.sizes,
        "uploads": int(rows.uploads), "last_wait": rows.last_wait(vm_function), "beside": _beside(signature),
        "extents": extents.buffer_info()[0] if count else 0,
        "told": invoker.table.told.buffer_info()[0],
        "acquire_code": method_code(lock.acquire, METH_KEYWORDS),
        "release_code": method_code(lock.release, METH_NOARGS),
    }  # fmt: skip
    objects = _objects(function, machine, rest)
    maker = interface.row_maker and interface.row_maker(function, vm_function, keeper, rest)
    if maker is not None:
        objects |= {"wrap": maker.make, "take_reference": maker.take}
        addresses["rows"] = maker.address
    words = array("q", bytes(size_of(CallRecord)))
    fill(words, CallRecord, addresses)
    fill(words, CallRecord, {field: id(value) for field, value in objects.items()})
    fill(words, CallRecord, {"begun_frame": frame, "begun_state": state})
    packers = function.packers if function.known_sizes is not None else tuple(rows.packers)
    return DirectCall(
        words, interface, packers, (objects, arguments, results, rows.kept, extents, keeper, entry, maker)
    )


def _objects(function: Function, machine: Machine, rest: Rest) -> dict[str, object]:
    """Fields of the record that are addresses of Python's objects."""
    invoker, table, lock = function.invoker, function.invoker.table, function.invoker.lock
    objects = {
        "device": function.device, "deferred": table.deferred, "order": function.order,
        "lock": lock, "acquire": lock.acquire, "release": lock.release, "at_once": (False,),
        "wait_at_gate": invoker.wait_at_gate, "require_faultless": invoker.require_faultless,
        "drain": partial(table.drain, machine.state), "drain_deferred": table.drain_deferred,
        "go_on": rest.go_on, "set_aside": rest.set_aside, "when_reached": rest.when_reached,
        "give_up": rest.give_up, "give_up_work": rest.give_up_work, "take_reference": rest.take_reference,
        "supply": partial(_supply, table), "wrap": table.wrap,
        "wait_for": rest.wait_for, "pending": rest.pending,
        "tell": rest.tell, "pending_submission": rest.pending_submission,
        "fence": None, "keep_lent": table.object,
        "wait_for_submission": rest.wait_for_submission,
    }  # fmt: skip
    if imports_any(function.device):
        objects["hold"] = partial(_hold, table, function.device)
    return objects


def _beside(signature: Signature) -> int:
    """What pending calls may do to memory while such calls begin."""
    return NOTHING if any(parameter.overwritten for parameter in signature.arguments) else READING


def imports_any(device: Device) -> bool:
    """Whether a device uses whatever memory of the host as its own."""
    return type(device.device_allocator).import_host is HeapAllocator.import_host


def _hold(table: HandleTable, device: Device, array: npt.NDArray[Any]) -> int:
    """An entry for the memory of a numpy array, which it keeps; machine code fills it in."""
    return table.reserve_later(partial(_buffer_over, array, device))


def _buffer_over(array: npt.NDArray[Any], device: Device, table: HandleTable, handle: int) -> Buffer:
    view = wrap_in_place(array, device)
    assert view is not None  # machine code has looked
    return view.buffer


def _supply(table: HandleTable, size: int) -> bool:
    """Sees to it that machine code finds entries, and memory of a size. Whether it can."""
    handle_pool = table.handle_pool
    if handle_pool is None:
        return False
    assert isinstance(handle_pool, HandlePool)
    handle_pool.supply_argument(size)
    return True


Row = tuple["Parameter", "Item", "RegisterSlot"]
Fields = Mapping[str, int | Sequence[int]]
"""The fields of a record: numbers by name."""


class _Rows:
    """Makes the Argument and Result records of one function; ``kept`` is what they refer to."""

    def __init__(
        self,
        function: Function,
        vm_function: BytecodeFunction,
        keeper: Keeper,
        frame: memoryview,
        interface: CInterface,
    ) -> None:
        self.kept: list[object] = []
        self.packers = list(function.packers)
        """What packs arguments for machine code."""
        self.noting: list[NotingPacker] = []
        self.workspace = 0  # the address of its register
        self.sizes = 0  # the address of what is known of its size
        self._slots = vm_function.argument_slots
        self._function = function
        self._keeper = keeper
        self._interface = interface
        self._values, self._refs = frame[_FRAME.values], frame[_FRAME.refs]
        self._is_local = isinstance(function.device.device_allocator, HeapAllocator)
        self.rewrites = not self._is_local
        """Whether the program may write to arrays that the host has copies of."""
        exchange = function.device.array_exchange
        self.uploads = exchange is None or not exchange.explicit_transfers
        """Whether elements of the host go to the device without being told to."""
        self._copies = copies_to(function.device, function.invoker.table)
        self._reads_ahead = self._copies and not self._is_local and len(function.devices) == 1

    def arguments(self, rows: Sequence[Row]) -> array[int]:
        storage = storage_names(self._function.signature)
        names = [row[0].name for row in rows]
        fields = []
        for position, row in enumerate(rows):
            name = WORKSPACE if row[0].workspace is not None and WORKSPACE not in names else names[position]
            known = {"position": position, "name": self._keep(sys.intern(name))}
            if name in storage:
                known["storage"] = 1 + storage.index(name)
                pairs = self._function.updates_in_place
                known["in_place"] = sum(
                    1 << other for place, other in pairs if place == position and other < 63
                )
            fields.append(known | self._argument(position, *row))
        return records(Argument, fields)

    def results(self, rows: Iterable[Row]) -> array[int]:
        return records(Result, [self._result(*row) for row in rows])

    def signal(self) -> int:
        """Locates the register of the function's last fence. Unsuitable for devices whose fences machine code
        does not make."""
        if not self._copies:
            raise Unsuitable
        return self._refs + 8 * self._slots[-1][1]

    def last_wait(self, vm_function: BytecodeFunction) -> int:
        """Locates the operands of the last wait, which the host makes; 0 = none. Only one device that works
        by itself lets it wait."""
        if not self._reads_ahead or self._function.signature.fences:
            return 0
        from jitree.api.calls.last_wait import last_wait  # of programs for a device that works by itself

        return last_wait(vm_function)

    def staging(self, arguments: array[int]) -> int:
        """Locates memory that joins small arrays of a call, else 0. 0 is where that gains nothing."""
        first, width = _ARGUMENT.dtype, size_of(Argument) // 8
        count = sum(map(bool, arguments[first::width]))
        if self._is_local or count < _FEWEST_SHARING:
            return 0
        self.kept.append(memory := array("b", bytes(MOST_SHARED)))
        return memory.buffer_info()[0]

    def _keep(self, value: object) -> int:
        """The address of an object that lasts as long as the records."""
        self.kept.append(value)
        return id(value)

    def _register(self, item: Item, slot: RegisterSlot) -> dict[str, Any]:
        kind, place = _KINDS[str(item)], slot[1]
        address = self._refs + 8 * place if kind == PASS_ARRAY else self._values + 4 * place
        return {"kind": kind, "place": address}

    def _argument(
        self, position: int, parameter: Parameter, item: Item, slot: RegisterSlot
    ) -> dict[str, Any]:
        register = self._register(item, slot)
        if register["kind"] != PASS_ARRAY:
            return register | self._number(parameter, item, register["kind"])
        if parameter.workspace == DEPENDS:
            self.sizes = self._known_sizes()
        self.workspace = self.workspace if parameter.workspace is None else register["place"]
        is_told = parameter.written and self._function.signature.fences
        if parameter.tensor is None or is_told:
            fields = {"kind": PASS_REFERENCE} | self._reference(position, parameter)
            return (
                register
                | fields
                | (self._noted(parameter, item) if is_told or parameter.workspace is not None else {})
            )
        if parameter.consumed:
            register["kind"] = PASS_CONSUMED
        return register | self._array(position, parameter, parameter.tensor)

    def _known_sizes(self) -> int:
        """The address of sizes that calls must have; 0 where the compiler does not say them. Unsuitable if
        they depend on what machine code does not look at."""
        sizes = self._function.known_sizes
        if self._function.signature.measure is None or sizes is None:
            return 0
        if sizes.address == 0:
            raise Unsuitable
        self._keep(sizes)
        return sizes.address

    def _number(self, parameter: Parameter, item: Item, kind: int) -> dict[str, Any]:
        from jitree.api.calls.number_packing import FloatBitsPacker, IntegerPacker, number_packer

        packer = number_packer(parameter, str(item))
        convert = {"convert": self._keep(packer.pack)}
        if isinstance(packer, IntegerPacker):
            low, high = packer.unchanged
            return convert | {"low": low, "high": high}
        if isinstance(packer, FloatBitsPacker):
            if kind != PASS_I32:
                raise Unsuitable
            return convert | {"kind": _NARROW.get(parameter.type, PASS_BITS)}
        return convert

    def _reference(self, position: int, parameter: Parameter) -> dict[str, Any]:
        """Arrays of any type; Python packs lists, and all else."""
        if not self._copies or parameter.type not in _ANY_ARRAY or parameter.workspace is not None:
            return {}
        memory = LearntArrays(self._function.device, self._keeper, self._interface.producers)
        self.packers[position] = partial(memory.packed, self._function.packers[position])
        return {"is_array": 1, "dimensions": _ANY_SIZES}

    def _noted(self, parameter: Parameter, item: Item) -> dict[str, Any]:
        """Memory for intermediate results, or an array whose users are told of writes."""
        self.noting.append(packer := NotingPacker(self._function, self._keeper, parameter, item))
        least = max(0, parameter.workspace or 0)
        return {"convert": self._keep(packer.pack), "noted": packer.noted.buffer_info()[0], "low": least}

    def _array(self, position: int, parameter: Parameter, tensor: DeclaredTensor) -> dict[str, Any]:
        memory = LearntArrays(self._function.device, self._keeper, self._interface.producers)
        acceptance = Acceptance(self._function, memory, parameter, tensor)
        fields = {"marker": self._keep(acceptance.marker), "accept": self._keep(acceptance.accept)}
        row, shape = tensor.element_type, tensor.shape
        if row is None or is_packed(row):
            return fields
        self._interface.learn(row)
        if not self._copies or len(shape) > MAXIMUM_RANK:
            return fields
        self.packers[position] = acceptance.pack
        is_written = parameter.consumed or parameter.storage_of is not None
        return fields | {
            "dimensions": [-1 if size is None else size for size in shape],
            "dtype": self._keep(row.dtype), "item_size": row.dtype.itemsize, "element_type": row.code,
            "tensor_type": tensor_type(row) or 0, "rank": len(shape), "is_written": int(is_written),
            **numbers_of(row), **self._alike(row),
        }  # fmt: skip

    def _alike(self, row: ElementType) -> Fields:
        """Of what integers of other kinds there may be arrays: unsigned ones, and booleans as bytes, where no
        sign is declared."""
        if row.numerical_class != CLASS_INTEGER:
            return {}
        unsigned = BY_CODE[CLASS_UNSIGNED << 24 | row.bits]
        fields = {
            "unsigned_dtype": self._keep(unsigned.dtype), "unsigned_tensor": tensor_type(unsigned) or 0
        }  # fmt: skip
        if row.bits == _BOOLEAN.bits:
            fields["boolean_dtype"] = self._keep(_BOOLEAN.dtype)
        return fields

    def _result(self, parameter: Parameter, item: Item, slot: RegisterSlot) -> dict[str, Any]:
        register = self._register(item, slot)
        if register["kind"] == PASS_ARRAY:
            tensor = parameter.tensor
            if tensor is not None and tensor.element_type is not None:
                self._interface.learn(tensor.element_type)
            if len(self._function.devices) > 1 or self._interface.row_maker is not None:
                return register  # Python looks whose memory it is, or makes the array
            kind = self._function.invoker.table.ref_types.lookup("hal.buffer_view")
            return register | {"view_kind": kind, "ahead": self._keeper.ahead() if self._reads_ahead else 0}
        if register["kind"] == PASS_I32 and parameter.type in _NARROW:
            return register | {"kind": _NARROW[parameter.type]}
        bits = narrow_integer(parameter.type)
        if register["kind"] == PASS_I32 and bits != 0:
            return register | {"unused": 32 - bits}
        unpack = number_unpacker(parameter.type)
        return register | {"convert": 0 if unpack is None else self._keep(unpack)}


def copies_to(device: Device, table: HandleTable) -> bool:
    """Whether machine code copies numpy arrays to a device: the pools have its memory."""
    handle_pool = table.handle_pool
    if isinstance(handle_pool, HandlePool) and handle_pool.has_timeline:
        return handle_pool.serves(device)
    return isinstance(device.device_allocator, HeapAllocator)


def records(record: type[MemoryRecord], rows: Sequence[Fields]) -> array[int]:
    """One after the other, each with the values of its fields."""
    words = array("q", bytes(max(8, size_of(record) * len(rows))))
    for index, row in enumerate(rows):
        fill(words, record, row, index * size_of(record) // 8)
    return words


def fill(words: array[int], record: type[MemoryRecord], values: Fields, start: int = 0) -> None:
    """Writes fields of the record that begins at word ``start``."""
    named = words_of(record)
    for field, value in values.items():
        place = start + getattr(named, field)
        if isinstance(value, int):
            words[place] = value
        else:
            words[place : place + len(value)] = array("q", value)
