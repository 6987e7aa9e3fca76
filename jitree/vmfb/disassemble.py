"""Writes bytecode as text, in the notation of IREE's dump tool.

Every version is known, and damaged code is shown as far as it goes.

``%i3`` is a 32-bit value register, ``%i4:5`` a 64-bit pair, ``%r0`` a ref, ``%R0`` a ref whose reference the
instruction takes. In lists that mix banks a pair shows as its low register.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from jitree.errors import StatusError
from jitree.vmfb.cconv import TYPE_NAMES, EntryRule, ascending_slots, parse
from jitree.vmfb.instructions import (
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    REF_MASK,
    Instruction,
    InstructionRecord,
    Moves,
    Operand,
    read_instructions,
)
from jitree.vmfb.module import choose_entry_rule
from jitree.vmfb.schema import FunctionRow, ModuleTables
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

OffsetColumn = Callable[[int], str]
"""Text in front of a line, from the byte offset of its instruction."""

_TEMPLATES: Final[tuple[tuple[str, str], ...]] = (
    ("global.load.ref", ".refs[{slot}] : {type}"),
    ("global.load.indirect.ref", ".refs[{slot}] : {type}"),
    ("global.store.ref", "{value}, .refs[{slot}] : {type}"),
    ("global.store.indirect.ref", "{value}, .refs[{slot}] : {type}"),
    ("global.load.", ".rwdata[{offset}]"),
    ("global.store.", "{value}, .rwdata[{offset}]"),
    ("list.alloc", "{capacity} : !vm.list<{element_type}>"),
    ("list.get.ref", "{list}, {index} : {type}"),
    ("select.ref", "{cond} ? {if_true} : {if_false} -> {type}"),
    ("select.", "{cond} ? {if_true} : {if_false}"),
    ("switch.ref", "{index}[{cases}] else {default} -> {type}"),
    ("switch.", "{index}[{cases}] else {default}"),
    ("cast.any.ref", "{x} : !vm.ref<?> -> {type}"),
    ("buffer.store.", "{value}, {buffer}, {offset}"),
    ("br_table", "{index} {{ default: {default}{default_moves}{cases} }}"),
    ("br", "{dest}{moves}"),
    ("cond_br", "{cond}, {if_true}{if_true_moves}, {if_false}{if_false_moves}"),
    ("cond_break", "{cond}, {dest}{moves}"),
    ("break", "{dest}{moves}"),
    ("yield", "{dest}{moves}"),
    ("call.variadic.yieldable", "{callee} segments[{segments}]({args}) -> {resume}({outs})"),
    ("call.variadic", "{callee} segments[{segments}]({args})"),
    ("call.yieldable", "{callee}({args}) -> {resume}({outs})"),
    ("call", "{callee}({args})"),
    ("trace", "{message}({values})"),
    ("print", "{message}({values})"),
)
"""(mnemonic, or its beginning when it ends in a dot; operands). Others, and those
whose inputs have other names, list their inputs in table order."""

_QUIET_NAN32: Final = 0x7FC00000
_QUIET_NAN64: Final = 0x7FF8000000000000

_FIELD = re.compile(r"{(\w+)}")
_EXACT = {name: text for name, text in _TEMPLATES if not name.endswith(".")}
_FAMILIES = tuple((name, text) for name, text in _TEMPLATES if name.endswith("."))


def no_offsets(offset: int) -> str:
    """No column in front of the lines."""
    return ""


def no_annotation(tag: int, ordinal: int) -> str:
    """Registers show as their names only."""
    return ""


def hexadecimal_offsets(offset: int) -> str:
    """``[0000002A]``"""
    return f"[{offset:08X}]"


def function_symbol(module: ModuleTables, ordinal: int) -> str:
    """The name of a function after ``@``: its export, the one in the debug database, or ``fnN``.

    The reference tool believes the database also where a release stored the map of one function under the
    number of another; texts are to be the same, so this does too."""
    exported = next((export.name for export in module.exports if export.ordinal == ordinal), None)
    return exported or _recorded_name(module, ordinal) or f"fn{ordinal}"


def _recorded_name(module: ModuleTables, ordinal: int) -> str | None:
    return module.debug.recorded_name(ordinal) if module.debug else None


def _register_text(tag: int, slot: int) -> str:
    if tag == TAG_REF_COPY:
        return f"%r{slot}"
    return f"%i{slot}:{slot + 1}" if tag == TAG_VALUE64 else f"%i{slot}"


def operand_register(value: int) -> str:
    """A register operand of either bank, with its move flag."""
    if value & REF_BIT:
        return f"%{'R' if value & MOVE_BIT else 'r'}{value & REF_MASK}"
    return f"%i{value}"


def quoted(data: bytes) -> str:
    """A text between quotes, as it is: the reference tool escapes nothing.

    Only what would break the line or be taken for a command by a terminal shows as its number.
    """
    text = data.decode("utf-8", "backslashreplace")
    return '"' + "".join(c if c.isprintable() else f"\\{ord(c):02X}" for c in text) + '"'


class Disassembler:
    """Prints the functions of one module.

    ``annotate`` may add text to each register from its tag and ordinal (a tracer adds the value).
    """

    def __init__(self, module: ModuleTables, annotate: Callable[[int, int], str] = no_annotation) -> None:
        self.module = module
        self.annotate = annotate

    @cached_property
    def _entry_rule(self) -> EntryRule:
        try:
            return choose_entry_rule(self.module)
        except StatusError:  # a bad convention somewhere; it shows in the function that has it
            return ascending_slots

    def function(self, function: FunctionRow, column: OffsetColumn = no_offsets) -> Iterator[str]:
        """The lines of one function.

        Damage shows as a comment where it lies; what follows it is not printed, and the error is raised after
        the last line.
        """
        symbol = function_symbol(self.module, function.ordinal)
        if any(export.ordinal == function.ordinal for export in self.module.exports):
            yield f"vm.export @{symbol}"
        yield f"vm.func @{symbol}{self._signature(function)} {{"
        records, damage = _read(self.module, function)
        blocks = block_numbers(records)
        for record in records:
            yield column(record.offset) + self.instruction(record, blocks)
        if damage is not None:
            yield f"  // damaged: {damage}"
        yield "}"
        if damage is not None:
            raise damage.with_context(f"function '{self.module.function_name(function.ordinal)}'")

    def _signature(self, function: FunctionRow) -> str:
        try:
            cconv = parse(function.cconv)
        except StatusError as error:
            return f" /* {error} */"
        slots = self._entry_rule(cconv.argument_tags or ())
        arguments = [
            f"{_register_text(tag, slot)}: {TYPE_NAMES[str(item)]}"
            for (tag, slot), item in zip(slots, cconv.arguments, strict=False)
        ]
        results = ", ".join(TYPE_NAMES[character] for character in cconv.results)
        return f"({', '.join(arguments)}) -> ({results})"

    def instruction(self, record: InstructionRecord, blocks: Mapping[int, int]) -> str:
        """One line; ``blocks`` numbers the blocks of the function by byte offset."""
        row = record.instruction
        if row.block_marker:
            return f"^bb{blocks.get(record.offset, '?')}:"
        values = dict(zip((operand.name for operand in row.operands), record.operands, strict=True))
        texts = {
            operand.name: self._operand(operand, values[operand.name], blocks) for operand in row.operands
        }
        results = "" if "resume" in texts else _results(row, texts)
        operands = _template(row).format_map(texts)
        return f"  {results}vm.{row.mnemonic} {operands}".rstrip() + self._comment(row, values)

    def _operand(self, operand: Operand, value: Any, blocks: Mapping[int, int]) -> str:
        kind = operand.kind
        if kind.startswith("r."):
            return self._register(value, TAG_VALUE64 if kind.endswith("64") else TAG_VALUE32)
        if kind == "list.segment":
            return ", ".join(map(str, value))
        if kind.startswith("list."):
            tag = TAG_VALUE64 if kind.endswith("64") else TAG_VALUE32
            return ", ".join(operand_register(entry) + self._annotation(entry, tag) for entry in value)
        if kind == "imm.type":
            types = self.module.types
            return types[value] if value < len(types) else f"<type {value} of {len(types)}>"
        if kind == "imm.func":
            return self._callee(value)
        if kind == "imm.f32":
            return _float_text(value, "<I", "<f", ".9g", _QUIET_NAN32)
        if kind == "imm.f64":
            return _float_text(value, "<Q", "<d", ".17g", _QUIET_NAN64)
        if kind == "target":
            return _block(value, blocks)
        if kind == "remap":
            return self._moves(value)
        if kind == "case_table":
            return "".join(
                f", {number}: {_block(target, blocks)}{self._moves(moves)}"
                for number, (target, moves) in enumerate(value)
            )
        return quoted(value) if kind == "string" else str(value)

    def _register(self, value: int, tag: int) -> str:
        text = f"%i{value}:{value + 1}" if tag == TAG_VALUE64 else operand_register(value)
        return text + self._annotation(value, tag)

    def _annotation(self, value: int, tag: int) -> str:
        if value & REF_BIT:
            return self.annotate(TAG_REF_COPY, value & REF_MASK)
        return self.annotate(tag, value)

    def _moves(self, moves: Moves) -> str:
        pairs = (
            f"{operand_register(source)}{self._annotation(source, TAG_VALUE32)}->{operand_register(target)}"
            for source, target in moves
        )
        return f"({', '.join(pairs)})"

    def _callee(self, callee: int) -> str:
        module = self.module
        ordinal = callee & ~IMPORT_BIT
        if callee & IMPORT_BIT:
            if ordinal >= len(module.imports):
                return f"@<import {ordinal} of {len(module.imports)}>"
            return f"@{module.imports[ordinal].full_name}"
        if ordinal >= len(module.functions):
            return f"@<function {ordinal} of {len(module.functions)}>"
        name = _recorded_name(module, ordinal)
        return f"@{module.name}.{name}" if name else f"@{module.name}:{ordinal}"

    def _comment(self, row: Instruction, values: dict[str, Any]) -> str:
        if row.mnemonic == "const.i32":
            return f"  // 0x{values['value'] & 0xFFFFFFFF:08X}"
        if row.mnemonic == "const.i64":
            return f"  // 0x{values['value'] & 0xFFFFFFFFFFFFFFFF:016X}"
        if row.mnemonic == "const.ref.rodata" and values["segment"] < len(self.module.rodata):
            return f"  // {len(self.module.rodata[values['segment']].data)}b"
        return ""


def _float_text(bits: int, integer: str, real: str, digits: str, quiet_nan: int) -> str:
    """Digits that read back as the same value; the bits of an unusual NaN."""
    value: float = struct.unpack(real, struct.pack(integer, bits))[0]
    if value == value:
        return format(value, digits)
    sign_bit = 1 << (8 * struct.calcsize(integer) - 1)
    if bits & ~sign_bit != quiet_nan:
        return f"0x{bits:X}"
    return "-nan" if bits & sign_bit else "nan"


def _template(row: Instruction) -> str:
    if row.mnemonic in _EXACT:
        return _EXACT[row.mnemonic]
    inputs = {operand.name for operand in row.operands if not operand.output}
    for prefix, template in _FAMILIES:
        if row.mnemonic.startswith(prefix) and inputs == set(_FIELD.findall(template)):
            return template
    return ", ".join(f"{{{operand.name}}}" for operand in row.operands if not operand.output)


def _results(row: Instruction, texts: dict[str, str]) -> str:
    results = ", ".join(texts[operand.name] for operand in row.operands if operand.output)
    return f"{results} = " if results else ""


def _block(target: int, blocks: Mapping[int, int]) -> str:
    return f"^bb{blocks[target]}" if target in blocks else f"^<no block at {target:08X}>"


def block_numbers(records: Sequence[InstructionRecord]) -> dict[int, int]:
    """Numbers a function's blocks by their markers' byte offset. They count in file order."""
    markers = [record.offset for record in records if record.instruction.block_marker]
    return {offset: number for number, offset in enumerate(markers)}


def _read(module: ModuleTables, function: FunctionRow) -> tuple[list[InstructionRecord], StatusError | None]:
    """The instructions up to the end or to damage."""
    records: list[InstructionRecord] = []
    try:
        for record in read_instructions(bytes(module.body(function)), module.bytecode_version[0]):
            records.append(record)
    except StatusError as error:
        return records, error
    return records, None
