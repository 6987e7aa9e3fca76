"""Describes taps, profiles and differences as pieces of a page, and of notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jitree.base.events import DISPATCH
from jitree.base.page import SAID, WRONG, Drawing, Notice, PageTable, Piece
from jitree.base.records import Protocol
from jitree.hal.profiling import OPERATION
from jitree.observe.first_difference import table_lines
from jitree.observe.graph import DispatchGraph, TextNumbers, graph_drawing, number_of

if TYPE_CHECKING:
    from jitree.errors import NonFiniteError
    from jitree.observe.first_difference import Compared, Departure
    from jitree.observe.profile_rows import ProfileTable
    from jitree.observe.profiled import DoneCommand, Noted
    from jitree.observe.tensors import ObservedDispatch

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
