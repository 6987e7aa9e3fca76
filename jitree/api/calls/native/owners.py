"""Owners: capsules that own a reference to a handle. Machine code.

Arrays have an owner, and so have the numpy arrays over their memory, as their base: when the last of them is
gone the handle is given back. That may happen at any time, in any thread that has the GIL; the next call puts
it into effect.
"""

from __future__ import annotations

from jitree.api.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    MAXIMUM_RETURNED,
    RETURNED,
)
from jitree.api.calls.native.python import drop, invoke_with_number, retained
from jitree.api.calls.native.records import Owners, Python
from jitree.codegen.primitives import call, load64, stack, store64
from jitree.codegen.record import place_of
from jitree.modules.hal.native.entries import release
from jitree.modules.hal.native.records import Entry, HandlePoolRecord

LARGE = 1 << 20
"""Bytes from which memory is given back at once if that is possible, not by the next call."""


def new_owner(owners: Owners, handle: Entry) -> int:
    """Takes over a reference to a handle, in any case. 0 with an exception set."""
    python = Python(owners.python)
    owner = call(
        python.new_capsule,
        place_of(handle),
        python.owner_name,
        python.destroy_owner,
    )
    if owner == 0:
        give_back_handle(owners, handle)
        return 0
    call(python.set_context, owner, place_of(owners))
    retained(python, owners.keeper)
    return owner


def handle_of(owner: int) -> int:
    return load64(owner + CAPSULE_POINTER_AT)


def destroy_owner(owner: int) -> None:
    """The destructor of owners."""
    owners = Owners(load64(owner + CAPSULE_CONTEXT_AT))
    give_back_handle(owners, Entry(handle_of(owner)))
    drop(Python(owners.python), owners.keeper)


def give_back_handle(owners: Owners, handle: Entry) -> None:
    count = owners.count
    if count == MAXIMUM_RETURNED:
        attend(owners, handle)
        return
    store64(place_of(owners) + RETURNED + 8 * count, place_of(handle))
    owners.count = count + 1
    if handle.length >= LARGE:
        attend(owners, Entry(0))


def attend(owners: Owners, handle: Entry) -> None:
    """Calls the Python function of the record, whatever exception is on its way."""
    python = Python(owners.python)
    error = stack(24)
    call(python.fetch_error, error, error + 8, error + 16)
    result = invoke_with_number(python, owners.attend, place_of(handle))
    if result == 0:
        call(python.clear_error)
    else:
        drop(python, result)
    call(python.restore_error, load64(error), load64(error + 8), load64(error + 16))


def take_back(owners: Owners, handle_pool: HandlePoolRecord, released: int) -> None:
    """Drops the references that were given back. Objects of Python's whose last ones they were join the list
    at ``released``. The context must be idle."""
    count = owners.count
    for index in range(count):
        release(handle_pool, Entry(load64(place_of(owners) + RETURNED + 8 * index)), released)
    owners.count = 0
