"""References: constants, copies, casts, choices, comparisons."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.native.prelude import FIXED
from jitree.dispatch.native.site import Site, Statement


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


STATEMENTS: Final[dict[str, Statement]] = {
    "const.ref.rodata": _rodata,
    "assign.ref": _assign,
    "cast.any.ref": _cast,
    "select.ref": _select,
    "cmp.eq.ref": _compare,
    "cmp.ne.ref": _compare,
    "cmp.nz.ref": _compare,
}
