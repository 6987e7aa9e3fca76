"""Make, check and read buffer views (``hal.buffer_view.*``). Machine code."""

from __future__ import annotations

from jitree.codegen.primitives import greater, load64, quotient, store64, unlikely
from jitree.codegen.record import place_of
from jitree.hal.checks import tensor_refusal
from jitree.modules.hal.native.buffers import range_length, range_of
from jitree.modules.hal.native.entries import STATE_RELEASED, State, new_entry, release
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
from jitree.types import ENCODING_DENSE, LARGEST_LENGTH

_ACCESS = 8 * MAXIMUM_RANK
_SMALL = 1 << 31
"""Products of two numbers below it do not wrap."""
_BITS = 0xFF
"""The bits of an element type that have the size of one element."""


def dimensions(handle_pool: HandlePoolRecord, view: Entry) -> int:
    """Where a view's dimensions are."""
    return place_of(view) + handle_pool.extension


def known_view(state: State, view: Entry) -> bool:
    """Whether it is a view of which everything is in its entry."""
    return is_kind(view, state.handle_pool.buffer_view) and 0 <= view.rank <= MAXIMUM_RANK


def tensor_length(values: int, words: int, rank: int) -> int:
    """Bytes of a tensor, -1 for a shape that none can have: as ``ElementType.byte_length``."""
    bits = number(values, words, 3) & _BITS
    count, is_full = 1, 1
    for index in range(rank):
        size = number(values, words, 5 + index)
        if size < 0:
            return -1
        if size == 0:
            is_full = 0
        elif unlikely((size | count) >= _SMALL) and count > quotient(LARGEST_LENGTH, size):
            return -1
        else:
            count *= size
    tail = ((count & 7) * bits + 7 * is_full) >> 3
    width = greater(bits, 8) if is_full == 0 else bits
    if unlikely(count >= _SMALL) and width != 0 and count >> 3 > quotient(LARGEST_LENGTH - tail, width):
        return -1
    return is_full * ((count >> 3) * bits + tail)


def described_view(state: State, buffer: Entry, element_type: int, encoding: int, rank: int) -> Entry:
    """A view of a buffer, a reference to which it takes over, without dimensions. 0 if a pool is empty."""
    handle_pool = state.handle_pool
    view = new_entry(state, handle_pool, handle_pool.buffer_view) if buffer else Entry(0)
    if not view:
        release(handle_pool, buffer, place_of(state) + STATE_RELEASED)
        return Entry(0)
    view.parent = buffer
    view.address = buffer.address
    view.length = buffer.length
    view.access = buffer.access
    view.usage = buffer.usage
    view.element_type = element_type
    view.encoding = encoding
    view.rank = rank
    if buffer.owner == OWNER_CODE:
        view.link = buffer.link
    store64(dimensions(handle_pool, view) + _ACCESS, buffer.encoding)
    return view


def view_create(state: State, values: int, refs: int, words: int) -> int:
    handle_pool = state.handle_pool
    source = reference(refs, words, 0)
    rank = argument_count(words) - 5
    if not is_kind(source, handle_pool.buffer) or rank > MAXIMUM_RANK:
        return REFUSED
    offset, encoding = number(values, words, 1), number(values, words, 4)
    length = range_length(source, offset, number(values, words, 2))
    needed = tensor_length(values, words, rank)
    if length < 0 or needed < 0 or (needed > length and encoding == ENCODING_DENSE):
        return REFUSED
    buffer = range_of(state, handle_pool, source, offset, length)
    view = described_view(state, buffer, number(values, words, 3), encoding, rank)
    if not view:
        return REFUSED
    place = dimensions(handle_pool, view)
    for index in range(rank):
        store64(place + 8 * index, number(values, words, 5 + index))
    return give(state, refs, words, view)


def view_assert(state: State, values: int, refs: int, words: int) -> int:
    view = reference(refs, words, 0)
    if not known_view(state, view) or not is_kind(reference(refs, words, 1), KIND_BUFFER):
        return REFUSED
    rank = view.rank
    encoding, element_type = number(values, words, 3), number(values, words, 2)
    refusal = tensor_refusal(view.encoding, encoding, view.element_type, element_type)
    if refusal or rank != argument_count(words) - 4:
        return REFUSED
    place = dimensions(state.handle_pool, view)
    for index in range(rank):
        if load64(place + 8 * index) != number(values, words, 4 + index):
            return REFUSED
    return finish(state, refs, words)


def view_buffer(state: State, values: int, refs: int, words: int) -> int:
    """Gives the buffer of Python's view an entry that keeps it."""
    view = reference(refs, words, 0)
    if not known_view(state, view):
        return REFUSED
    buffer = buffer_of(state, view)
    return give(state, refs, words, buffer) if buffer else REFUSED


def buffer_of(state: State, view: Entry) -> Entry:
    """A reference to the buffer of a view; 0 without an entry."""
    if view.owner == OWNER_CODE:
        return retain(view.parent)
    handle_pool = state.handle_pool
    buffer = new_entry(state, handle_pool, handle_pool.buffer)
    if buffer:
        extension = place_of(view) + handle_pool.extension
        buffer.address = view.address
        buffer.length = view.length
        buffer.access = view.access
        buffer.usage = view.usage
        buffer.encoding = load64(extension + _ACCESS)
        buffer.parent = retain(view)
        store64(place_of(buffer) + handle_pool.extension, 0)
    return buffer


def retyped(state: State, source: Entry, element_type: int) -> Entry:
    """Views elements as another type of their size. 0 as of :func:`buffer_of`."""
    if not known_view(state, source) or source.address == 0:
        return Entry(0)
    view = described_view(state, buffer_of(state, source), element_type, source.encoding, source.rank)
    if view:
        place = dimensions(state.handle_pool, view)
        for index in range(source.rank):
            store64(place + 8 * index, load64(dimensions(state.handle_pool, source) + 8 * index))
    return view


def view_element_type(state: State, values: int, refs: int, words: int) -> int:
    view = reference(refs, words, 0)
    return give32(state, values, refs, words, view.element_type) if known_view(state, view) else REFUSED


def view_encoding_type(state: State, values: int, refs: int, words: int) -> int:
    view = reference(refs, words, 0)
    return give32(state, values, refs, words, view.encoding) if known_view(state, view) else REFUSED


def view_rank(state: State, values: int, refs: int, words: int) -> int:
    view = reference(refs, words, 0)
    return give32(state, values, refs, words, view.rank) if known_view(state, view) else REFUSED


def view_dim(state: State, values: int, refs: int, words: int) -> int:
    """0 for a dimension that the view does not have."""
    view = reference(refs, words, 0)
    if not known_view(state, view):
        return REFUSED
    index = number(values, words, 1)
    size = 0
    if 0 <= index < view.rank:
        size = load64(dimensions(state.handle_pool, view) + 8 * index)
    return give64(state, values, refs, words, size)
