"""Describes a decoded module to the native tier.

It has code and signatures, no constants, no names.

It can be written to bytes, which go to the builder process and decide the key of the image.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.vmfb.cconv import CallingConvention, Span
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

if TYPE_CHECKING:
    from jitree.vmfb.program import CallSite, DecodedFunction, DecodedModule

VALUE_TYPES: Final = {"i": "i32", "f": "f32", "I": "i64", "F": "f64", "r": "ref"}
"""Characters of calling conventions → types of values."""


OF_SPAN: Final = -1
"""The record of the kernel whose workgroups run, which is not always the same one (:func:`by_itself`)."""


class FunctionSource(NamedTuple):
    """Names a function's words and its frame. The words are from its first instruction to after its last."""

    ordinal: int
    start: int
    end: int
    value_count: int
    ref_count: int
    arguments: tuple[tuple[str, int], ...]
    """(type, register) of each at entry."""
    results: tuple[str, ...]
    """The types of the results."""
    record: int
    """The number of its record at run time, or OF_SPAN."""


class SiteSource(NamedTuple):
    """Describes a call of an import. It has the types of its flattened arguments and of its results."""

    arguments: tuple[str, ...]
    results: tuple[str, ...]


class ModuleSource(NamedTuple):
    """A module. ``words`` and the indices in ``instruction_words`` are those of its
    :class:`~jitree.vmfb.schema.DecodedModule`."""

    words: array[int]
    instruction_words: array[int]
    functions: tuple[FunctionSource, ...]
    sites: tuple[SiteSource, ...]


def from_program(program: DecodedModule) -> ModuleSource:
    return ModuleSource(
        array("i", program.words.tobytes()),
        program.instruction_words,
        tuple(map(_function, program.functions)),
        tuple(_sites(program)),
    )


def _function(function: DecodedFunction) -> FunctionSource:
    characters = map(str, function.cconv.arguments)
    return FunctionSource(
        function.ordinal,
        function.start,
        function.end,
        function.value_count,
        function.ref_count,
        tuple(
            (VALUE_TYPES[character], register)
            for character, (_, register) in zip(characters, function.argument_slots, strict=True)
        ),
        _types(function.cconv.results),
        function.ordinal,
    )


def by_itself(source: ModuleSource, ordinal: int) -> ModuleSource:
    """A module of one function that calls none: the same one wherever the function lies in its module."""
    row = source.functions[ordinal]
    starts = source.instruction_words
    first, last = bisect_left(starts, row.start), bisect_left(starts, row.end)
    moved = array("i", [word - row.start for word in starts[first:last]])
    function = row._replace(ordinal=0, start=0, end=row.end - row.start, record=OF_SPAN)
    return ModuleSource(source.words[row.start : row.end], moved, (function,), ())


def mnemonics(source: ModuleSource) -> set[str]:
    """Of the instructions that a module has."""
    return {OPCODE_NAMES[BASE_OPCODE[word]] for word in {source.words[at] for at in source.instruction_words}}


def _sites(program: DecodedModule) -> Iterator[SiteSource]:
    """Most of them call one of a few imports, with as many arguments. A call of the program waits for it."""
    made: dict[tuple[int, tuple[int, ...] | None], SiteSource] = {}
    for index in range(program.site_count):
        called = program.site_import(index)
        found = made.get(called)
        if found is None:
            found = made[called] = _site(program.site(index))
        yield found


def _site(site: CallSite) -> SiteSource:
    return SiteSource(_types(_flat(site.cconv, site.segments)), _types(site.cconv.results))


def _flat(cconv: CallingConvention, segments: tuple[int, ...] | None) -> str:
    """The characters of all arguments, spans unrolled."""
    if segments is None:
        return "".join(map(str, cconv.arguments))
    return "".join(
        item.characters * count if isinstance(item, Span) else str(item)
        for item, count in zip(cconv.arguments, segments, strict=True)
    )


def _types(characters: Iterable[str]) -> tuple[str, ...]:
    return tuple(VALUE_TYPES[character] for character in characters)


_AS_JSON: Final = str.maketrans("()'", '[]"')
"""Python's tuples and texts as JSON writes lists and texts."""


def encode(source: ModuleSource) -> bytes:
    """The source as bytes: a line of JSON, then both arrays. The tables have integers and names of types
    only, which Python writes as JSON does: a first result does not wait 2 ms for the module."""
    functions, sites = ([tuple(row) for row in rows] for rows in (source.functions, source.sites))
    tables = repr([len(source.words), functions, sites]).translate(_AS_JSON).replace(",]", "]")
    return tables.encode() + b"\n" + source.words.tobytes() + source.instruction_words.tobytes()


def decode(data: bytes) -> ModuleSource:
    """What :func:`encode` has written."""
    tables, _, rest = data.partition(b"\n")
    import json

    count, functions, sites = json.loads(tables)
    words = array("i", rest[: 4 * count])
    return ModuleSource(
        words,
        array("i", rest[4 * count :]),
        tuple(
            FunctionSource(
                ordinal, start, end, values, refs, tuple(map(tuple, arguments)), tuple(results), record
            )
            for ordinal, start, end, values, refs, arguments, results, record in functions
        ),
        tuple(SiteSource(tuple(arguments), tuple(results)) for arguments, results in sites),
    )
