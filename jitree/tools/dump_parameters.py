"""The external parameters that a module will ask for, read off its code without running it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jitree.base.layout import rows_of
from jitree.errors import StatusError
from jitree.vmfb.instructions import IMPORT_BIT, REF_BIT, REF_MASK, InstructionRecord, read_instructions
from jitree.vmfb.schema import FunctionRow, ModuleTables

_IMPORT_PREFIX: Final = "io_parameters."
_SCOPE_ARGUMENT: Final = {"io_parameters.load": 4, "io_parameters.gather": 4, "io_parameters.scatter": 5}
"""Argument that holds the scope, by import. The last three are always key table, keys and spans."""

_KEY = struct.Struct("<II")
"""Where a key lies in the table: offset and length."""
_SPAN = struct.Struct("<QQQ")
"""parameter offset, buffer offset, length"""


@dataclass(frozen=True, slots=True)
class NeededParameter:
    scope: str | None
    key: str
    extent: int
    """Bytes that the parameter must have at least."""


def needed_parameters(module: ModuleTables) -> Iterator[NeededParameter]:
    """Parameters whose names are constants of the module, which is how compilers write them."""
    if not any(entry.full_name.startswith(_IMPORT_PREFIX) for entry in module.imports):
        return
    for function in module.functions:
        yield from _needed_by(module, function)


def _needed_by(module: ModuleTables, function: FunctionRow) -> Iterator[NeededParameter]:
    """Follows constants through the ref registers in file order."""
    constants: dict[int, bytes] = {}
    try:
        for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0]):
            operands = dict(
                zip((operand.name for operand in record.instruction.operands), record.operands, strict=True)
            )
            yield from _needed_at(module, operands, constants)
            _follow(module, record, operands, constants)
    except StatusError:
        return  # damaged code; the disassembly shows where


def _follow(
    module: ModuleTables, record: InstructionRecord, operands: dict[str, Any], constants: dict[int, bytes]
) -> None:
    written = [
        entry
        for operand, value in zip(record.instruction.operands, record.operands, strict=True)
        if operand.output
        for entry in (value if isinstance(value, tuple) else (value,))
        if entry & REF_BIT
    ]
    for register in written:
        constants.pop(register & REF_MASK, None)
    if record.instruction.mnemonic == "const.ref.rodata" and operands["segment"] < len(module.rodata):
        constants[operands["out"] & REF_MASK] = bytes(module.rodata[operands["segment"]].data)


def _needed_at(
    module: ModuleTables, operands: dict[str, Any], constants: dict[int, bytes]
) -> Iterator[NeededParameter]:
    callee = operands.get("callee", 0)
    ordinal = callee & ~IMPORT_BIT
    if not callee & IMPORT_BIT or ordinal >= len(module.imports):
        return
    scope_argument = _SCOPE_ARGUMENT.get(module.imports[ordinal].full_name)
    arguments: Sequence[int] = operands["args"]
    if scope_argument is None or len(arguments) <= scope_argument + 3:
        return
    scope = constants.get(arguments[scope_argument] & REF_MASK)
    table, keys, spans = (constants.get(register & REF_MASK, b"") for register in arguments[-3:])
    if len(table) % _KEY.size or len(spans) % _SPAN.size:
        return
    for (offset, length), (start, _, size) in zip(rows_of(_KEY, table), rows_of(_SPAN, spans), strict=False):
        yield NeededParameter(
            scope=scope.decode("utf-8", "backslashreplace") if scope is not None else None,
            key=keys[offset : offset + length].decode("utf-8", "backslashreplace"),
            extent=start + size,
        )
