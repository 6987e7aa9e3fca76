"""Handlers of branches, switches and the register moves on branches."""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler

MNEMONICS: Final = (
    "br", "br.bare", "break", "cond_br", "cond_break", "br_table", "switch.i32", "switch.i64", "switch.f32",
    "switch.f64",
)  # fmt: skip

_CONDITIONAL_SIZE: Final = 4
"""Words of a ``cond_br``."""

_PREDICTED_CASES: Final = 4
"""How many cases of a ``br_table`` are branches that the processor predicts."""


def emit(handler: Handler, mnemonic: str) -> None:
    if not mnemonic.startswith("switch."):
        handler.spend()
    if mnemonic in ("br", "break"):
        _emit_br(handler)
    elif mnemonic == "br.bare":
        handler.move_to(handler.target(1))
    elif mnemonic in ("cond_br", "cond_break"):
        _emit_conditional(handler)
    elif mnemonic == "br_table":
        _emit_table(handler)
    else:
        _emit_switch(handler, "i64" if mnemonic.endswith("64") else "i32")


def _emit_br(handler: Handler) -> None:
    """Any number of moves of any kind, in list order; then on to the target."""
    target = handler.target(1)
    first = handler.place(3)
    with handler.counted(handler.ordinal(2)) as index:
        move = handler.element("[3 x i32]", first, index)
        tag = handler.load("i32", move)
        source = handler.ordinal_at(handler.element("i32", move, "1"))
        destination = handler.ordinal_at(handler.element("i32", move, "2"))
        handler.do(
            f"call void @vm.move(i32 {tag}, i64 {source}, i64 {destination}, ptr %values, ptr %refs, "
            "ptr %values, ptr %refs, ptr %state)"
        )
    handler.move_to(target)


def emit_shape(handler: Handler, shape: str) -> None:
    """A branch whose number and kinds of moves are known: ``br:`` and ``w`` or ``d`` for each."""
    handler.spend()
    target = handler.target(1)
    emit_moves(handler, shape)
    handler.move_to(target)


def emit_moves(handler: Handler, shape: str) -> None:
    """The moves of such a branch."""
    for number, letter in enumerate(shape.removeprefix("br:")):
        kind = {"w": "i32", "d": "i64"}[letter]
        source = 4 + 3 * number
        handler.fetch(source, 2)
        handler.set_value(kind, source + 1, handler.value(kind, source))


def _emit_conditional(handler: Handler) -> None:
    emit_two_ways(handler, _condition(handler), 2)


def _condition(handler: Handler) -> str:
    return handler.let(f"icmp ne i32 {handler.value('i32', 1)}, 0")


def emit_two_ways(handler: Handler, condition: str, position: int) -> None:
    """A real branch whose two sides dispatch separately, so that the processor predicts them apart. The
    displacements if true and if false stand at a word position."""
    if_true, if_false = handler.fresh("true"), handler.fresh("false")
    handler.branch(condition, if_true, if_false)
    handler.label(if_true)
    handler.go(handler.target(position))
    handler.label(if_false)
    handler.go(handler.target(position + 1))


def emit_conditional_next(handler: Handler, name: str) -> None:
    """A ``cond_br`` one of whose blocks comes next: the address of that one does not wait for a load."""
    handler.spend()
    sides = {"true": handler.target(2), "false": handler.target(3)}
    sides[name.removeprefix("cond_br:")] = handler.place(_CONDITIONAL_SIZE)
    labels = {side: handler.fresh(side) for side in sides}
    handler.branch(_condition(handler), labels["true"], labels["false"])
    for side, address in sides.items():
        handler.label(labels[side])
        handler.go(address)


def _emit_table(handler: Handler) -> None:
    """index, default displacement, count, displacements

    Each of the first cases has its way, so that the next instruction's address follows from a
    prediction and need not wait for the index."""
    index = handler.unsigned_value(1)
    default, case, other = handler.fresh("default"), handler.fresh("case"), handler.fresh("other")
    handler.branch(handler.let(f"icmp ult i64 {index}, {handler.ordinal(3)}"), case, default)
    handler.label(case)
    labels = [handler.fresh("case") for _ in range(_PREDICTED_CASES)]
    rows = " ".join(f"i64 {number}, label %{label}" for number, label in enumerate(labels))
    handler.do(f"switch i64 {index}, label %{other} [ {rows} ]")
    for number, label in enumerate(labels):
        handler.label(label)
        handler.go(handler.target(4 + number))
    handler.label(default)
    handler.go(handler.target(2))
    handler.label(other)
    place = handler.element("i32", handler.place(4), index)
    distance = handler.let(f"sext i32 {handler.load('i32', place)} to i64")
    handler.go(handler.element("i32", handler.place(0), distance))


def _emit_switch(handler: Handler, kind: str) -> None:
    """index, default, count, cases, result"""
    index = handler.unsigned_value(1)
    count = handler.ordinal(3)
    inside = handler.let(f"icmp ult i64 {index}, {count}")
    cases = handler.place(4)
    case = handler.let(f"getelementptr i32, ptr {cases}, i64 {index}")
    chosen = handler.let(f"select i1 {inside}, ptr {case}, ptr {handler.place(2)}")
    value = handler.load(kind, handler.value_place(handler.ordinal_at(chosen)))
    out = handler.let(f"getelementptr i32, ptr {cases}, i64 {count}")
    handler.store(kind, value, handler.value_place(handler.ordinal_at(out)))
    handler.move_to(handler.let(f"getelementptr i32, ptr {out}, i64 1"))
