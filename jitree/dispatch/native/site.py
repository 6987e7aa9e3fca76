"""States instructions on memory or references, for all machine code.

The loop and compiled functions are made of it.

It is a function of a :class:`Site`, which gives the result: of a value an LLVM expression, of a
reference a counted one. A site knows where operands and results are: in registers that decoded words name, or
in values of a function. What cannot be done here is left to the interpreter (:class:`CheckedText`).

What would fail takes a side exit before anything is written. The plain handlers do long lists, those that
shrink, conversions, reads of empty slots and everything that fails. Offsets and counts of loads, stores and
fills are in elements, so ``offset < length >> log2(width)`` is exact for every 64-bit offset.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import LIKELY, FunctionText
from jitree.dispatch.native.prelude import BYTES, ENTRIES, FIXED, GLOBALS, SLOTS
from jitree.dispatch.native.rows import call
from jitree.regs.layout import (
    ENTRY,
    KIND_BUFFER,
    KIND_LIST,
    LIST_REF,
    LIST_SLOT,
    MODULE,
    STATE,
    VALUE_TYPE_CODES,
)

if TYPE_CHECKING:
    from jitree.dispatch.semantics import Semantic


_EXACT: Final = {"add": ("add",), "sub": ("sub",), "mul": ("mul",), "fma": ("mul", "add"), "shl": ("shl",)}
"""LLVM's instructions on the operands one after the other."""
MUCH: Final = 1 << 16
"""Bytes or iterations of a nest, some microseconds, after which the clock is looked at."""
_IMPORT_FUEL: Final = 1 << 8
"""Branches that an import counts as."""


