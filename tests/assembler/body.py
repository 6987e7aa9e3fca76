"""Function bodies: text to bytes, by the instruction table."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from jitree.vmfb.instructions import BY_MNEMONIC, EXT_F32, EXT_F64, PREFIXES, Instruction, Operand
from jitree.vmfb.schema import FEATURE_EXT_F32, FEATURE_EXT_F64, FEATURE_YIELD

_TOKEN = re.compile(
    r"""(?P<space>[\s,]+|//.*)
      | (?P<register>%[irR]\d+(?::\d+)?)
      | (?P<label>\^\w+)
      | (?P<symbol>@[\w.$]+)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<arrow>->)
      | (?P<punctuation>[\[\]{}=:])
      | (?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf\b))
      | (?P<word>!?[A-Za-z_.][\w.<>?!]*)""",
    re.VERBOSE,
)

_SET_PREFIX = {name: byte for byte, name in PREFIXES.items()}
_SET_FEATURE = {EXT_F32: FEATURE_EXT_F32, EXT_F64: FEATURE_EXT_F64}
_REF = 0x8000
_MOVE = 0x4000


class AssemblyError(ValueError):
    """The text of a test module is wrong."""


@dataclass
class Names:
    """How symbols of a body become ordinals."""

    function: Callable[[str], int]
    type: Callable[[str], int]


@dataclass
class Body:
    """An assembled function body and what it uses."""

    data: bytearray = field(default_factory=bytearray)
    block_count: int = 0
    value_count: int = 0
    ref_count: int = 0
    requirements: int = 0
    locations: list[tuple[int, int]] = field(default_factory=list)
    """(byte offset, line of the text counted from 1) of each instruction."""


class _Tokens:
    """The tokens of one line, taken from the left."""

    def __init__(self, tokens: list[tuple[str, str]], line: str) -> None:
        self.tokens = tokens
        self.line = line

    @property
    def done(self) -> bool:
        return not self.tokens

    def next_is(self, text: str) -> bool:
        return bool(self.tokens) and self.tokens[0][1] == text

    def kind(self) -> str:
        return self.tokens[0][0] if self.tokens else "end of line"

    def take(self, *kinds: str) -> str:
        if self.kind() not in kinds:
            raise AssemblyError(f"expected {' or '.join(kinds)}, found {self.kind()}: {self.line.strip()}")
        return self.tokens.pop(0)[1]

    def skip(self, text: str) -> None:
        if not self.next_is(text):
            raise AssemblyError(f"expected {text}: {self.line.strip()}")
        self.tokens.pop(0)


def _tokenise(line: str) -> _Tokens:
    tokens = []
    position = 0
    while position < len(line):
        match = _TOKEN.match(line, position)
        if match is None or match.lastgroup is None:
            raise AssemblyError(f"cannot read {line[position:]!r}: {line.strip()}")
        if match.lastgroup != "space":
            tokens.append((match.lastgroup, match.group()))
        position = match.end()
    return _Tokens(tokens, line)


def assemble_body(text: str, cconv: str, names: Names) -> Body:
    """The bytes of one function."""
    encoder = _Encoder(names)
    for number, line in enumerate(text.splitlines(), start=1):
        encoder.line(line, number)
    encoder.resolve_labels()
    values, refs = _argument_extent(cconv)
    body = encoder.body
    body.value_count = max(body.value_count, values)
    body.ref_count = max(body.ref_count, refs)
    return body


def _argument_extent(cconv: str) -> tuple[int, int]:
    """Value slots and refs that the arguments of a function take on entry."""
    values = refs = 0
    for item in cconv[1:].partition("_")[0]:
        if item in "if":
            values += 1
        elif item in "IF":
            values = (values + 1) // 2 * 2 + 2
        elif item == "r":
            refs += 1
    return values, refs


class _Encoder:
    def __init__(self, names: Names) -> None:
        self.names = names
        self.body = Body()
        self.labels: dict[str, int] = {}
        self.fixups: list[tuple[int, str]] = []

    def line(self, text: str, number: int) -> None:
        if text.strip().startswith(".bytes"):
            self.body.data += bytes.fromhex(text.strip().removeprefix(".bytes"))
            return
        tokens = _tokenise(text)
        if tokens.done:
            return
        if tokens.kind() == "label":
            label = tokens.take("label")
            tokens.skip(":")
            self.begin_block(label)
        else:
            if not self.body.data:
                self.begin_block("^entry")
            self.body.locations.append((len(self.body.data), number))
            self.instruction(tokens)
        if not tokens.done:
            raise AssemblyError(f"unexpected {tokens.tokens[0][1]}: {text.strip()}")

    def begin_block(self, label: str) -> None:
        if label in self.labels:
            raise AssemblyError(f"label {label} defined twice")
        self.labels[label] = len(self.body.data)
        self.body.data.append(BY_MNEMONIC["block"].opcode)
        self.body.block_count += 1

    def instruction(self, tokens: _Tokens) -> None:
        results = self.take_results(tokens)
        mnemonic = tokens.take("word")
        row = BY_MNEMONIC.get(mnemonic)
        if row is None:
            raise AssemblyError(f"unknown instruction {mnemonic}")
        self.opcode(row)
        for operand in row.operands:
            if operand.output and operand.kind.startswith("list."):
                self.registers(operand, results)
                results = []
            elif operand.output:
                if not results:
                    raise AssemblyError(f"{mnemonic} has a result: {tokens.line.strip()}")
                self.register(results.pop(0), operand.kind)
            else:
                self.operand(operand, tokens)
        if results:
            raise AssemblyError(f"too many results: {tokens.line.strip()}")

    def take_results(self, tokens: _Tokens) -> list[str]:
        if not any(text == "=" for _, text in tokens.tokens):
            return []
        results = self.take_list(tokens) if tokens.next_is("[") else [tokens.take("register")]
        while not tokens.next_is("="):
            results.append(tokens.take("register"))
        tokens.skip("=")
        return results

    def opcode(self, row: Instruction) -> None:
        prefix = _SET_PREFIX.get(row.set)
        if prefix is not None:
            self.body.data.append(prefix)
            self.body.requirements |= _SET_FEATURE[row.set]
        if row.since >= 17 or row.mnemonic == "yield":
            self.body.requirements |= FEATURE_YIELD
        self.body.data.append(row.opcode)

    def operand(self, operand: Operand, tokens: _Tokens) -> None:
        kind, _, detail = operand.kind.partition(".")
        if kind == "r":
            self.register(tokens.take("register"), operand.kind)
        elif kind == "imm":
            self.immediate(detail, tokens)
        elif kind == "target":
            self.target(tokens)
        elif kind == "string":
            text = tokens.take("string")[1:-1].encode().decode("unicode_escape").encode("latin-1")
            self.body.data += struct.pack("<H", len(text)) + text
        elif operand.kind == "list.segment":
            self.count(counts := [int(text, 0) for text in self.take_list(tokens)])
            self.body.data += struct.pack(f"<{len(counts)}H", *counts)
        elif kind == "list":
            self.registers(operand, self.take_list(tokens))
        elif kind == "remap":
            self.remap(tokens)
        else:
            self.case_table(tokens)

    def immediate(self, detail: str, tokens: _Tokens) -> None:
        if detail in ("f32", "f64"):
            self.body.data += _float_bits(tokens.take("number"), detail)
        elif detail in ("i32", "i64"):
            width = int(detail[1:])
            value = int(tokens.take("number"), 0) % (1 << width)
            self.body.data += value.to_bytes(width // 8, "little")
        elif detail == "func" and tokens.kind() == "symbol":
            self.word(self.names.function(tokens.take("symbol")[1:]))
        elif detail == "type" and tokens.kind() == "word":
            self.word(self.names.type(tokens.take("word")))
        else:
            self.word(int(tokens.take("number"), 0))

    def word(self, value: int) -> None:
        self.body.data += struct.pack("<I", value % (1 << 32))

    def target(self, tokens: _Tokens) -> None:
        if tokens.kind() == "number":  # a raw offset
            self.word(int(tokens.take("number"), 0))
            return
        self.fixups.append((len(self.body.data), tokens.take("label")))
        self.word(0)

    def take_list(self, tokens: _Tokens) -> list[str]:
        entries: list[str] = []
        if tokens.done:
            return entries
        tokens.skip("[")
        while not tokens.next_is("]"):
            entries.append(tokens.take("register", "number"))
        tokens.skip("]")
        return entries

    def count(self, entries: list[int] | list[str] | list[tuple[str, str]]) -> None:
        """The count in front of a list, aligned to 2 from the start of the function."""
        if len(self.body.data) % 2:
            self.body.data.append(0)
        self.body.data += struct.pack("<H", len(entries))

    def registers(self, operand: Operand, entries: list[str]) -> None:
        self.count(entries)
        for entry in entries:
            self.register(entry, f"r.{operand.kind.partition('.')[2]}")

    def register(self, text: str, kind: str) -> None:
        self.body.data += struct.pack("<H", self.register_ordinal(text, kind))

    def register_ordinal(self, text: str, kind: str) -> int:
        first, _, last = text[2:].partition(":")
        ordinal = int(first)
        body = self.body
        if text[1] in "rR":
            body.ref_count = max(body.ref_count, ordinal + 1)
            return ordinal | _REF | (_MOVE if text[1] == "R" else 0)
        end = int(last) if last else ordinal + (kind in ("r.i64", "r.f64"))
        body.value_count = max(body.value_count, end + 1)
        return ordinal

    def remap(self, tokens: _Tokens) -> None:
        pairs = []
        if tokens.next_is("{"):
            tokens.skip("{")
            while not tokens.next_is("}"):
                source = tokens.take("register")
                tokens.skip("->")
                pairs.append((source, tokens.take("register")))
            tokens.skip("}")
        self.count(pairs)
        for pair in pairs:
            for register in pair:
                self.register(register, "r.any")

    def case_table(self, tokens: _Tokens) -> None:
        start = len(self.body.data)
        self.body.data += b"\0\0"
        count = 0
        tokens.skip("[")
        while not tokens.next_is("]"):
            self.target(tokens)
            self.remap(tokens)
            count += 1
        tokens.skip("]")
        struct.pack_into("<H", self.body.data, start, count)

    def resolve_labels(self) -> None:
        for position, label in self.fixups:
            if label not in self.labels:
                raise AssemblyError(f"no block {label}")
            struct.pack_into("<I", self.body.data, position, self.labels[label])


def _float_bits(text: str, detail: str) -> bytes:
    width = 4 if detail == "f32" else 8
    if text.lower().startswith("0x"):
        return int(text, 16).to_bytes(width, "little")
    return struct.pack("<f" if width == 4 else "<d", float(text))
