"""Finds which dispatch makes what for which, as the graph of a page.

An edge goes from the dispatch that wrote the latest bytes of a range to the one that reads it. Where many
tensors share what is bound to a dispatch, and nothing tells which of them it reads, those come into question
that it has in its numbers (push constants), else those that nothing has read yet, else the latest: the page
draws such edges dashed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import DISPATCH
from jitree.base.finalizers import Unique
from jitree.base.page import SAID, WRONG, Drawing, Notice, PageTable, Piece
from jitree.base.records import Protocol
from jitree.hal.profiling import OPERATION
from jitree.observe.first_difference import table_lines
from jitree.observe.regions import contains, overlaps
from jitree.observe.tensors import ARGUMENT

if TYPE_CHECKING:
    from jitree.errors import NonFiniteError
    from jitree.hal.stepwise import Extent
    from jitree.observe.first_difference import Compared, Departure
    from jitree.observe.profile_rows import ProfileTable
    from jitree.observe.profiled import DoneCommand, Noted
    from jitree.observe.tensors import ObservedDispatch, ObservedTensor


MOST_NODES: Final = 20_000
"""Dispatches of a page."""
FILL: Final = "fill"
EVERYTHING: Final = ("*", "copy", FILL, "update", "read", "write")
"""Patterns of a tap that sees all operations of a queue."""

Edge = tuple[int, int, bool]
"""From, to, and whether it is sure."""


class LatestWrites:
    """Tells who wrote the latest bytes of memory. Ranges share no byte, and are in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rows: list[tuple[int, int, Extent]] = []
        """End of the range, the writer, and all that it wrote there."""

    def put(self, extent: Extent, writer: int) -> None:
        start, end = extent[0], sum(extent)
        if start == end:
            return
        first, last = self._between(start, end)
        kept = []
        for begin, row in zip(self._starts[first:last], self._rows[first:last], strict=True):
            if begin < start:
                kept.append((begin, (start, *row[1:])))
            if row[0] > end:
                kept.append((end, row))
        kept.append((start, (end, writer, extent)))
        kept.sort(key=lambda pair: pair[0])
        self._starts[first:last] = [begin for begin, _ in kept]
        self._rows[first:last] = [row for _, row in kept]

    def of(self, extent: Extent) -> dict[int, Extent]:
        """The writers of a range, with what they wrote."""
        first, last = self._between(extent[0], sum(extent))
        return {writer: written for _, writer, written in self._rows[first:last]}

    def _between(self, start: int, end: int) -> tuple[int, int]:
        """Places of the ranges that share a byte with one."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        if first < len(self._rows) and self._rows[first][0] <= start:
            first += 1
        return first, max(first, bisect_left(self._starts, end))


class DispatchGraph(Unique):
    """The dispatches of calls, in order, and which one reads what another has made."""

    def __init__(self, dispatches: Iterable[ObservedDispatch]) -> None:
        self.dispatches = [*dispatches]
        self.left_out = max(0, len(self.dispatches) - MOST_NODES)
        del self.dispatches[MOST_NODES:]
        self._writes = LatestWrites()
        self._read: set[int] = set()
        """Those that something has read."""
        self.edges = [edge for number in range(len(self.dispatches)) for edge in self._edges(number)]

    def _edges(self, number: int) -> Iterator[Edge]:
        """Those to a dispatch, whose writes are noted then."""
        dispatch, found = self.dispatches[number], dict[int, bool]()
        for tensor in dispatch.inputs:
            if not tensor.origin.startswith(ARGUMENT):
                for writer, is_sure in self._sources(dispatch, tensor):
                    found[writer] = found.get(writer, False) or is_sure
        for tensor in dispatch.outputs:
            if self._is_known(dispatch, tensor):
                found |= dict.fromkeys(self._padding(tensor), True)
                self._writes.put(tensor.extent, number)
        self._read |= found.keys()
        return ((writer, number, is_sure) for writer, is_sure in found.items())

    def _sources(self, dispatch: ObservedDispatch, tensor: ObservedTensor) -> Iterator[tuple[int, bool]]:
        operand = dispatch.operands[tensor.binding]
        writers = self._writes.of(operand)
        others = {
            writer: written
            for writer, written in writers.items()
            if not any(overlaps(written, made.extent) for made in dispatch.outputs)
        }
        places = (operand[0] + constant for constant in dispatch.constants if constant < operand[1])
        named = [
            writer
            for place in places
            for writer, written in self._writes.of((place, 1)).items()
            if written[0] == place and writer in others
        ]
        yield from ((writer, True) for writer in named)
        if tensor.extent != operand or len(writers) < 2 or is_one(writers):
            yield from ((writer, True) for writer in self._writes.of(tensor.extent))
        elif not named:
            unread = [writer for writer in others if writer not in self._read]
            yield from ((writer, False) for writer in unread or sorted(others)[-1:])

    def _padding(self, made: ObservedTensor) -> Iterator[int]:
        """Fills around what is written: the two are one tensor."""
        for writer, written in self._writes.of(made.extent).items():
            if self.dispatches[writer].kind == FILL and contains(written, made.extent):
                yield writer

    def _is_known(self, dispatch: ObservedDispatch, tensor: ObservedTensor) -> bool:
        """Whether that is what was written: a dispatch that changes nothing shows all that is bound."""
        is_whole = dispatch.kind == DISPATCH and tensor.extent == dispatch.operands[tensor.binding]
        return not is_whole or bool(tensor.changes) or len(self._writes.of(tensor.extent)) < 2

    @property
    def calls(self) -> int:
        return len({dispatch.call for dispatch in self.dispatches})


def is_one(writers: Mapping[int, Extent]) -> bool:
    """Whether one has written over a part of what the others have: padding and its inside."""
    whole = max(writers.values(), key=lambda extent: extent[1])
    return all(contains(whole, extent) for extent in writers.values())


class TextNumbers:
    """Texts, each once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def graph_drawing(
    graph: DispatchGraph,
    commands: Iterable[DoneCommand] = (),
    rows: Sequence[Compared] = (),
    first: int | None = None,
) -> Drawing:
    """Describes a graph, with times and differences as far as there are some. ``first``: the wrong one."""
    words = TextNumbers()
    times = _times(graph.dispatches, commands)
    data = {
        "nodes": [_node(dispatch, words) for dispatch in graph.dispatches],
        "edges": graph.edges,
        "times": times,
        "differences": {
            number: _difference(row, words)
            for row in sorted(rows, key=lambda row: -row.number)
            if (number := number_of(graph, row.ordinals[0])) is not None
        },
        "first": first,
        "calls": graph.calls,
    }
    return Drawing("graph", data | {"words": list(words.numbers)})