class CheckedText(FunctionText, abc.ABC):
    """A function with side exits."""

    def call(self, name: str, *arguments: str) -> str:
        """What a function of :mod:`jitree.regs.access` gives."""
        return self.let(call(name, arguments))

    @abc.abstractmethod
    def side_exit(self) -> str:
        """Names the label of an exit before anything has happened."""

    def require(self, condition: str) -> None:
        """A side exit unless the condition (i1) holds."""
        going_on = self.fresh("ok")
        self.branch(condition, going_on, self.side_exit(), LIKELY)
        self.go_on(going_on)

    def require_valid(self, mnemonic: str, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where an instruction fails."""
        if semantic.refusal in ("exact", "exact_32"):
            self._require_exact(mnemonic, semantic, arguments)
        elif semantic.refusal == "count":
            self.require(self.let(f"icmp ult i64 {arguments[0]}, {1 << 32}"))
        elif semantic.refusal is not None:
            self._require_quotient(semantic, arguments)

    def _require_exact(self, mnemonic: str, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where the result in 128 bits is another one."""
        narrow = semantic.result_type
        if mnemonic.startswith("shl"):
            arguments = [arguments[0], self.let(f"and i32 {arguments[1]}, {int(narrow[1:]) - 1}")]
        kinds = zip(semantic.argument_types, arguments, strict=True)
        first, *others = (self.let(f"sext {kind} {argument} to i128") for kind, argument in kinds)
        for operation, other in zip(_EXACT[mnemonic.split(".")[0]], others, strict=True):
            first = self.let(f"{operation} i128 {first}, {other}")
        result = self.let(f"trunc i128 {first} to {narrow}")
        again = self.let(f"sext {narrow} {result} to i128")
        self.require(self.let(f"icmp eq i128 {first}, {again}"))

    def _require_quotient(self, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where a division fails: by zero, and where the quotient does not fit."""
        kind, (lhs, rhs) = semantic.argument_types[0], arguments[:2]
        self.require(self.let(f"icmp ne {kind} {rhs}, 0"))
        if semantic.refusal == "signed_division":
            is_minimum = self.let(f"icmp eq {kind} {lhs}, {-(1 << (int(kind[1:]) - 1))}")
            is_negation = self.let(f"icmp eq {kind} {rhs}, -1")
            overflow = self.let(f"and i1 {is_minimum}, {is_negation}")
            self.require(self.let(f"xor i1 {overflow}, true"))

    @abc.abstractmethod
    def fuel_left(self) -> str:
        """Branches until the clock is looked at (i64)."""

    @abc.abstractmethod
    def set_fuel(self, fuel: str) -> None:
        """What is left after an instruction that is no branch, at least one."""

    def spend_bytes(self, count: str) -> None:
        """Counts an instruction on so many bytes or elements of buffers: the next branch or call looks at the
        clock if they were many."""
        is_much = self.let(f"icmp ugt i64 {count}, {MUCH}")
        self.set_fuel(self.let(f"select i1 {is_much}, i64 1, i64 {self.fuel_left()}"))

    def spend_import(self) -> None:
        """Counts a call of an import's machine code, which may take long."""
        left = self.fuel_left()
        enough = self.let(f"icmp ugt i64 {left}, {_IMPORT_FUEL}")
        rest = self.let(f"sub i64 {left}, {_IMPORT_FUEL}")
        self.set_fuel(self.let(f"select i1 {enough}, i64 {rest}, i64 1"))


class Site(abc.ABC):
    """Names an instruction's operands (registers) and literals (others) by their order."""

    def __init__(self, text: CheckedText, mnemonic: str) -> None:
        self.text = text
        self.mnemonic = mnemonic

    def require(self, condition: str) -> None:
        """Nothing of the instruction happens here unless the condition (i1) holds."""
        self.text.require(condition)

    @abc.abstractmethod
    def operand(self, number: int) -> str:
        """A reference that the instruction looks at, or a value."""

    @abc.abstractmethod
    def kind(self, number: int) -> str:
        """The LLVM type of an operand."""

    @property
    @abc.abstractmethod
    def result_kind(self) -> str:
        """The LLVM type of the result."""

    @abc.abstractmethod
    def literal(self, number: int) -> str:
        """An i64."""

    @abc.abstractmethod
    def truth(self, number: int) -> str:
        """Whether an i32 is not 0."""

    @abc.abstractmethod
    def comparison(self, condition: str) -> str:
        """The result of a comparison."""

    @abc.abstractmethod
    def take(self, number: int) -> str:
        """A counted reference: that of the register if the register gives it up, else another one."""

    @abc.abstractmethod
    def drop(self, number: int) -> None:
        """Drops the reference of a register that gives it up."""

    @abc.abstractmethod
    def put(self, place: str, number: int, scope: str) -> None:
        """Puts a reference that is taken in place of another one in memory."""

    @abc.abstractmethod
    def entry(self, number: int, kind: int) -> str:
        """The handle entry of a reference, which must be of a kind (KIND_*)."""

    @abc.abstractmethod
    def element(self, number: int, offset: int, kind: str, shift: int, is_written: bool) -> str:
        """Computes the address of ``1 << shift`` bytes within a buffer."""

    @abc.abstractmethod
    def extent(self, number: int, is_written: bool = False) -> tuple[str, str]:
        """The address and the length of what must be a buffer."""

    @abc.abstractmethod
    def scoped(self, access: str, scope: str) -> str:
        """An access to memory, of which the metadata says what it does not overlap."""

    # -- what follows ----------------------------------------------------------------------------------

    def read(self, kind: str, place: str, scope: str, alignment: int = 8) -> str:
        return self.text.let(self.scoped(f"load {kind}, ptr {place}, align {alignment}", scope))

    def module(self, field: str, kind: str = "ptr") -> str:
        """A field of the module's record."""
        module = self.read("ptr", self.text.field("%state", STATE["module"]), FIXED)
        return self.read(kind, self.text.field(module, MODULE[field]), FIXED)

    def indexed(self, kind: str, base: str, index: str) -> str:
        """The address of the element of an array in memory."""
        return self.text.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def wide(self, number: int) -> str:
        """An i32 operand as i64, zero extended."""
        return self.text.let(f"zext i32 {self.operand(number)} to i64")

    def bits(self, number: int) -> tuple[str, str]:
        """The type and the text of a value as an integer."""
        kind, value = self.kind(number), self.operand(number)
        if kind not in ("float", "double"):
            return kind, value
        integer = "i32" if kind == "float" else "i64"
        return integer, self.text.let(f"bitcast {kind} {value} to {integer}")

    def retain(self, reference: str) -> None:
        self.text.do(f"call void @vm.retain(ptr {reference})")

    def expected_type(self, number: int) -> str:
        """The type that a literal names."""
        place = self.indexed("i32", self.module("types"), self.literal(number))
        return self.text.let(f"sext i32 {self.read('i32', place, FIXED, 4)} to i64")

    def is_bindings(self, number: int) -> bool:
        """Whether an operand is a kernel's list of bindings (:mod:`~jitree.dispatch.native.reading`)."""
        return False

    def require_type(self, reference: str, number: int) -> None:
        """A reference must be null or of the type that a literal names."""
        self.require(self.text.call("is_of", reference, self.expected_type(number)))


Statement = Callable[[Site], str | None]


def _rodata(site: Site) -> str:
    """segment, result"""
    reference = site.read("ptr", site.indexed("ptr", site.module("rodata"), site.literal(0)), FIXED)
    site.require(site.text.let(f"icmp ne ptr {reference}, null"))
    site.retain(reference)
    return reference


def _assign(site: Site) -> str:
    """source, result"""
    return site.take(0)


def _cast(site: Site) -> str:
    """source, type, result"""
    site.require_type(site.operand(0), 0)
    return site.take(0)


def _select(site: Site) -> str:
    """condition, type, if true, if false, result; both that have the move flag are moved"""
    condition = site.truth(0)
    chosen = site.text.let(f"select i1 {condition}, ptr {site.operand(1)}, ptr {site.operand(2)}")
    site.require_type(chosen, 0)
    site.retain(chosen)
    site.drop(1)
    site.drop(2)
    return chosen


def _compare(site: Site) -> str:
    """Handles are unique for an object, so identity is equality of addresses."""
    relation = "eq" if site.mnemonic == "cmp.eq.ref" else "ne"
    lhs = site.operand(0)
    rhs = "null" if site.mnemonic == "cmp.nz.ref" else site.operand(1)
    return site.comparison(site.text.let(f"icmp {relation} ptr {lhs}, {rhs}"))


REFERENCE_STATEMENTS: Final[dict[str, Statement]] = {
    "const.ref.rodata": _rodata,
    "assign.ref": _assign,
    "cast.any.ref": _cast,
    "select.ref": _select,
    "cmp.eq.ref": _compare,
    "cmp.ne.ref": _compare,
    "cmp.nz.ref": _compare,
}


_SHIFTS: Final = {"i8": 0, "i16": 1, "i32": 2, "i64": 3, "f32": 2, "f64": 3}
_LOADS: Final = ("i8.u", "i8.s", "i16.u", "i16.s", "i32", "i64", "f32", "f64")
_KINDS: Final = ("i32", "i64", "f32", "f64")


def _load(site: Site) -> str:
    """buffer, offset, result"""
    kind, *extension = site.mnemonic.removeprefix("buffer.load.").split(".")
    place = site.element(0, 1, kind, _SHIFTS[kind], is_written=False)
    if not extension:
        return site.scoped(f"load {site.result_kind}, ptr {place}, align 1", BYTES)
    return f"{'zext' if extension == ['u'] else 'sext'} {kind} {site.read(kind, place, BYTES, 1)} to i32"


def _store(site: Site) -> None:
    """buffer, offset, value"""
    kind = site.mnemonic.removeprefix("buffer.store.")
    place = site.element(0, 1, kind, _SHIFTS[kind], is_written=True)
    stored, value = site.kind(2), site.operand(2)
    if kind in ("i8", "i16"):
        stored, value = kind, site.text.let(f"trunc i32 {value} to {kind}")
    site.text.do(site.scoped(f"store {stored} {value}, ptr {place}, align 1", BYTES))


def _fill(site: Site) -> None:
    """buffer, offset, count, value"""
    extent, offset, count = site.extent(0, is_written=True), site.operand(1), site.operand(2)
    kind, value = site.bits(3)
    if kind == "i32":
        value = site.text.let(f"zext i32 {value} to i64")
    shift = str(_SHIFTS[site.mnemonic.removeprefix("buffer.fill.")])
    site.require(site.text.call("buffer_fill", "%state", *extent, offset, count, value, shift))
    site.text.spend_bytes(count)


def _length(site: Site) -> str:
    """buffer, result"""
    _, length = site.extent(0)
    return f"bitcast i64 {length} to i64"


def _copy(site: Site) -> None:
    """source, offset, target, offset, length"""
    source, target = (*site.extent(0), site.operand(1)), site.extent(2, is_written=True)
    into, length = site.operand(3), site.operand(4)
    site.require(site.text.call("buffer_copy", "%state", *source, *target, into, length))
    site.text.spend_bytes(length)


def _compare_buffers(site: Site) -> str:
    """lhs, offset, rhs, offset, length, result"""
    ranges = [text for number in (0, 2) for text in (*site.extent(number), site.operand(number + 1))]
    length = site.operand(4)
    equal = site.text.call("buffer_compare", "%state", *ranges, length)
    site.require(site.text.let(f"icmp ne i64 {equal}, -1"))
    site.text.spend_bytes(length)
    return f"trunc i64 {equal} to i32"


# -- globals ------------------------------------------------------------------------------------------------


def _global(site: Site, table: str, count: str, kind: str, size: int) -> str:
    """The address of a global; the index in a register is checked here, a literal one was at load."""
    if ".indirect." not in site.mnemonic:
        return site.indexed(kind, site.module(table), site.literal(0))
    index = site.wide(0)
    end = site.text.let(f"add i64 {index}, {size}")
    site.require(site.text.let(f"icmp ule i64 {end}, {site.module(count, 'i64')}"))
    return site.indexed(kind, site.module(table), index)


def _value_global(site: Site) -> str:
    return _global(site, "globals", "globals_size", "i8", 8 if site.mnemonic.endswith("64") else 4)


def _ref_global(site: Site) -> str:
    return _global(site, "ref_globals", "ref_global_count", "ptr", 1)


def _last(site: Site) -> int:
    """Which operand is stored."""
    return 1 if ".indirect." in site.mnemonic else 0


def _load_global(site: Site) -> str:
    return site.scoped(f"load {site.result_kind}, ptr {_value_global(site)}, align 1", GLOBALS)


def _store_global(site: Site) -> None:
    place, number = _value_global(site), _last(site)
    site.text.do(
        site.scoped(f"store {site.kind(number)} {site.operand(number)}, ptr {place}, align 1", GLOBALS)
    )


def _load_ref(site: Site) -> str:
    """(slot), type, result"""
    reference = site.read("ptr", _ref_global(site), GLOBALS)
    site.require_type(reference, -1)
    site.retain(reference)
    return reference


def _store_ref(site: Site) -> None:
    """(slot), type, value"""
    place, number = _ref_global(site), _last(site)
    site.require_type(site.operand(number), -1)
    site.put(place, number, GLOBALS)


MEMORY_STATEMENTS: Final[dict[str, Statement]] = {
    **{f"buffer.load.{kind}": _load for kind in _LOADS},
    **{f"buffer.store.{kind}": _store for kind in _SHIFTS},
    **{f"buffer.fill.{kind}": _fill for kind in _SHIFTS},
    "buffer.length": _length,
    "buffer.copy": _copy,
    "buffer.compare": _compare_buffers,
    **{f"global.load.{way}{kind}": _load_global for way in ("", "indirect.") for kind in _KINDS},
    **{f"global.store.{way}{kind}": _store_global for way in ("", "indirect.") for kind in _KINDS},
    **{f"global.load.{way}ref": _load_ref for way in ("", "indirect.")},
    **{f"global.store.{way}ref": _store_ref for way in ("", "indirect.")},
}


def _alloc(site: Site) -> str:
    """type, capacity, result"""
    made = site.text.call("list_made", "%state", site.expected_type(0), site.wide(0))
    site.require(site.text.let(f"icmp ne ptr {made}, null"))
    return made


def _reserve(site: Site) -> None:
    """list, capacity"""
    site.require(site.text.call("list_holds", site.operand(0), site.wide(1)))


def _resize(site: Site) -> None:
    """list, size"""
    site.require(site.text.call("list_grows", site.operand(0), site.wide(1)))


def _size(site: Site) -> str:
    """list, result"""
    entry = site.entry(0, KIND_LIST)
    return f"trunc i64 {site.read('i64', site.text.field(entry, ENTRY['length']), ENTRIES)} to i32"


def _slot(site: Site) -> tuple[str, str]:
    """For (list, index) the list and the element's slot."""
    items, index = site.entry(0, KIND_LIST), site.wide(1)
    site.require(site.text.call("has_element", items, index))
    return items, site.text.call("slot_of", items, index)


def _bits(site: Site, slot: str) -> str:
    return site.text.field(slot, LIST_SLOT["bits"])


def _put_tag(site: Site, slot: str, tag: int) -> None:
    place = site.text.field(slot, LIST_SLOT["tag"])
    site.text.do(site.scoped(f"store i64 {tag}, ptr {place}, align 8", SLOTS))


def _code(site: Site) -> int:
    return VALUE_TYPE_CODES[site.mnemonic.rpartition(".")[2]]


def _get(site: Site) -> str:
    """list, index, result"""
    _, slot = _slot(site)
    site.require(site.text.call("list_reads", slot, str(_code(site))))
    return site.scoped(f"load {site.result_kind}, ptr {_bits(site, slot)}, align 8", SLOTS)


def _set(site: Site) -> None:
    """list, index, value"""
    items, slot = _slot(site)
    site.require(site.text.call("list_takes", items, slot, str(_code(site))))
    kind, value = site.bits(2)
    if kind == "i32":
        value = site.text.let(f"{'sext' if site.mnemonic.endswith('i32') else 'zext'} i32 {value} to i64")
    _put_tag(site, slot, _code(site))
    site.text.do(site.scoped(f"store i64 {value}, ptr {_bits(site, slot)}, align 8", SLOTS))


def _get_ref(site: Site) -> str:
    """list, index, type, result"""
    if site.is_bindings(0):
        return _binding(site)
    _, slot = _slot(site)
    site.require(site.text.call("list_reads_ref", slot, site.expected_type(0)))
    reference = site.read("ptr", _bits(site, slot), SLOTS)
    site.retain(reference)
    return reference


def _binding(site: Site) -> str:
    """As :func:`_get_ref`, of a list whose elements all are buffers, and that nothing changes."""
    items, index = site.operand(0), site.wide(1)
    count = site.read("i64", site.text.field(items, ENTRY["length"]), FIXED)
    site.require(site.text.let(f"icmp ult i64 {index}, {count}"))
    site.require(site.text.let(f"icmp eq i64 {site.expected_type(0)}, {KIND_BUFFER}"))
    slots = site.read("ptr", site.text.field(items, ENTRY["address"]), FIXED)
    return site.read("ptr", _bits(site, site.indexed(f"[{LIST_SLOT.size} x i8]", slots, index)), FIXED)


def _set_ref(site: Site) -> None:
    """list, index, value"""
    items, slot = _slot(site)
    site.require(site.text.call("list_takes_ref", items, slot, site.operand(2)))
    _put_tag(site, slot, LIST_REF)
    site.put(_bits(site, slot), 2, SLOTS)


LIST_STATEMENTS: Final[dict[str, Statement]] = {
    "list.alloc": _alloc,
    "list.reserve": _reserve,
    "list.resize": _resize,
    "list.size": _size,
    **{f"list.get.{kind}": _get for kind in _KINDS},
    **{f"list.set.{kind}": _set for kind in _KINDS},
    "list.get.ref": _get_ref,
    "list.set.ref": _set_ref,
}
