"""Writes handlers of branches, calls between bytecode functions, and returns.

The callee's registers lie after the caller's in the same arenas; a frame record links them. A full stack
leaves the loop, where the plain tier reports it. Calls of imports that are not bytecode leave the loop as
well, unless there is machine code for the function, which is given the registers and does the call.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.fast.handler import Handler
from jitree.regs.layout import COMPILED_DONE, FRAME, FUNCTION, IMPORT, MODULE, STATE

CALLS: Final = ("return", "import.resolved", "call.internal", "call.import", "host.exit")

BRANCHES: Final = (
    "br", "br.bare", "break", "cond_br", "cond_break", "br_table", "switch.i32", "switch.i64", "switch.f32",
    "switch.f64",
)  # fmt: skip

_CONDITIONAL_SIZE: Final = 4
"""Words of a ``cond_br``."""

_PREDICTED_CASES: Final = 4
"""How many cases of a ``br_table`` are branches that the processor predicts."""


def emit_call(handler: Handler, mnemonic: str) -> None:
    if mnemonic == "return":
        _emit_return(handler)
    elif mnemonic == "call.internal":
        _emit_call_internal(handler)
    elif mnemonic == "call.import":
        _emit_call_import(handler)
    elif mnemonic == "host.exit":
        handler.tail_call("@exit", handler.place(0))
    else:
        _emit_resolved(handler)


def _record(handler: Handler, table: str, ordinal: str, size: int) -> str:
    """The address of a record in one of the current module's tables."""
    records = handler.pointer_field(handler.pointer_field("%state", STATE["module"]), MODULE[table])
    return handler.element(f"[{size} x i8]", records, ordinal)


def _emit_resolved(handler: Handler) -> None:
    record = _record(handler, "imports", handler.ordinal(1), IMPORT.size)
    resolved = handler.load("i64", handler.field(record, IMPORT["resolved"]))
    handler.set_value("i32", 2, handler.let(f"trunc i64 {resolved} to i32"))
    handler.advance(3)


def _emit_call_internal(handler: Handler) -> None:
    """size, function, argument count, result count, arguments (tag, source, destination), results"""
    handler.spend()
    function = _record(handler, "functions", handler.ordinal(2), FUNCTION.size)
    values, refs = _enter(handler, function)
    count = handler.ordinal(3)
    first = handler.place(5)
    with handler.counted(count) as index:
        argument = handler.element("[3 x i32]", first, index)
        _emit_move(handler, argument, handler.element("i32", argument, "2"), values, refs)
    _begin(handler, function, values, refs, handler.element("[3 x i32]", first, count))


def _emit_call_import(handler: Handler) -> None:
    """size, call site, import, argument count, result count, arguments (tag, source), results"""
    record = _record(handler, "imports", handler.ordinal(3), IMPORT.size)
    function = handler.pointer_field(record, IMPORT["function"])
    across, native = handler.fresh("across"), handler.fresh("native")
    handler.branch(handler.let(f"icmp ne ptr {function}, null"), across, native)
    handler.label(native)
    _emit_call_compiled(handler, record)
    handler.label(across)
    handler.spend()
    values, refs = _enter(handler, function)
    count = handler.ordinal(4)
    first = handler.place(6)
    slots = handler.pointer_field(function, FUNCTION["arguments"])
    with handler.counted(count) as index:
        argument = handler.element("[2 x i32]", first, index)
        _emit_move(handler, argument, handler.element("i32", slots, index), values, refs)
    module = handler.pointer_field(function, FUNCTION["module"])
    handler.store_pointer(module, handler.field("%state", STATE["module"]))
    _begin(handler, function, values, refs, handler.element("[2 x i32]", first, count))


def _emit_call_compiled(handler: Handler, record: str) -> None:
    """Calls the machine code of a native function and goes on after the call."""
    code = handler.pointer_field(record, IMPORT["compiled"])
    handler.require(handler.let(f"icmp ne ptr {code}, null"))
    words = handler.place(6)
    status = handler.let(f"call i32 {code}(ptr %state, ptr %values, ptr %refs, ptr {words})")
    handler.require(handler.let(f"icmp eq i32 {status}, {COMPILED_DONE}"))
    before = handler.fuel_left()
    handler.spend_import()
    handler.go(handler.element("i32", handler.place(0), handler.ordinal(1)))
    handler.set_fuel(before)


