"""Owners: capsules that own a reference to a handle. Machine code.

Arrays have an owner, and so have the numpy arrays over their memory, as their base: when the last of them is
gone the handle is given back. That may happen at any time, in any thread that has the GIL; the next call puts
it into effect.
"""

from __future__ import annotations

from jitree.calls.native.layout import (
    CAPSULE_CONTEXT_AT,
    CAPSULE_POINTER_AT,
    MAXIMUM_RETURNED,
    OWNERS,
    RETURNED,
)
from jitree.calls.native.python import Python, drop, invoke_with_number, retained
from jitree.codegen.primitives import Fields, call, load, load64, stack, store, store64
from jitree.modules.hal.native.entries import Entry, release

Owners = Fields(OWNERS)

LARGE = 1 << 20
"""Bytes from which memory is given back at once if that is possible, not by the next call."""


def new_owner(owners: int, handle: int) -> int:
    """Takes over a reference to a handle, in any case. 0 with an exception set."""
    python = load(owners, Owners.python)
    owner = call(
        load(python, Python.new_capsule),
        handle,
        load(python, Python.owner_name),
        load(python, Python.destroy_owner),
    )
    if owner == 0:
        give_back_handle(owners, handle)
        return 0
    call(load(python, Python.set_context), owner, owners)
    retained(python, load(owners, Owners.keeper))
    return owner


def handle_of(owner: int) -> int:
    return load64(owner + CAPSULE_POINTER_AT)


def destroy_owner(owner: int) -> None:
    """The destructor of owners."""
    owners = load64(owner + CAPSULE_CONTEXT_AT)
    give_back_handle(owners, handle_of(owner))
    drop(load(owners, Owners.python), load(owners, Owners.keeper))


def give_back_handle(owners: int, handle: int) -> None:
    count = load(owners, Owners.count)
    if count == MAXIMUM_RETURNED:
        attend(owners, handle)
        return
    store64(owners + RETURNED + 8 * count, handle)
    store(owners, Owners.count, count + 1)
    if load(handle, Entry.length) >= LARGE:
        attend(owners, 0)


def attend(owners: int, handle: int) -> None:
    """Calls the Python function of the record, whatever exception is on its way."""
    python = load(owners, Owners.python)
    error = stack(24)
    call(load(python, Python.fetch_error), error, error + 8, error + 16)
    result = invoke_with_number(python, load(owners, Owners.attend), handle)
    if result == 0:
        call(load(python, Python.clear_error))
    else:
        drop(python, result)
    call(load(python, Python.restore_error), load64(error), load64(error + 8), load64(error + 16))


def take_back(owners: int, natives: int, released: int) -> None:
    """Drops the references that were given back. Objects of Python's whose last ones they were join the list
    at ``released``. The context must be idle."""
    count = load(owners, Owners.count)
    for index in range(count):
        release(natives, load64(owners + RETURNED + 8 * index), released)
    store(owners, Owners.count, 0)
