"""Rows of arithmetic instructions (:mod:`jitree.dispatch.semantics_rows`) written into functions, for one
value or for vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from jitree.dispatch.semantics import SEMANTICS
from jitree.dispatch.semantics_rows import rows, symbol
from jitree.dispatch.vector_math_ir import llvm_type
from jitree.vmfb.isa import BY_MNEMONIC

Let = Callable[[str], str]
"""Adds an instruction and returns the name of its result."""
Declare = Callable[[str], None]
"""Adds a line outside of functions."""

_PLACEHOLDER: Final = re.compile(r"%(a?\d+)")
_CALL: Final = re.compile(r"call (\S+) @(llvm\.[\w.]+)\.\w+\((.*)\)")
_CONVERSION: Final = re.compile(r"([a-z]+(?: nneg)?) (\S+) (\S+) to (\S+)")
_OPERATION: Final = re.compile(r"((?:[if]cmp )?[a-z]+(?: exact| nsw| nuw| disjoint)*) (\S+) (\S+), (\S+)")


def condition(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str]) -> str | None:
    """The i1 of a comparison; None for other instructions. References are compared elsewhere."""
    row = rows().get(mnemonic)
    if row is None or not row.condition:
        return None
    return _filled(row.condition, _expanded(let, declare, row.lines[:-1], arguments, 1))


def result(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str], lanes: int) -> str:
    """The result of an instruction.

    Operands and result have the types of the instruction table, rows those of the semantics, which look at
    the bits of floats as integers in ``neg``, ``abs``, ``select`` and ``bitcast``."""
    family, semantic, row = mnemonic.partition(".")[0], SEMANTICS[mnemonic], rows()[mnemonic]
    *stated, given = (operand.kind.removeprefix("r.") for operand in BY_MNEMONIC[mnemonic].operands)
    if family == "select" and given.startswith("f"):
        arguments = [arguments[0], *(fenced(let, declare, given, lanes, value) for value in arguments[1:])]
    arguments = [
        _as_bits(let, kind, wanted, lanes, argument)
        for kind, wanted, argument in zip(stated, semantic.argument_types, arguments, strict=True)
    ]
    if row.text:
        assert lanes == 1, f"{mnemonic} has branches"
        made = _called(let, declare, mnemonic, row.text, arguments)
    else:
        made = _filled(row.result, _expanded(let, declare, row.lines, arguments, lanes))
    made = _as_bits(let, semantic.result_type, given, lanes, made)
    return fenced(let, declare, given, lanes, made) if family == "neg" else made


def fenced(let: Let, declare: Declare, kind: str, lanes: int, value: str) -> str:
    """A float of which LLVM knows nothing. It would make a minimum of a choice between compared values, which
    flushes subnormal ones in kernels; fold negations into additions, and leave out multiplications by one,
    where a NaN would then have other bits."""
    wanted = llvm_type(kind, lanes)
    name = f"llvm.arithmetic.fence.{kind if lanes == 1 else f'v{lanes}{kind}'}"
    declare(f"declare {wanted} @{name}({wanted})")
    return let(f"call {wanted} @{name}({wanted} {value})")


def _as_bits(let: Let, kind: str, wanted: str, lanes: int, value: str) -> str:
    """A value as another type of its width."""
    if kind == wanted:
        return value
    return let(f"bitcast {llvm_type(kind, lanes)} {value} to {llvm_type(wanted, lanes)}")


def _called(let: Let, declare: Declare, mnemonic: str, text: str, arguments: Sequence[str]) -> str:
    """A call of what has more than one block."""
    for line in text.splitlines():
        _declare(declare, line, 1)
    declare(text)
    semantic = SEMANTICS[mnemonic]
    typed = ", ".join(
        f"{llvm_type(kind, 1)} {argument}"
        for kind, argument in zip(semantic.argument_types, arguments, strict=True)
    )
    return let(f"call {llvm_type(semantic.result_type, 1)} {symbol(mnemonic)}({typed})")


def _expanded(
    let: Let, declare: Declare, lines: Sequence[str], arguments: Sequence[str], lanes: int
) -> dict[str, str]:
    """Adds instructions of a row; what its placeholders stand for."""
    names = {f"a{number}": argument for number, argument in enumerate(arguments)}
    for number, line in enumerate(lines):
        _declare(declare, line, lanes)
        names[str(number)] = let(_filled(_widened(line, lanes), names))
    return names


def _filled(text: str, names: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: names[found[1]], text)


# -- vectors -------------------------------------------------------------------------------------------------


def _widened(line: str, lanes: int) -> str:
    """An instruction of a row, on vectors of so many lanes."""
    if lanes == 1:
        return line
    if found := _CALL.fullmatch(line):
        kind, name, arguments = found.groups()
        typed = ", ".join(_typed(argument, lanes) for argument in arguments.split(", "))
        return f"call {_vector(kind, lanes)} @{name}.{_suffix(kind, lanes)}({typed})"
    if line.startswith("select "):
        return f"select {', '.join(_typed(part, lanes) for part in line[7:].split(', '))}"
    if found := _CONVERSION.fullmatch(line):
        operation, kind, value, target = found.groups()
        return f"{operation} {_typed(f'{kind} {value}', lanes)} to {_vector(target, lanes)}"
    found = _OPERATION.fullmatch(line)
    assert found is not None, line
    operation, kind, left, right = found.groups()
    return f"{operation} {_typed(f'{kind} {left}', lanes)}, {_operand(kind, right, lanes)}"


def _vector(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def _typed(argument: str, lanes: int) -> str:
    """A type and an operand. The flags of intrinsics stay what they are."""
    kind, value = argument.split()
    return (
        argument if value in ("true", "false") else f"{_vector(kind, lanes)} {_operand(kind, value, lanes)}"
    )


def _operand(kind: str, value: str, lanes: int) -> str:
    return value if value.startswith("%") else f"splat ({kind} {value})"


def _suffix(kind: str, lanes: int) -> str:
    scalar = {"float": "f32", "double": "f64"}.get(kind, kind)
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def _declare(declare: Declare, line: str, lanes: int) -> None:
    """What an instruction calls."""
    found = _CALL.search(line)
    if found is None:
        return
    kind, name, arguments = found.groups()
    kinds = [
        part.split()[0] if part.endswith(("true", "false")) else _vector(part.split()[0], lanes)
        for part in arguments.split(", ")
    ]
    declare(f"declare {_vector(kind, lanes)} @{name}.{_suffix(kind, lanes)}({', '.join(kinds)})")