def _emit_move(handler: Handler, entry: str, destination: str, values: str, refs: str) -> None:
    """Moves the register that an entry (tag, source) names into another frame."""
    tag = handler.load("i32", entry)
    source = handler.ordinal_at(handler.element("i32", entry, "1"))
    target = handler.ordinal_at(destination)
    handler.do(
        f"call void @vm.move(i32 {tag}, i64 {source}, i64 {target}, ptr %values, ptr %refs, ptr {values}, "
        f"ptr {refs}, ptr %state)"
    )


def _enter(handler: Handler, function: str) -> tuple[str, str]:
    """Checks the stack, makes a frame with zero registers after the current one's; returns their addresses.

    The new frame's record is filled, but for what the call itself knows; it is not yet current.
    """
    frame = handler.pointer_field("%state", STATE["frame"])
    values = handler.pointer_field(frame, FRAME["values_end"])
    refs = handler.pointer_field(frame, FRAME["refs_end"])
    value_count = handler.ordinal_at(handler.field(function, FUNCTION["value_count"]))
    ref_count = handler.ordinal_at(handler.field(function, FUNCTION["ref_count"]))
    values_end = handler.element("i32", values, value_count)
    refs_end = handler.element("ptr", refs, ref_count)
    frame_end = handler.field(frame, 2 * FRAME.size)
    for end, limit in ((values_end, "values_limit"), (refs_end, "refs_limit"), (frame_end, "frames_limit")):
        bound = handler.pointer_field("%state", STATE[limit])
        handler.require(handler.let(f"icmp ule ptr {end}, {bound}"))
    with handler.counted(handler.let(f"lshr i64 {value_count}, 1")) as index:
        handler.store("i64", "0", handler.element("i64", values, index))
    with handler.counted(ref_count) as index:
        handler.store_pointer("null", handler.element("ptr", refs, index))
    callee = handler.field(frame, FRAME.size)
    fields = (
        ("function", function), ("values", values), ("refs", refs), ("values_end", values_end),
        ("refs_end", refs_end),
    )  # fmt: skip
    for name, value in fields:
        handler.store_pointer(value, handler.field(callee, FRAME[name]))
    return values, refs


def _begin(handler: Handler, function: str, values: str, refs: str, results: str) -> None:
    """Makes a new frame current and goes to its code. It notes where the caller goes on and where results go;
    a function with machine code runs that."""
    frame = handler.pointer_field("%state", STATE["frame"])
    after = handler.element("i32", handler.place(0), handler.ordinal(1))
    handler.store_pointer(after, handler.field(frame, FRAME["pc"]))
    callee = handler.field(frame, FRAME.size)
    handler.store_pointer(results, handler.field(callee, FRAME["results"]))
    handler.store_pointer(callee, handler.field("%state", STATE["frame"]))
    native = handler.pointer_field(function, FUNCTION["native"])
    interpreted, compiled = handler.fresh("interpreted"), handler.fresh("compiled")
    handler.branch(handler.let(f"icmp eq ptr {native}, null"), interpreted, compiled)
    handler.label(compiled)
    handler.call_native(native, callee)
    handler.label(interpreted)
    handler.go(handler.pointer_field(function, FUNCTION["code"]), values, refs)


def _emit_return(handler: Handler) -> None:
    """count, (tag, source) each: into the caller's registers; then drops the refs that are left."""
    frame = handler.pointer_field("%state", STATE["frame"])
    results = handler.pointer_field(frame, FRAME["results"])
    function = handler.pointer_field(frame, FRAME["function"])
    caller = handler.field(frame, -FRAME.size)
    values = handler.pointer_field(caller, FRAME["values"])
    refs = handler.pointer_field(caller, FRAME["refs"])
    first = handler.place(2)
    with handler.counted(handler.ordinal(1)) as index:
        result = handler.element("[2 x i32]", results, index)
        entry = handler.element("[2 x i32]", first, index)
        _emit_move(handler, entry, handler.element("i32", result, "1"), values, refs)
    ref_count = handler.ordinal_at(handler.field(function, FUNCTION["ref_count"]))
    with handler.counted(ref_count) as index:
        ref = handler.load_pointer(handler.element("ptr", "%refs", index))
        handler.do(f"call void @vm.drop(ptr {ref}, ptr %state)")
    calling = handler.pointer_field(caller, FRAME["function"])
    module = handler.pointer_field(calling, FUNCTION["module"])
    handler.store_pointer(caller, handler.field("%state", STATE["frame"]))
    handler.store_pointer(module, handler.field("%state", STATE["module"]))
    handler.go(handler.pointer_field(caller, FRAME["pc"]), values, refs)


def emit_branch(handler: Handler, mnemonic: str) -> None:
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
    """Writes a branch whose two sides dispatch separately. The processor predicts them apart. The
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
