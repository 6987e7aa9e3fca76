"""Indices of loads that run only under a condition, such as the elements inside a padded edge.

Where a predicate says ``0 <= f < n`` and the index holds a multiple of the form ``f``, that part of the index
is known to lie between 0 and the multiple of ``n - 1``, however far the counters go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jitree.dispatch.native.nests.forms import Form
from jitree.dispatch.native.nests.recognise import ElementAccess, Literal, Structure
from jitree.dispatch.native.ssa import Value


class Narrowed(NamedTuple):
    """An index in two parts."""

    rest: Form
    """What is left of the index."""
    highest: Form
    """Greatest value of the other part, if no limit is negative; the least one is 0."""
    limits: tuple[Form, ...]
    """What the predicate compares that part with."""


def narrowed(access: ElementAccess, structure: Structure) -> Narrowed:
    """The index of an access without what its predicate bounds."""
    index, highest, limits = access.index, Form.constant(0), []
    for literal in access.predicate:
        for form, limit in _ranges(literal, structure):
            factor = _factor(index, form, structure.counters)
            if factor is None:
                continue
            index = index - form * factor
            highest = highest + factor * (limit - Form.constant(1))
            limits.append(limit)
    return Narrowed(index, highest, tuple(limits))


def _ranges(literal: Literal, structure: Structure) -> Iterator[tuple[Form, Form]]:
    """(f, n) of each condition ``0 <= f < n`` that has to hold."""
    condition, holds = literal
    if not holds:
        return
    if condition.operation == "and.i32":
        for operand in condition.operands:
            yield from _ranges((operand, True), structure)
    elif condition.operation in ("cmp.lt.i64.u", "cmp.lt.i64.s"):
        form, limit = (structure.conditions.get(operand) for operand in condition.operands)
        if form is None or limit is None or limit.symbols() & set(structure.counters):
            return
        if (limit.number or 0) < 0:
            return
        if condition.operation == "cmp.lt.i64.u" or _never_negative(form, structure):
            yield form, limit


def _never_negative(form: Form, structure: Structure) -> bool:
    """Counters and constants only, none of them taken away."""
    return form.symbols() <= set(structure.counters) and all(number >= 0 for number in form.terms.values())


def _factor(index: Form, form: Form, counters: tuple[Value, ...]) -> Form | None:
    """The positive number that the index multiplies the form's counters by, if it is the same for all."""
    found: set[int] = set()
    for counter in counters:
        part, whole = form.coefficient(counter).number, index.coefficient(counter).number
        if part is None or whole is None:
            return None
        if part:
            if whole % part:
                return None
            found.add(whole // part)
    factor = found.pop() if len(found) == 1 else 0
    return Form.constant(factor) if factor > 0 else None