def number_of(graph: DispatchGraph, ordinal: int | None) -> int | None:
    """The node of a dispatch of the last call."""
    numbers = reversed(range(0 if ordinal is None else len(graph.dispatches)))
    return next((number for number in numbers if graph.dispatches[number].ordinal == ordinal), None)


def _node(dispatch: ObservedDispatch, words: TextNumbers) -> list[Any]:
    return [
        words(dispatch.name),
        words(dispatch.kind),
        dispatch.ordinal,
        dispatch.call,
        dispatch.workgroups,
        words(dispatch.location),
        words(dispatch.call_site),
        words(dispatch.function),
        [
            [tensor.binding, words(tensor.type), words(tensor.source), words(tensor.origin)]
            for tensor in dispatch.inputs
        ],
        [
            [tensor.binding, words(tensor.type), words(tensor.source), _statistics(tensor)]
            for tensor in dispatch.outputs
        ],
    ]


def _statistics(tensor: ObservedTensor) -> list[Any] | None:
    """Numbers in the order of the script."""
    stats = tensor.stats
    if stats is None:
        return None
    ends = stats.min, stats.max, stats.mean, stats.rms
    return [*ends, stats.zeros, stats.nans, stats.infinities, stats.histogram]


def _difference(row: Compared, words: TextNumbers) -> list[Any]:
    of = row.closeness
    place = "" if of.first is None else str(of.first)
    return [words(row.operand), of.differing, of.size, of.max_abs, of.max_rel, of.max_ulp, words(place)]


def _times(dispatches: Sequence[ObservedDispatch], commands: Iterable[DoneCommand]) -> dict[int, float]:
    """Microseconds by node: what has one name runs in one order in all calls, so that the first of each name
    in the profile is the first in a call. A name has none where its numbers do not fit."""
    measured, nodes = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    for command in sorted(commands, key=lambda command: command.begun):
        measured[command.name].append((command.ended - command.begun) / 1e3)
    for number, dispatch in enumerate(dispatches):
        nodes[dispatch.name].append(number)
    found = {}
    for name, numbers in nodes.items():
        times = measured[name]
        if times and len(times) % len(numbers) == 0:
            calls = [times[first : first + len(numbers)] for first in range(0, len(times), len(numbers))]
            for place, number in enumerate(numbers):
                found[number] = min(call[place] for call in calls)
    return found


# -- Pieces of a page ------------------------------------------------------------------------------------


_MOST_EVENTS: Final = 50_000
"""Of a timeline."""
_MOST_ALONE: Final = 50
"""Dispatches without a counterpart that a page names."""


class Found(Protocol):
    """What a comparison has found, as :func:`jitree.diff` gives it."""

    rows: list[Compared]
    first: Departure | None
    alone: tuple[list[str], list[str]]


