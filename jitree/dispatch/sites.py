"""Native calls bound to their call sites.

Each calling convention (with the tuple counts of its spans) gets one generated function that makes closures:
registers are cell variables, nothing is parsed when the call is made. Making that takes as long as a hundred
calls; so a site's first call, which is the only one of most (those of initializers), goes without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple
from jitree.dispatch.engine import Pending
from jitree.dispatch.host_export import HostExport, results
from jitree.errors import pass_interruption
from jitree.vmfb.cconv import CallingConvention, RegisterSlot, Span, parse
from jitree.vmfb.program import CallSite
from jitree.vmfb.words import TAG_REF_MOVE, TAG_VALUE64

if TYPE_CHECKING:
    from jitree.regs.machine import Machine
    from jitree.regs.records import SiteCall

VIEWS: Final = {"i": "i32", "f": "f32", "I": "i64", "F": "f64", "r": "refs"}
"""The machine's view that holds registers of each character."""
_CACHED_SITES: Final = 4096


class HostTarget(NamedTuple):
    """A host function with the state of its module in the context."""

    full_name: str
    export: HostExport
    state: object


def call_once(machine: Machine, site: CallSite, target: HostTarget) -> bool:
    """Does what the call of :func:`bind` does, with nothing prepared."""
    result = target.export.function(target.state, *_arguments(machine, site))
    moved = [register for tag, register in site.arguments if tag == TAG_REF_MOVE]
    if moved:
        machine.table.clear(machine.refs, moved)
    if isinstance(result, Pending):
        machine.pending = result
        machine.completion = partial(_complete, site)
        return True
    _complete(site, machine, result)
    return False


def _arguments(machine: Machine, site: CallSite) -> list[object]:
    """What registers hold, a span as a list."""
    convention, counts = site.cconv, _span_counts(site.cconv, site.segments)
    object_of, remaining = machine.table.object, iter(counts)
    characters = [
        item.characters * next(remaining) if isinstance(item, Span) else item for item in convention.arguments
    ]
    values: list[object] = [
        object_of(machine.refs[register])
        if character == "r"
        else getattr(machine, VIEWS[character])[register >> (tag == TAG_VALUE64)]
        for character, (tag, register) in zip("".join(characters), site.arguments, strict=True)
    ]
    return _with_spans(convention, counts, values) if counts else values


def _with_spans(convention: CallingConvention, counts: Sequence[int], values: list[object]) -> list[object]:
    """Groups the values of each span, as tuples where it has several."""
    rest, remaining = iter(values), iter(counts)
    grouped: list[object] = []
    for item in convention.arguments:
        if not isinstance(item, Span):
            grouped.append(next(rest))
            continue
        rows = [[next(rest) for _ in item.characters] for _ in range(next(remaining))]
        grouped.append([row[0] if len(row) == 1 else tuple(row) for row in rows])
    return grouped


def _complete(site: CallSite, machine: Machine, result: object) -> None:
    """Writes what the function returned."""
    values = results(site.cconv, result)
    for index, (character, slot, value) in enumerate(
        zip(site.cconv.results, site.results, values, strict=True)
    ):
        if character == "r":
            machine.table.put_object(machine.refs, slot[1], value)
            continue
        view, register = getattr(machine, VIEWS[character]), register_index(slot)
        try:
            view[register] = value
        except (TypeError, ValueError, OverflowError) as error:
            pass_interruption(error)
            from jitree.dispatch.conversion import result as register_value

            view[register] = register_value(value, character, index)


def bind(site: CallSite, target: HostTarget) -> SiteCall:
    """The call of a site: reads the arguments, calls the function, writes the results.

    The closure returns true if the function has to be waited for; ``machine.pending`` and
    ``machine.completion`` are set then.
    """
    convention = site.cconv
    counts = _span_counts(convention, site.segments)
    factory = _factory(convention.text, counts)
    moved = tuple(register for tag, register in site.arguments if tag == TAG_REF_MOVE)
    registers = [register_index(slot) for slots in (site.arguments, site.results) for slot in slots]
    return factory(target.export.function, target.state, moved, *registers)  # type: ignore[no-any-return]


def register_index(slot: RegisterSlot) -> int:
    """Where a register is in the view of its kind."""
    return slot[1] >> 1 if slot[0] == TAG_VALUE64 else slot[1]


def _span_counts(convention: CallingConvention, segments: Sequence[int] | None) -> tuple[int, ...]:
    if segments is None:
        return ()
    pairs = zip(convention.arguments, segments, strict=True)
    return tuple(count for item, count in pairs if isinstance(item, Span))


@lru_cache(maxsize=_CACHED_SITES)
def _factory(text: str, counts: tuple[int, ...]) -> Callable[..., Any]:
    from jitree.dispatch import conversion

    convention = parse(text)
    source = _source(convention, counts)
    scope: dict[str, Any] = {"Pending": Pending, "result_value": conversion.result, "convention": convention}
    scope["result_list"] = results
    exec(compile(source, f"<call site of {text}>", "exec"), scope)
    return scope["factory"]  # type: ignore[no-any-return]


def _source(convention: CallingConvention, counts: tuple[int, ...]) -> str:
    reads, characters = _reads(convention, counts)
    results = convention.results
    names = [*(f"a{n}" for n in range(len(characters))), *(f"r{n}" for n in range(len(results)))]
    used = sorted({VIEWS[character] for character in characters})
    lines = [
        f"def factory({', '.join(['function', 'state', 'moved', *names])}):",
        "    def call(machine):",
        *(f"        {view} = machine.{view}" for view in used),
        *(["        object_of = machine.table.object"] if "r" in characters else []),
        f"        result = function({', '.join(['state', *reads])})",
        "        if moved:",
        "            machine.table.clear(machine.refs, moved)",
        "        if result.__class__ is Pending:",
        "            machine.pending = result",
        "            machine.completion = complete",
        "            return True",
        "        complete(machine, result)" if results else "        if result is not None:",
        *([] if results else ["            result_list(convention, result)"]),
        "        return False",
        "    def complete(machine, result):",
        *_writes(results),
        "    return call",
    ]
    return "\n".join(lines)


def _reads(convention: CallingConvention, counts: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """The expression of each argument, and the character of each register in order."""
    characters: list[str] = []
    expressions: list[str] = []
    remaining = iter(counts)

    def read(character: str) -> str:
        register = f"{VIEWS[character]}[a{len(characters)}]"
        characters.append(character)
        return f"object_of({register})" if character == "r" else register

    for item in convention.arguments:
        if isinstance(item, Span):
            rows = [[read(character) for character in item.characters] for _ in range(next(remaining))]
            texts = [row[0] if len(row) == 1 else f"({', '.join(row)})" for row in rows]
            expressions.append(f"[{', '.join(texts)}]")
        else:
            expressions.append(read(item))
    return expressions, characters


def _writes(results: str) -> list[str]:
    if not results:
        return ["        if result is not None:", "            result_list(convention, result)"]
    lines = []
    if len(results) > 1:
        lines.append("        result = result_list(convention, result)")
    for index, character in enumerate(results):
        value = "result" if len(results) == 1 else f"result[{index}]"
        if character == "r":
            lines.append(f"        machine.table.put_object(machine.refs, r{index}, {value})")
            continue
        target = f"machine.{VIEWS[character]}[r{index}]"
        lines += [
            "        try:",
            f"            {target} = {value}",
            "        except (TypeError, ValueError, OverflowError):",
            f"            {target} = result_value({value}, {character!r}, {index})",
        ]
    return lines
