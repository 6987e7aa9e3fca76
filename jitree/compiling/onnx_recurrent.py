"""Writes recurrent operators (LSTM, GRU, RNN) as one product, and steps.

The importer makes of each a loop whose round has one step: it computes each gate by itself, multiplies the
inputs of this step alone, and the compiler copies all results so far. It knows one direction, and computes
peepholes wrongly. Here one product takes the inputs of all steps; a step has one more, of its state, and a
round has many steps, so that what a round costs beside them is little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_nodes import KnownValues, NodeChain, attribute
from jitree.errors import UnimplementedError

_STEPS: Final = 16
"""Of a round, which then costs a tenth of its steps (GRU of 128)."""
_UNROLLED: Final = 2 * _STEPS
"""So many steps at most are written without rounds."""
_FUNCTIONS: Final = {b"sigmoid": "Sigmoid", b"tanh": "Tanh", b"relu": "Relu"}
_ATTRIBUTES: Final = {"activations", "direction", "hidden_size", "layout", "linear_before_reset"}
"""With others (clipped values, coupled gates, scaled functions) an operator stays."""
_DIRECTIONS: Final = {b"forward": (False,), b"reverse": (True,), b"bidirectional": (False, True)}
"""Whether steps go backwards, by direction."""


class _Cell(NamedTuple):
    """What a step of one direction takes, as names of constants and of operators."""

    hidden: int
    functions: Sequence[str]
    inner: Sequence[str]
    """What a state is multiplied by: all gates, or of a GRU that resets its state two parts."""
    inner_bias: str
    """Of a GRU that resets products of its state; ``""`` for others."""
    peepholes: Sequence[str]
    """To input, result and forgetting; none without."""
    one: str
    """The number."""


def _rnn_step(chain: NodeChain, cell: _Cell, row: str, states: Sequence[str]) -> list[str]:
    total = chain.op("Add", row, chain.op("MatMul", states[0], cell.inner[0]))
    return [chain.op(cell.functions[0], total)]


def _gru_step(chain: NodeChain, cell: _Cell, row: str, states: Sequence[str]) -> list[str]:
    (state,), (gate, function), hidden = states, cell.functions, cell.hidden
    product, products = chain.op("MatMul", state, cell.inner[0]), ""
    if cell.inner_bias:
        product, products = chain.split(chain.op("Add", product, cell.inner_bias), (2 * hidden, hidden))
    row, row_fresh = chain.split(row, (2 * hidden, hidden))
    gates = chain.op(gate, chain.op("Add", row, product))
    update, reset = chain.split(gates, (hidden, hidden))
    if products:
        products = chain.op("Mul", reset, products)
    else:
        products = chain.op("MatMul", chain.op("Mul", reset, state), cell.inner[1])
    fresh = chain.op(function, chain.op("Add", row_fresh, products))
    # what may be infinite is not subtracted from what may be, too
    rest = chain.op("Mul", chain.op("Sub", cell.one, update), fresh)
    return [chain.op("Add", rest, chain.op("Mul", update, state))]


def _lstm_step(chain: NodeChain, cell: _Cell, row: str, states: Sequence[str]) -> list[str]:
    def looked(value: str, number: int, memory: str) -> str:
        if not cell.peepholes:
            return value
        return chain.op("Add", value, chain.op("Mul", cell.peepholes[number], memory))

    (state, memory), (gate, function, shown) = states, cell.functions
    total = chain.op("Add", row, chain.op("MatMul", state, cell.inner[0]))
    taken, given, forgotten, fresh = chain.split(total, (cell.hidden,) * 4)
    taken = chain.op(gate, looked(taken, 0, memory))
    forgotten = chain.op(gate, looked(forgotten, 2, memory))
    new = chain.op("Mul", taken, chain.op(function, fresh))
    memory = chain.op("Add", chain.op("Mul", forgotten, memory), new)
    given = chain.op(gate, looked(given, 1, memory))
    return [chain.op("Mul", given, chain.op(shown, memory)), memory]


class _Kind(NamedTuple):
    """What an operator has in each direction."""

    gates: int
    states: int
    functions: Sequence[bytes]
    step: Callable[[NodeChain, _Cell, str, Sequence[str]], list[str]]
    """(nodes, cell, products of the inputs of a step, states) → states; the first is the result."""


_KINDS: Final = {
    "RNN": _Kind(1, 1, (b"tanh",), _rnn_step),
    "GRU": _Kind(3, 1, (b"sigmoid", b"tanh"), _gru_step),
    "LSTM": _Kind(4, 2, (b"sigmoid", b"tanh", b"tanh"), _lstm_step),
}
RECURRENT: Final = tuple(_KINDS)


class _Operator(NamedTuple):
    """A recurrent operator of known sizes."""

    kind: _Kind
    turns: Sequence[bool]
    functions: Sequence[str]
    """Of all directions."""
    resets_late: bool
    steps: int
    batch: int
    hidden: int
    values: str
    starts: Sequence[str]
    """Where states begin; ``""`` for zeros."""
    arrays: Sequence[Any]
    """Weights of inputs and states, biases, peepholes; None for those that it lacks."""


def write_steps(node: Any, known: KnownValues, chain: NodeChain) -> None:
    """Replaces a recurrent operator; one of open sizes, with computed weights, in a form that is not
    written here, or that ONNX does not allow, stays. UNIMPLEMENTED for what the importer would leave out."""
    lengths, shape = known.array([*node.input, *[""] * 4][4]), known.shapes.get(node.input[0]) or ()
    first = bool(attribute(node, "layout", 0))
    if lengths is not None and {*lengths.ravel().tolist()} == {*shape[first : first + 1]}:
        node.input[4] = ""  # all steps of all rows
    read = _read(node, known)
    if read is None:
        _require_plain(node)
    else:
        rows, states = zip(*(_direction(chain, read, place) for place in range(len(read.turns))), strict=True)
        made = [chain.joined(rows, 1), *(chain.joined(values, 0) for values in zip(*states, strict=True))]
        chain.give(node.output, made)


def _require_plain(node: Any) -> None:
    """Refuses what the importer takes as if it were not there."""
    inputs, functions = [*node.input, *[""] * 8], attribute(node, "activations", ())
    lacking = {
        "lengths of rows": inputs[4],
        "peepholes": inputs[7],
        "clipped values": any(one.name == "clip" for one in node.attribute),
        "functions other than Sigmoid, Tanh and Relu": {*map(bytes.lower, functions)} - {*_FUNCTIONS},
    }
    found = ", ".join(name for name, is_there in lacking.items() if is_there)
    if found:
        raise UnimplementedError(
            f"{node.op_type} that makes '{', '.join(filter(None, node.output))}' has {found}, which the "
            "importer leaves out; give the shapes of all inputs (--input-shape=), with which peepholes are "
            "computed, or export the model without"
        )


def _read(node: Any, known: KnownValues) -> _Operator | None:
    """None where it stays."""
    kind, inputs = _KINDS[node.op_type], [*node.input, *[""] * 8][:8]
    turns = _DIRECTIONS.get(attribute(node, "direction", b"forward"), ())
    functions = _functions(node, kind.functions, len(turns))
    shape, names, starts = known.shapes.get(inputs[0]), [*inputs[1:4], inputs[7]], inputs[5 : 5 + kind.states]
    if not functions or inputs[4] or not any(node.output) or not all(names[:2]):
        return None
    if shape is None or len(shape) != 3 or not all(shape) or attribute(node, "layout", 0):
        return None
    arrays = [known.array(name) for name in names]
    if any(name and array is None for name, array in zip(names, arrays, strict=True)):
        return None
    inner = arrays[1]
    if inner.dtype.kind != "f" or inner.ndim != 3 or not inner.size:
        return None
    steps, batch, width = (size or 0 for size in shape)
    sides, hidden = len(turns), inner.shape[2]
    wide = kind.gates * hidden
    wanted = [(sides, wide, width), (sides, wide, hidden), (sides, 2 * wide), (sides, 3 * hidden)]
    for array, sizes in zip(arrays, wanted, strict=True):
        if array is not None and (array.shape, array.dtype) != (sizes, inner.dtype):
            return None
    if attribute(node, "hidden_size", hidden) != hidden:
        return None
    if any(name and known.shapes.get(name) != (sides, batch, hidden) for name in starts):
        return None
    late = attribute(node, "linear_before_reset", 0) != 0
    return _Operator(kind, turns, functions, late, steps, batch, hidden, inputs[0], starts, arrays)


def _functions(node: Any, usual: Sequence[bytes], sides: int) -> list[str]:
    """Operators for the functions of all directions; none where they, or other attributes, are unknown.

    Gates without bounds are left: states overflow soon, and then each runtime has other results.
    """
    given = attribute(node, "activations", (*usual,) * sides)
    names = [_FUNCTIONS.get(bytes(one).lower(), "") for one in given]
    is_known = {one.name for one in node.attribute} <= _ATTRIBUTES and all(names)
    gates = names[:: len(usual)] if len(usual) > 1 else []
    return names if is_known and len(names) == len(usual) * sides and "Relu" not in gates else []


def _direction(chain: NodeChain, read: _Operator, place: int) -> tuple[str, list[str]]:
    """Writes one direction: the results of all steps, and the last states."""
    inputs, inner = read.arrays[0][place], read.arrays[1][place]
    biases = np.zeros(2 * len(inputs), inputs.dtype) if read.arrays[2] is None else read.arrays[2][place]
    input_bias, inner_bias = np.split(biases, 2)
    cell = _cell(chain, read, place, inner, inner_bias)
    backwards = np.arange(read.steps)[::-1]
    values = chain.gathered(read.values, backwards, 0) if read.turns[place] else read.values
    flat = chain.reshaped(values, read.steps * read.batch, inputs.shape[1])
    bias = input_bias if cell.inner_bias else input_bias + inner_bias
    rows = chain.op("Add", chain.op("MatMul", flat, chain.constant(inputs.T)), chain.constant(bias))
    zeros = np.zeros((read.batch, read.hidden), inner.dtype)
    starts = [chain.gathered(one, place, 0) if one else chain.constant(zeros) for one in read.starts]
    rows, states = _rounds(chain, read, cell, rows, starts)
    rows = chain.reshaped(rows, read.steps, 1, read.batch, read.hidden)
    rows = chain.gathered(rows, backwards, 0) if read.turns[place] else rows
    return rows, [chain.reshaped(state, 1, read.batch, read.hidden) for state in states]


def _cell(chain: NodeChain, read: _Operator, place: int, inner: Any, inner_bias: Any) -> _Cell:
    count = len(read.kind.functions)
    functions = read.functions[place * count : (place + 1) * count]
    is_gru = read.kind.step is _gru_step
    parts = [inner] if read.resets_late or not is_gru else np.split(inner, [2 * read.hidden])
    bias = chain.constant(inner_bias) if read.resets_late and is_gru else ""
    peepholes = [] if read.arrays[3] is None else np.split(read.arrays[3][place], 3)
    return _Cell(
        read.hidden, functions, [chain.constant(part.T) for part in parts], bias,
        [chain.constant(part) for part in peepholes], chain.constant(inner.dtype.type(1)),
    )  # fmt: skip


def _rounds(
    chain: NodeChain, read: _Operator, cell: _Cell, rows: str, states: Sequence[str]
) -> tuple[str, Sequence[str]]:
    """Steps whose rows are the products of the inputs: rounds of many, and the rest."""
    import onnx

    count, rest = divmod(read.steps, _STEPS)
    if read.steps <= _UNROLLED:
        return _steps(chain, read, cell, rows, states, read.steps)
    height = _STEPS * read.batch
    head, *tail = chain.split(rows, [count * height, rest * read.batch][: 1 + bool(rest)], 0)
    head = chain.reshaped(head, count, height, read.kind.gates * read.hidden)
    body = chain.inner()
    taken_rows, *names = [body.fresh() for _ in range(1 + len(states))]
    made, after = _steps(body, read, cell, taken_rows, names, _STEPS)
    element = onnx.helper.np_dtype_to_tensor_dtype(read.arrays[1].dtype)

    def declared(values: Sequence[str], height: int, width: int) -> list[Any]:
        return [onnx.helper.make_tensor_value_info(value, element, (height, width)) for value in values]

    taken = declared(names, read.batch, read.hidden)
    taken += declared([taken_rows], height, read.kind.gates * read.hidden)
    given = declared(after, read.batch, read.hidden) + declared([made], height, read.hidden)
    graph = onnx.helper.make_graph(body.nodes, "round", taken, given, body.tensors)
    *states, results = chain.ops("Scan", len(states) + 1, *states, head, body=graph, num_scan_inputs=1)
    results = chain.reshaped(results, count * height, read.hidden)
    if tail:
        more, states = _steps(chain, read, cell, tail[0], states, rest)
        results = chain.joined([results, more], 0)
    return results, states


def _steps(
    chain: NodeChain, read: _Operator, cell: _Cell, rows: str, states: Sequence[str], count: int
) -> tuple[str, Sequence[str]]:
    results = []
    for row in chain.split(rows, [read.batch] * count, 0):
        states = read.kind.step(chain, cell, row, states)
        results.append(states[0])
    return chain.joined(results, 0), states
