"""Writes rows of arithmetic instructions into functions.

Rows are those of :mod:`jitree.dispatch.semantics_rows`, for one value or for vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from jitree.base import processor
from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.semantics import SEMANTICS
from jitree.dispatch.semantics_rows import CALL, STEP, rows, symbol
from jitree.vmfb.instructions import BY_MNEMONIC

Let = Callable[[str], str]
"""Adds an instruction and returns the name of its result."""
Declare = Callable[[str], None]
"""Adds a line outside of functions."""

_FUSED: Final = "fma.f32.fused"
"""Its row has steps for processors that cannot do it at once."""
_PLACEHOLDER: Final = re.compile(r"%(a?)(\d+)")
_ARGUMENTS: Final = tuple(f"a{number}" for number in range(16))
_DECLARED: Final = re.compile(r".*call (.+?) (@llvm[\w.]+)\((.*)\)")
_OVER_BITS: Final = ("abs", "bitcast", "select")
"""Instructions on bits of floats of which LLVM may know all: what it makes of them changes none."""


def condition(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str]) -> str | None:
    """The i1 of a comparison; None for other instructions. References are compared elsewhere."""
    row = rows().get(mnemonic)
    if row is None or not row.condition:
        return None
    arguments = _stated(let, declare, mnemonic, arguments, 1)
    return _template(row.condition, 1).text.format_map(_expanded(let, declare, row.lines[:-1], arguments, 1))


def result(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str], lanes: int) -> str:
    """The result of an instruction."""
    semantic, row = SEMANTICS[mnemonic], rows()[mnemonic]
    arguments = _stated(let, declare, mnemonic, arguments, lanes)
    if mnemonic == _FUSED and processor.fuses():
        lines = ["call float @llvm.fma.f32(float %a0, float %a1, float %a2)"]
        made = _expanded(let, declare, lines, arguments, lanes)["r0"]
    elif row.text:
        assert lanes == 1, f"{mnemonic} is not elementwise"
        made = _called(let, declare, mnemonic, arguments)
    else:
        names = _expanded(let, declare, row.lines, arguments, lanes)
        made = _template(row.result, 1).text.format_map(names)
    given = _kinds(mnemonic)[-1]
    if given == semantic.result_type:
        return made
    made = _as_bits(let, semantic.result_type, given, lanes, made)
    return made if mnemonic.startswith(_OVER_BITS) else fenced(let, declare, given, lanes, made)


def _stated(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str], lanes: int) -> Sequence[str]:
    """Arguments, which have the types of the instruction table, as those of the semantics function, which may
    look at the bits of floats."""
    kinds = _kinds(mnemonic)
    if mnemonic.startswith("select.f"):
        fences = (fenced(let, declare, kinds[-1], lanes, value) for value in arguments[1:])
        arguments = [arguments[0], *fences]
    stated = SEMANTICS[mnemonic].argument_types
    if kinds[: len(stated)] == stated:
        return arguments
    return [
        _as_bits(let, kind, wanted, lanes, argument)
        for kind, wanted, argument in zip(kinds, stated, arguments, strict=False)
    ]


@cache
def _kinds(mnemonic: str) -> tuple[str, ...]:
    """The types of operands, as the instruction table has them."""
    return tuple(operand.kind.removeprefix("r.") for operand in BY_MNEMONIC[mnemonic].operands)


def function(declare: Declare, name: str) -> str:
    """The definition of what is a separate function; declares what that calls."""
    text = rows()[name].text
    for declaration in _declarations(name):
        declare(declaration)
    return text


@cache
def _declarations(name: str) -> list[str]:
    return [called for line in rows()[name].text.splitlines() if (called := _declaration(line))]


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


def _called(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str]) -> str:
    """A call of what is a separate function."""
    declare(function(declare, mnemonic))
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
    names = dict(zip(_ARGUMENTS, arguments, strict=False))
    for number, line in enumerate(lines):
        text, declaration = _template(line, lanes)
        if declaration:
            declare(declaration)
        names[f"r{number}"] = let(text.format_map(names))
    return names


class _Template(NamedTuple):
    """An instruction of a row, with ``{a0}`` and ``{r0}`` for arguments and results; what it calls."""

    text: str
    declaration: str


@cache
def _template(line: str, lanes: int) -> _Template:
    text = _widened(line, lanes)
    escaped = text.replace("{", "{{").replace("}", "}}")
    named = _PLACEHOLDER.sub(lambda found: f"{{{found[1] or 'r'}{found[2]}}}", escaped)
    return _Template(named, _declaration(text))


@cache
def _declaration(line: str) -> str:
    """What an instruction calls."""
    found = _DECLARED.match(line)
    if found is None:
        return ""
    kinds = (re.match(r"<[^>]*>|\S+", part)[0] for part in found[3].split(", "))  # type: ignore[index]
    return f"declare {found[1]} {found[2]}({', '.join(kinds)})"


# -- vectors -------------------------------------------------------------------------------------------------


@cache
def _widened(line: str, lanes: int) -> str:
    """An instruction of a row, on vectors of so many lanes."""
    if lanes == 1:
        return line
    if found := CALL.fullmatch(line):
        kind, name, suffix, operands, _ = found.groups()
        suffix = suffix.replace(".", f".v{lanes}")
        return f"call {_vector(kind, lanes)} @{name}{suffix}({_operands(operands, lanes, flags='i1')})"
    found = STEP.fullmatch(line)
    assert found is not None, line
    operation, operands, target = found.groups()
    conversion = f" to {_vector(target, lanes)}" if target else ""
    return f"{operation} {_operands(operands, lanes, flags='')}{conversion}"


def _vector(kind: str, lanes: int) -> str:
    return f"<{lanes} x {kind}>"


def _operands(text: str, lanes: int, flags: str) -> str:
    """Operands, of which some have a type in front; those of the type ``flags`` stay what they are."""
    kind, made = "", []
    for part in text.split(", "):
        *stated, value = part.split()
        kind = stated[0] if stated else kind
        if kind == flags:
            made.append(part)
            continue
        wide = value if value.startswith("%") else f"splat ({kind} {value})"
        made.append(f"{_vector(kind, lanes)} {wide}" if stated else wide)
    return ", ".join(made)
