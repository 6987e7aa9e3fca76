"""Says why function bodies are refused.

Loading (``native/``) only says yes or no. After a no, and for ``jitree dump --verify``, a body is looked at
here, an instruction after the other as the disassembler reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from jitree.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError, StatusError
from jitree.vmfb.cconv import parse
from jitree.vmfb.instructions import (
    BY_MNEMONIC,
    IMPORT_BIT,
    MOVE_BIT,
    PREFIXES,
    REF_BIT,
    REF_MASK,
    TARGET_LIMIT,
    Instruction,
    InstructionRecord,
    Moves,
    Operand,
    read_instruction,
)
from jitree.vmfb.program import FunctionSignature
from jitree.vmfb.schema import (
    FEATURE_EXT_F32,
    FEATURE_EXT_F64,
    FIRST_MOVING_VERSION,
    FunctionRow,
    Import,
    ModuleTables,
)
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE32, TAG_VALUE64

_BLOCK_MARKER: Final = BY_MNEMONIC["block"].opcode
_FEATURES: Final = {0xE0: FEATURE_EXT_F32, 0xE1: FEATURE_EXT_F64}
_TAGS: Final = {
    "i32": TAG_VALUE32,
    "f32": TAG_VALUE32,
    "i64": TAG_VALUE64,
    "f64": TAG_VALUE64,
    "ref": TAG_REF_COPY,
}


def require_sound(
    module: ModuleTables, function: FunctionRow, signatures: Sequence[FunctionSignature]
) -> None:
    """Raises the status of the first failed check of a function. Function, byte offset and mnemonic are
    contexts."""
    for error in _BodyCheck(module, function, signatures).faults():
        raise _in_function(module, function, error)


def body_faults(
    module: ModuleTables, function: FunctionRow, signatures: Sequence[FunctionSignature]
) -> Iterator[StatusError]:
    """The status of each check that a function fails.

    If the next instruction cannot be found, the last one says that the rest is not looked at.
    """
    check = _BodyCheck(module, function, signatures)
    for error in check.faults():
        if check.is_lost:
            error.with_context("the rest of the function is not looked at")
        yield _in_function(module, function, error)


def _in_function(module: ModuleTables, function: FunctionRow, error: StatusError) -> StatusError:
    return error.with_context(f"function '{module.function_name(function.ordinal)}'")


class _BodyCheck:
    """Goes over a body once.

    What an instruction has that is wrong is noted, and the next one looked at.
    """

    def __init__(
        self, module: ModuleTables, function: FunctionRow, signatures: Sequence[FunctionSignature]
    ) -> None:
        self._function = function
        self._imports: Sequence[Import | None] = module.imports
        """None: it cannot be read, and its calls are not checked."""
        self._signatures = signatures
        self._signature = signatures[function.ordinal]
        self._version = module.bytecode_version[0]
        self._bytes = bytes(module.body(function))
        self._targets: set[int] = set()
        self._markers: set[int] = set()
        self._noted: list[StatusError] = []
        """What is wrong with the instruction that is looked at."""
        self.is_lost = False
        """Whether the next instruction cannot be found."""
        registers = {name: partial(self._check_register, tag) for name, tag in _TAGS.items()}
        self._checks: Mapping[str, Callable[[Any], None]] = {
            **{f"r.{name}": check for name, check in registers.items()},
            **{f"list.{name}": partial(self._check_each, check) for name, check in registers.items()},
            "list.any": partial(self._check_each, self._check_any),
            "kept": self._check_kept,
            "imm.func": self._check_import,
            "imm.gref": partial(_check_ordinal, "ref global", module.ref_global_count),
            "imm.rodata": partial(_check_ordinal, "rodata ordinal", len(module.rodata)),
            "imm.type": partial(_check_ordinal, "type ordinal", len(module.types)),
            "gbyte32": partial(_check_global, 4, module.globals_size),
            "gbyte64": partial(_check_global, 8, module.globals_size),
            "target": self._check_target,
            "remap": self._check_moves,
            "case_table": self._check_cases,
        }
        """By kind of operand; the others have any bits."""
        self._plans: dict[int, list[Callable[[Any], None] | None]] = {}
        """By number of an instruction, those of its operands."""

    def faults(self) -> Iterator[StatusError]:
        at, is_inside = 0, False
        while at < len(self._bytes):
            if not is_inside:
                is_inside = True
                if self._bytes[at] == _BLOCK_MARKER:
                    self._markers.add(at)
                    at += 1
                    continue
                yield InvalidArgumentError(
                    "expected a block marker: the previous block has ended", f"at byte offset {at}"
                )
            try:
                record = read_instruction(self._bytes, at, self._version)
            except StatusError as error:
                self.is_lost = True
                yield self._missing_feature(at) or error
                return
            yield from self._instruction_faults(record)
            at += record.length
            is_inside = not record.instruction.terminator
        if is_inside:
            yield InvalidArgumentError("the last block has no terminator", f"at byte offset {at}")
        yield from self._block_faults()

    def _block_faults(self) -> Iterator[StatusError]:
        for stray in sorted(self._targets - self._markers):
            yield InvalidArgumentError(f"branch target {stray} is not a block")
        found, expected = len(self._markers), self._function.block_count
        if found != expected:
            yield InvalidArgumentError(f"the body has {found} blocks but its descriptor says {expected}")

    def _instruction_faults(self, record: InstructionRecord) -> Iterator[StatusError]:
        missing = self._missing_feature(record.offset)
        if missing is not None:
            yield missing
        self._noted.clear()
        self._note(self._check_instruction, record)
        for error in self._noted:
            yield error.with_context(f"at byte offset {record.offset} ({record.instruction.mnemonic})")

    def _note(self, check: Callable[..., None], *values: Any) -> None:
        """Makes a check, and notes what it fails with."""
        try:
            check(*values)
        except StatusError as error:
            self._noted.append(error)

    def _missing_feature(self, at: int) -> StatusError | None:
        feature = _FEATURES.get(self._bytes[at], 0)
        if not feature & ~self._function.requirements:
            return None
        return InvalidArgumentError(
            f"{PREFIXES[self._bytes[at]]} instruction, but the function does not require that feature",
            f"at byte offset {at}",
        )

    def _check_instruction(self, record: InstructionRecord) -> None:
        row, values = record.instruction, record.operands
        if row.mnemonic.startswith("call"):
            self._check_call(record.named)
        elif row.mnemonic == "return":
            self._check_registers("return", values[0], self._signature.cconv.result_tags)
        elif row.block_marker:
            self._markers.add(record.offset)
            raise InvalidArgumentError("block marker inside a block: a terminator is missing")
        else:
            if row.index not in self._plans:
                kinds = (_kind(row, operand) for operand in row.operands)
                self._plans[row.index] = [self._checks.get(kind) for kind in kinds]
            for check, value in zip(self._plans[row.index], values, strict=True):
                if check is not None:
                    self._note(check, value)

    def _check_call(self, named: Mapping[str, Any]) -> None:
        self._note(self._check_callee, named)
        if "resume" in named:
            self._note(self._check_target, named["resume"])

    def _check_callee(self, named: Mapping[str, Any]) -> None:
        callee, arguments = named["callee"], named["args"]
        if callee & IMPORT_BIT:
            self._check_import(callee)
            imported = self._imports[callee & ~IMPORT_BIT]
            if imported is None:
                return
            cconv = parse(imported.cconv or "")  # an import without signature is called without arguments
            tags = cconv.argument_tags
            if "segments" in named:
                tags = cconv.flat_tags(named["segments"], len(arguments))
            elif tags is None:
                raise InvalidArgumentError(
                    f"call without segments of '{imported.full_name}', whose convention {cconv.text!r} has "
                    "variadic spans"
                )
        elif "segments" in named:
            raise FailedPreconditionError(f"variadic call of internal function {callee}")
        else:
            _require_ordinal("function", callee, len(self._signatures))
            cconv, tags = self._signatures[callee].cconv, self._signatures[callee].argument_tags
        self._note(self._check_registers, "argument", arguments, tags)
        self._note(self._check_registers, "result", named["outs"], cconv.result_tags)

    def _check_import(self, callee: int) -> None:
        if not callee & IMPORT_BIT:
            raise InvalidArgumentError(f"function ordinal {callee} where an import is needed")
        _require_ordinal("import", callee & ~IMPORT_BIT, len(self._imports))

    def _check_registers(self, what: str, entries: Sequence[int], tags: Sequence[int]) -> None:
        """Checks the registers of a list that must hold what ``tags`` say."""
        if len(entries) != len(tags):
            raise OutOfRangeError(f"{what} list has {len(entries)} entries, the convention needs {len(tags)}")
        for tag, entry in zip(tags, entries, strict=True):
            self._note(self._check_register, tag, entry)

    def _check_each(self, check: Callable[[int], None], entries: Sequence[int]) -> None:
        for entry in entries:
            self._note(check, entry)

    def _check_register(self, tag: int, operand: int) -> None:
        if tag == TAG_REF_COPY:
            self._check_ref(operand)
            return
        count = self._signature.value_count
        if operand & REF_BIT:
            raise InvalidArgumentError(f"ref register {operand & REF_MASK} where a value is needed")
        if operand + (tag == TAG_VALUE64) >= count:
            raise OutOfRangeError(f"value register {operand} out of range; the function has {count} slots")
        if tag == TAG_VALUE64 and operand & 1:
            raise InvalidArgumentError(f"64-bit value register {operand} is not even")

    def _check_ref(self, operand: int) -> None:
        if not operand & REF_BIT:
            raise InvalidArgumentError(f"value register {operand} where a ref is needed")
        ordinal, count = operand & REF_MASK, self._signature.ref_count
        if ordinal >= count:
            raise OutOfRangeError(f"ref register {ordinal} out of range; the function has {count}")

    def _check_kept(self, operand: int) -> None:
        self._check_ref(operand)
        if operand & MOVE_BIT and self._version >= FIRST_MOVING_VERSION:
            raise InvalidArgumentError(
                f"move flag on ref register {operand & REF_MASK}, which the instruction cannot take"
            )

    def _check_any(self, operand: int) -> None:
        self._check_register(TAG_REF_COPY if operand & REF_BIT else TAG_VALUE32, operand)

    def _check_target(self, target: int) -> None:
        if target >= TARGET_LIMIT:
            raise OutOfRangeError(f"branch target {target} out of range")
        self._targets.add(target)

    def _check_moves(self, moves: Moves) -> None:
        for source, destination in moves:
            self._note(_require_one_bank, source, destination)
            self._note(self._check_any, source)
            self._note(self._check_any, destination)

    def _check_cases(self, cases: Sequence[tuple[int, Moves]]) -> None:
        for target, moves in cases:
            self._note(self._check_target, target)
            self._check_moves(moves)


def _kind(row: Instruction, operand: Operand) -> str:
    if operand.kind == "imm.gbyte":
        return "gbyte64" if row.mnemonic.endswith("64") else "gbyte32"
    return "kept" if operand.kind == "r.ref" and not (operand.output or operand.movable) else operand.kind


def _require_one_bank(source: int, destination: int) -> None:
    if (source ^ destination) & REF_BIT:
        raise InvalidArgumentError("branch move between the value and the ref bank")


def _check_ordinal(what: str, count: int, ordinal: int) -> None:
    if ordinal >= count:
        raise OutOfRangeError(f"{what} {ordinal} out of range; the module has {count}")


def _require_ordinal(what: str, ordinal: int, count: int) -> None:
    if ordinal >= count:
        raise InvalidArgumentError(f"{what} ordinal {ordinal} out of range; the module has {count}")


def _check_global(width: int, size: int, offset: int) -> None:
    what = f"offset of a {8 * width}-bit global {offset}"
    if offset + width > size:
        raise OutOfRangeError(f"{what} out of range; the module has {size}")
    if offset % width:
        raise InvalidArgumentError(f"{what} is not a multiple of {width}")