def dispatch_pieces(
    dispatches: Iterable[ObservedDispatch],
    commands: Iterable[DoneCommand] = (),
    fault: NonFiniteError | None = None,
    found: Found | None = None,
) -> list[Piece]:
    """A graph with times, the first value that is not finite, and differences; and what it cannot show."""
    graph = DispatchGraph(dispatches)
    departure = None if found is None else found.first
    wrong, pieces = None, list[Piece]()
    if fault is not None:
        wrong = number_of(graph, fault.ordinal)
        pieces.append(Notice(f"the first value that is not finite: {fault.message}", WRONG, wrong))
        pieces += _earlier(graph, wrong)
    if departure is not None:
        node = number_of(graph, departure.ordinals[0])
        wrong = node if wrong is None else wrong
        pieces.append(Notice(f"the first difference: {departure}", WRONG, node))
    compared = [] if found is None else difference_pieces(found)
    if not graph.dispatches:
        return [*pieces, *(compared or [Notice("no dispatch has run, so there is no graph")])]
    rows = [] if found is None else found.rows
    return [*pieces, *graph_notices(graph), graph_drawing(graph, commands, rows, wrong), *compared]


def _earlier(graph: DispatchGraph, wrong: int | None) -> Iterator[Notice]:
    """What may be wrong before: a check believes guessed types only where elements are of usual size."""
    for number, dispatch in enumerate(graph.dispatches[:wrong]):
        stats = dispatch.stats
        if stats is not None and stats.nans + stats.infinities:
            source = dispatch.outputs[0].source
            text = f"{dispatch.label} shows NaN or infinity before; the type {stats.type} is from: {source}"
            yield Notice(text, SAID, number)
            return


def difference_pieces(found: Found) -> list[Piece]:
    """The table of all that both have made, and what only one has."""
    count = f"{len(found.rows)} tensors were compared"
    agreed = [Notice(f"nothing departs: {count}", SAID)] if found.first is None else []
    header, *lines = table_lines(found.rows)
    alone = [
        f"only {name} has {label}" for name, labels in zip("ab", found.alone, strict=True) for label in labels
    ]
    return [*agreed, PageTable("Differences", header, lines, "; ".join(alone[:_MOST_ALONE]))]


def graph_notices(graph: DispatchGraph) -> Iterator[Notice]:
    """What a graph cannot show, and why."""
    if graph.left_out:
        yield Notice(
            f"the graph has the first {len(graph.dispatches)} dispatches; {graph.left_out} more have run",
            SAID,
        )
    names = [dispatch for dispatch in graph.dispatches if dispatch.kind == DISPATCH]
    if names and not any("compiled from" in dispatch.location for dispatch in names):
        why = "the compiler was told to strip them, or the release has none"
        yield Notice(f"the module does not say which lines of the source its dispatches come from: {why}")
    unsure = sum(not is_sure for _, _, is_sure in graph.edges)
    if unsure:
        why = "many tensors share what is bound there, and nothing tells which of them is read"
        yield Notice(f"{unsure} of {len(graph.edges)} edges are likely, not sure (dashed): {why}", SAID)


def profile_pieces(tables: Iterable[ProfileTable], noted: Noted) -> list[Piece]:
    """Tables and a timeline."""
    found = list[Piece]()
    for table in tables:
        header, rows, note = table.parts()
        if rows:
            found.append(PageTable(f"Time by {table.by}", header, rows, note))
    return [*found, timeline(noted)]


def timeline(noted: Noted) -> Drawing:
    """Calls, imports, and what devices did: tracks of events in microseconds."""
    words, tracks, events = TextNumbers(), TextNumbers(), list[list[Any]]()

    def add(track: str, name: str, begun: int, ended: int) -> None:
        start = (begun - noted.begun) / 1e3
        events.append([tracks(track), words(name), round(start, 2), round((ended - begun) / 1e3, 3)])

    threads = TextNumbers()
    for call in noted.calls:
        add(f"calls, thread {threads(str(call.thread))}", call.function, call.begun, call.ended)
    for each in noted.imports:
        add(f"imports, thread {threads(str(each.thread))}", each.name, each.begun, each.ended)
    for device, measured in noted.measurements:
        is_operation = measured.kind == OPERATION
        worker = "queue" if is_operation else f"{device.profiler.worker} {measured.worker}"
        add(f"{device.uri} {worker}", measured.name, measured.start, measured.start + measured.duration)
    left_out = max(0, len(events) - _MOST_EVENTS)
    data = {"words": list(words.numbers), "tracks": list(tracks.numbers), "events": events[:_MOST_EVENTS]}
    return Drawing("timeline", data | {"left_out": left_out})
