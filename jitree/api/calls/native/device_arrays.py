"""Device arrays as arguments: passed by their handle, or copied. Machine code."""

from __future__ import annotations

from jitree.api.calls.native.copies import pass_elements
from jitree.api.calls.native.layout import CAPSULE_CONTEXT_AT, MAXIMUM_RANK
from jitree.api.calls.native.lent_arrays import pass_neighbours
from jitree.api.calls.native.owners import handle_of
from jitree.api.calls.native.python import (
    drop,
    invoke_with,
    invoke_with_number,
    is_true,
    retained,
)
from jitree.api.calls.native.records import Argument, CallRecord, Owners, Python
from jitree.api.calls.native.views import fits, has_stream, is_alike_type
from jitree.codegen.primitives import apart, call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.hal.enums import MemoryAccess
from jitree.modules.hal.native.records import Entry
from jitree.modules.hal.native.views import retyped
from jitree.regs.access import retain
from jitree.regs.layout import PLACE_SHIFT
from jitree.types import ENCODING_DENSE

_WRITE = int(MemoryAccess.WRITE)


def pass_owned(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array: its handle, if it has one in the context or gets one, else a copy of its elements."""
    if is_accepted(python, argument, array):
        return pass_owner(python, argument, array)
    return pass_unaccepted(python, record, argument, array)


@apart
def pass_unaccepted(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array that is not known to fit. Apart, so that numbers and arrays that are known to fit save
    no registers for it."""
    if is_far(python, record, array):
        if pass_neighbours(python, record, argument, array):
            return True
    elif is_present(python, record, argument, array):
        if is_of_type(python, argument, array):
            return pass_owner(python, argument, array)
        if argument.is_written == 0 and pass_as_declared(python, record, argument, array):
            return True
    if (
        argument.is_written == 0
        and is_elsewhere(python, record, array)
        and pass_copied(python, record, argument, array)
    ):
        return True
    accepted = invoke_with(python, argument.accept, array)
    if accepted == 0:
        return False
    if accepted == python.true:
        is_lent = is_far(python, record, array) and pass_neighbours(python, record, argument, array)
        is_passed = is_lent or pass_owner(python, argument, array)
    else:
        is_passed = accepted != python.false and pass_handle(python, argument, accepted)
    drop(python, accepted)
    return is_passed


def is_accepted(python: Python, argument: Argument, array: int) -> bool:
    """Whether a device array is known to fit, and its elements are there for what the call submits."""
    return load64(array + python.array_passed_as) == argument.marker


def pass_owner(python: Python, argument: Argument, array: int) -> bool:
    owner = load64(array + python.array_owner)
    store64(argument.place, place_of(retain(Entry(handle_of(owner)))))
    return True


def pass_kept(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A device array for a program that may overwrite it, and whose caller keeps it."""
    return pass_copied(python, record, argument, array) or (
        is_true(python, invoke_with(python, argument.accept, array))
        and pass_copied(python, record, argument, array)
    )


def pass_copied(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """A copy of a device array of any session."""
    owner = load64(array + python.array_owner)
    if argument.dtype == 0 or owner == 0 or owner == python.none:
        return False
    handle = Entry(handle_of(owner))
    if load64(array + python.array_fence) != python.none and not is_accepted(python, argument, array):
        return False
    if not is_alike_type(handle.element_type, argument.element_type) or handle.encoding != ENCODING_DENSE:
        return False
    dimensions = place_of(handle) + Owners(load64(owner + CAPSULE_CONTEXT_AT)).extension
    retained(python, owner)
    is_passed = pass_elements(python, record, argument, handle, dimensions)
    drop(python, owner)
    return is_passed


def is_elsewhere(python: Python, record: CallRecord, array: int) -> bool:
    """Whether a device array has its handle in another session."""
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none:
        return False
    return load64(owner + CAPSULE_CONTEXT_AT) != place_of(record.owners)


def is_far(python: Python, record: CallRecord, array: int) -> bool:
    """Whether a device array lies in memory whose use another stream orders."""
    owner = load64(array + python.array_owner)
    if owner == 0 or owner == python.none or not has_stream(record):
        return False
    place = Entry(handle_of(owner)).access >> PLACE_SHIFT
    return place != 0 and place != record.state.handle_pool.queue.stream.place


def is_present(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """Whether a device array has a handle in the context, of the declared type or one like it, and its
    elements. Of others Python has to tell."""
    none = python.none
    owner = load64(array + python.array_owner)
    owners = record.owners
    if argument.dtype == 0 or owner == 0 or owner == none:
        return False
    if load64(owner + CAPSULE_CONTEXT_AT) != place_of(owners) or load64(array + python.array_fence) != none:
        return False
    handle = Entry(handle_of(owner))
    if not is_alike_type(handle.element_type, argument.element_type) or handle.encoding != ENCODING_DENSE:
        return False
    dimensions = place_of(handle) + owners.extension
    if not fits(argument, handle.rank, dimensions):
        return False
    return load64(dimensions + 8 * MAXIMUM_RANK) & _WRITE != 0


def is_of_type(python: Python, argument: Argument, array: int) -> bool:
    """Whether an array that is present is of the declared type itself. It remembers that."""
    if Entry(handle_of(load64(array + python.array_owner))).element_type != argument.element_type:
        return False
    place = array + python.array_passed_as
    before = load64(place)
    store64(place, retained(python, argument.marker))
    drop(python, before)
    return True


def pass_as_declared(python: Python, record: CallRecord, argument: Argument, array: int) -> bool:
    """The elements of an array that is present as ones of the declared type, whatever their sign: what the
    program gives back of its arguments has the type of the declaration."""
    source = Entry(handle_of(load64(array + python.array_owner)))
    if not record.state.handle_pool or source.address == 0:
        return False
    view = retyped(record.state, source, argument.element_type)
    if not view:
        if not is_true(python, invoke_with_number(python, record.supply, 0)):
            return False
        view = retyped(record.state, source, argument.element_type)
        if not view:
            return False
    store64(argument.place, place_of(view))
    return True


def pass_handle(python: Python, argument: Argument, number: int) -> bool:
    """A reference to a handle, which is taken over."""
    overflow = stack(4)
    store64(argument.place, call(python.long_value, number, overflow))
    return True
