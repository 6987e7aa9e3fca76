"""``vm.list``. The plain handlers do long lists, those that shrink, conversions, reads of empty slots and
everything that fails."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.native.prelude import ENTRIES, FIXED, SLOTS
from jitree.dispatch.native.site import Site, Statement
from jitree.regs.layout import ENTRY, KIND_BUFFER, KIND_LIST, LIST_REF, LIST_SLOT, VALUE_TYPE_CODES


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


_KINDS: Final = ("i32", "i64", "f32", "f64")
STATEMENTS: Final[dict[str, Statement]] = {
    "list.alloc": _alloc,
    "list.reserve": _reserve,
    "list.resize": _resize,
    "list.size": _size,
    **{f"list.get.{kind}": _get for kind in _KINDS},
    **{f"list.set.{kind}": _set for kind in _KINDS},
    "list.get.ref": _get_ref,
    "list.set.ref": _set_ref,
}
