"""States what instructions on buffers, globals and lists do.

What would fail takes a side exit before anything is written. The plain handlers do long lists, those that
shrink, conversions, reads of empty slots and everything that fails. Offsets and counts of loads, stores and
fills are in elements, so ``offset < length >> log2(width)`` is exact for every 64-bit offset.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.native.prelude import BYTES, ENTRIES, FIXED, GLOBALS, SLOTS
from jitree.dispatch.native.site import Site, Statement
from jitree.regs.layout import ENTRY, KIND_BUFFER, KIND_LIST, LIST_REF, LIST_SLOT, VALUE_TYPE_CODES

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


def _compare(site: Site) -> str:
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
    "buffer.compare": _compare,
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
