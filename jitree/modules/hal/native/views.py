"""``hal.buffer_view.*``"""

from __future__ import annotations

from jitree.codegen.primitives import load, load64, store, store64
from jitree.modules.hal.native.buffers import is_host_buffer, range_length, range_of
from jitree.modules.hal.native.entries import (
    NATIVES_RELEASED,
    Entry,
    Natives,
    State,
    new_entry,
    release,
    retain,
)
from jitree.modules.hal.native.layout import MAXIMUM_RANK
from jitree.modules.hal.native.registers import (
    REFUSED,
    argument_count,
    finish,
    give,
    give32,
    give64,
    is_kind,
    number,
    reference,
)
from jitree.regs.layout import KIND_BUFFER, OWNER_CODE
from jitree.types import ENCODING_DENSE

_ACCESS = 8 * MAXIMUM_RANK
_LARGEST_COUNT = (1 << 31) - 1
"""Elements: products of two such numbers do not wrap."""
_BITS = 0xFF
"""Of an element type: the size of one element."""


def dimensions(natives: int, view: int) -> int:
    """Where a view's dimensions are."""
    return view + load(natives, Natives.extension)


def known_view(natives: int, view: int) -> bool:
    """Whether it is a view of which everything is in its entry."""
    return is_kind(view, load(natives, Natives.buffer_view)) and 0 <= load(view, Entry.rank) <= MAXIMUM_RANK


def fits(values: int, words: int, rank: int, length: int) -> bool:
    """Whether a view's elements lie in so many bytes. Empty tensors and those of which the count is not
    exact in a few bits are left to Python, which knows shapes that no tensor can have."""
    count = 1
    for index in range(rank):
        size = number(values, words, 5 + index)
        if not 0 < size <= _LARGEST_COUNT:
            return False
        count *= size
        if count > _LARGEST_COUNT:
            return False
    bits = number(values, words, 3) & _BITS
    return (count * bits + 7) >> 3 <= length


def view_create(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    source = reference(refs, words, 0)
    rank = argument_count(words) - 5
    if not is_host_buffer(natives, source) or rank > MAXIMUM_RANK:
        return REFUSED
    offset = number(values, words, 1)
    length = range_length(source, offset, number(values, words, 2))
    if length < 0 or number(values, words, 4) != ENCODING_DENSE or not fits(values, words, rank, length):
        return REFUSED
    view = new_entry(state, natives, load(natives, Natives.buffer_view))
    if view == 0:
        return REFUSED
    buffer = range_of(state, natives, source, offset, length)
    store(view, Entry.parent, buffer)
    if buffer == 0:
        release(natives, view, natives + NATIVES_RELEASED)
        return REFUSED
    store(view, Entry.address, load(buffer, Entry.address))
    store(view, Entry.length, length)
    store(view, Entry.access, load(buffer, Entry.access))
    store(view, Entry.usage, load(buffer, Entry.usage))
    store(view, Entry.element_type, number(values, words, 3))
    store(view, Entry.encoding, number(values, words, 4))
    store(view, Entry.rank, rank)
    if load(buffer, Entry.owner) == OWNER_CODE:
        store(view, Entry.link, load(buffer, Entry.link))
    place = dimensions(natives, view)
    for index in range(rank):
        store64(place + 8 * index, number(values, words, 5 + index))
    store64(place + _ACCESS, load(buffer, Entry.encoding))
    return give(state, refs, words, view)


def view_assert(state: int, values: int, refs: int, words: int) -> int:
    """Exact agreement; compatible types are Python's business."""
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    view = reference(refs, words, 0)
    if not known_view(natives, view) or not is_kind(reference(refs, words, 1), KIND_BUFFER):
        return REFUSED
    rank = load(view, Entry.rank)
    if load(view, Entry.element_type) != number(values, words, 2) or load(view, Entry.encoding) != number(
        values, words, 3
    ):
        return REFUSED
    if rank != argument_count(words) - 4:
        return REFUSED
    place = dimensions(natives, view)
    for index in range(rank):
        if load64(place + 8 * index) != number(values, words, 4 + index):
            return REFUSED
    return finish(state, refs, words)


def view_buffer(state: int, values: int, refs: int, words: int) -> int:
    """The buffer of a view that Python made gets an entry that keeps the view."""
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    view = reference(refs, words, 0)
    if not known_view(natives, view):
        return REFUSED
    if load(view, Entry.owner) == OWNER_CODE:
        return give(state, refs, words, retain(load(view, Entry.parent)))
    if load(view, Entry.address) == 0:
        return REFUSED
    buffer = new_entry(state, natives, load(natives, Natives.buffer))
    if buffer == 0:
        return REFUSED
    store(buffer, Entry.address, load(view, Entry.address))
    store(buffer, Entry.length, load(view, Entry.length))
    store(buffer, Entry.access, load(view, Entry.access))
    store(buffer, Entry.usage, load(view, Entry.usage))
    store(buffer, Entry.encoding, load64(dimensions(natives, view) + _ACCESS))
    store(buffer, Entry.parent, retain(view))
    return give(state, refs, words, buffer)


def view_element_type(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or not known_view(natives, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, load(reference(refs, words, 0), Entry.element_type))


def view_encoding_type(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or not known_view(natives, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, load(reference(refs, words, 0), Entry.encoding))


def view_rank(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0 or not known_view(natives, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, load(reference(refs, words, 0), Entry.rank))


def view_dim(state: int, values: int, refs: int, words: int) -> int:
    natives = load(state, State.natives)
    if natives == 0:
        return REFUSED
    view = reference(refs, words, 0)
    index = number(values, words, 1)
    if not known_view(natives, view) or not 0 <= index < load(view, Entry.rank):
        return REFUSED
    return give64(state, values, refs, words, load64(dimensions(natives, view) + 8 * index))
