"""Draws profiles and statistics of tapped tensors with matplotlib (``pip install 'jitree[plots]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.errors import InvalidArgumentError, UnavailableError, pass_interruption, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jitree.observe.profile_rows import ProfileTable
    from jitree.observe.tensors import ObservedDispatch

_ROW_INCHES: Final = 0.32
_WIDTH_INCHES: Final = 9.0
_LONGEST: Final = 60
"""Characters of a name beside a bar."""
_MILLISECONDS: Final = 1e3


def _figure(rows: int) -> Figure:
    """A figure that is in no window and in no list of pyplot: a notebook shows it, and it may be dropped."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        pass_interruption(error)
        raise UnavailableError("matplotlib draws pictures; pip install 'jitree[plots]'") from None
    return Figure(figsize=(_WIDTH_INCHES, 1.2 + _ROW_INCHES * max(rows, 1)), layout="constrained")


def _name(text: str) -> str:
    """A name as matplotlib shows it: what is between dollars would be a formula."""
    text = printable(text).replace("$", r"\$")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def plot_table(table: ProfileTable, count: int) -> Figure:
    """A bar for each of the rows with the most time, with its share; what is left is the last bar."""
    if count < 1:
        raise InvalidArgumentError(f"plot: count={count}; at least one bar is to be drawn")
    shown = table[:count]
    bars = [(row.name, row.total, row.share) for row in shown]
    left = [*table[count:], *table.rest]
    if left:
        bars.append((f"{len(left)} others", sum(row.total for row in left), sum(row.share for row in left)))
    figure = _figure(len(bars))
    axes = figure.add_subplot()
    places = range(len(bars))
    drawn = axes.barh(places, [total * _MILLISECONDS for _, total, _ in bars])
    axes.bar_label(drawn, [f" {share:.1%}" for _, _, share in bars])
    axes.set_yticks(places, [_name(name) for name, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(f"time by {table.by}")
    return figure


def plot_statistics(dispatches: Sequence[ObservedDispatch]) -> Figure:
    """Draws range and root mean square of each output of tapped dispatches. A red cross says that there are
    values that are not finite. INVALID_ARGUMENT without statistics."""
    found: list[tuple[str, Any]] = [
        (f"{dispatch.ordinal} {dispatch.name}", tensor.stats)
        for dispatch in dispatches
        for tensor in dispatch.outputs
        if tensor.stats is not None
    ]
    if not found:
        raise InvalidArgumentError("plot: there are no statistics; tap with keep='stats', and make a call")
    figure = _figure(len(found))
    axes = figure.add_subplot()
    for place, (_, stats) in enumerate(found):
        axes.plot([stats.min, stats.max], [place, place], color="tab:blue", linewidth=4, alpha=0.5)
        axes.plot([stats.rms], [place], "k|")
        if stats.nans or stats.infinities:
            axes.plot([0.0], [place], "rx", markersize=9)
    axes.set_yticks(range(len(found)), [_name(name) for name, _ in found])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1e-3)
    axes.set_xlabel("values from min to max; | root of the mean square; x not finite")
    axes.set_title("outputs of dispatches")
    return figure
