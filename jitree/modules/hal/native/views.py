"""Make, check and read buffer views (``hal.buffer_view.*``). Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import load64, store64
from jitree.codegen.record import place_of
from jitree.hal.checks import tensor_refusal
from jitree.modules.hal.native.buffers import has_address, range_length, range_of
from jitree.modules.hal.native.entries import HANDLE_POOL_RELEASED, State, new_entry, release
from jitree.modules.hal.native.layout import MAXIMUM_RANK, HandlePoolRecord
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
from jitree.regs.access import retain
from jitree.regs.layout import KIND_BUFFER, OWNER_CODE, Entry
from jitree.types import ENCODING_DENSE

_ACCESS = 8 * MAXIMUM_RANK
_LARGEST_COUNT = (1 << 31) - 1
"""Elements: products of two such numbers do not wrap."""
_BITS = 0xFF
"""The bits of an element type that have the size of one element."""


def dimensions(handle_pool: HandlePoolRecord, view: Entry) -> int:
    """Where a view's dimensions are."""
    return place_of(view) + handle_pool.extension


def known_view(handle_pool: HandlePoolRecord, view: Entry) -> bool:
    """Whether it is a view of which everything is in its entry."""
    return is_kind(view, handle_pool.buffer_view) and 0 <= view.rank <= MAXIMUM_RANK


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


def view_create(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    source = reference(refs, words, 0)
    rank = argument_count(words) - 5
    if not has_address(handle_pool, source) or rank > MAXIMUM_RANK:
        return REFUSED
    offset = number(values, words, 1)
    length = range_length(source, offset, number(values, words, 2))
    if length < 0 or number(values, words, 4) != ENCODING_DENSE or not fits(values, words, rank, length):
        return REFUSED
    view = new_entry(state, handle_pool, handle_pool.buffer_view)
    if not view:
        return REFUSED
    buffer = range_of(state, handle_pool, source, offset, length)
    view.parent = buffer
    if not buffer:
        release(handle_pool, view, place_of(handle_pool) + HANDLE_POOL_RELEASED)
        return REFUSED
    view.address = buffer.address
    view.length = length
    view.access = buffer.access
    view.usage = buffer.usage
    view.element_type = number(values, words, 3)
    view.encoding = number(values, words, 4)
    view.rank = rank
    if buffer.owner == OWNER_CODE:
        view.link = buffer.link
    place = dimensions(handle_pool, view)
    for index in range(rank):
        store64(place + 8 * index, number(values, words, 5 + index))
    store64(place + _ACCESS, buffer.encoding)
    return give(state, refs, words, view)


def view_assert(state: State, values: int, refs: int, words: int) -> int:
    """What does not agree is Python's business."""
    handle_pool = state.handle_pool
    view = reference(refs, words, 0)
    if not known_view(handle_pool, view) or not is_kind(reference(refs, words, 1), KIND_BUFFER):
        return REFUSED
    rank = view.rank
    encoding, element_type = number(values, words, 3), number(values, words, 2)
    if tensor_refusal(view.encoding, encoding, view.element_type, element_type):
        return REFUSED
    if rank != argument_count(words) - 4:
        return REFUSED
    place = dimensions(handle_pool, view)
    for index in range(rank):
        if load64(place + 8 * index) != number(values, words, 4 + index):
            return REFUSED
    return finish(state, refs, words)


def view_buffer(state: State, values: int, refs: int, words: int) -> int:
    """The buffer of a view that Python made gets an entry that keeps the view."""
    view = reference(refs, words, 0)
    if not known_view(state.handle_pool, view):
        return REFUSED
    buffer = buffer_of(state, view)
    if not buffer:
        return REFUSED
    return give(state, refs, words, buffer)


def buffer_of(state: State, view: Entry) -> Entry:
    """A reference to the buffer of a view; 0 where machine code does not know where that is, or without an
    entry."""
    if view.owner == OWNER_CODE:
        return retain(view.parent)
    if view.address == 0:
        return Entry(0)
    handle_pool = state.handle_pool
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if buffer:
        buffer.address = view.address
        buffer.length = view.length
        buffer.access = view.access
        buffer.usage = view.usage
        buffer.encoding = load64(dimensions(handle_pool, view) + _ACCESS)
        buffer.parent = retain(view)
    return buffer


def retyped(state: State, source: Entry, element_type: int) -> Entry:
    """A view of the elements of another one as ones of another type of their size; 0 as of
    :func:`buffer_of`."""
    handle_pool = state.handle_pool
    if not known_view(handle_pool, source):
        return Entry(0)
    view = new_entry(state, handle_pool, handle_pool.buffer_view)
    if not view:
        return Entry(0)
    buffer = buffer_of(state, source)
    view.parent = buffer
    if not buffer:
        release(handle_pool, view, place_of(handle_pool) + HANDLE_POOL_RELEASED)
        return Entry(0)
    view.address = source.address
    view.length = source.length
    view.access = source.access
    view.usage = source.usage
    view.element_type = element_type
    view.encoding = source.encoding
    view.rank = source.rank
    if buffer.owner == OWNER_CODE:
        view.link = buffer.link
    place = dimensions(handle_pool, view)
    for index in range(source.rank):
        store64(place + 8 * index, load64(dimensions(handle_pool, source) + 8 * index))
    store64(place + _ACCESS, load64(dimensions(handle_pool, source) + _ACCESS))
    return view


def view_element_type(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not known_view(handle_pool, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, reference(refs, words, 0).element_type)


def view_encoding_type(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not known_view(handle_pool, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, reference(refs, words, 0).encoding)


def view_rank(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    if not known_view(handle_pool, reference(refs, words, 0)):
        return REFUSED
    return give32(state, values, refs, words, reference(refs, words, 0).rank)


def view_dim(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    view = reference(refs, words, 0)
    index = number(values, words, 1)
    if not known_view(handle_pool, view):
        return REFUSED
    size = load64(dimensions(handle_pool, view) + 8 * index) if 0 <= index < view.rank else 0
    return give64(state, values, refs, words, size)
