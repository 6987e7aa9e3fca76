"""The generated loop: instructions have a handler or are listed, superinstructions do what their parts do."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import pytest

from jitree.codegen import functions
from jitree.codegen.image import Image, shipped
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import decode_trusted, map_image
from jitree.codegen.image.link import link
from jitree.codegen.record import size_of, words_of
from jitree.dispatch.fast import LOOP
from jitree.dispatch.fast.engine import FastEngine
from jitree.dispatch.fast.loop_texts import SIDE_EXITS, loop_text
from jitree.dispatch.plain.handlers import PlainEngine
from jitree.errors import StatusError
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import FUNCTION
from jitree.regs.machine import Machine
from jitree.regs.memory import address_of
from jitree.regs.records import FunctionRecord, FunctionRecords
from jitree.regs.ref_types import RefTypes
from jitree.vmfb import superinstructions
from jitree.vmfb.instructions import BY_MNEMONIC
from jitree.vmfb.native import joining, tables
from jitree.vmfb.native.layout import Decoder, FoundPart
from jitree.vmfb.superinstructions import (
    LOOP_BY_NAME,
    LOOP_OPCODE,
    LOOPS,
    SUPERINSTRUCTIONS,
    Part,
    Superinstruction,
)
from jitree.vmfb.words import BASE_OPCODE, OPCODE, OPCODE_NAMES
from tests.base.rows import each_row

SLOTS = 12
REFS = 4


def test_generated_table_is_current() -> None:
    text = superinstructions.FILE.read_text(encoding="ascii")
    assert text == superinstructions.generate(), "run python -m jitree.tools.ship_images"


def test_every_instruction_has_a_handler_or_is_listed() -> None:
    text = loop_text()
    handled = {name for name in OPCODE_NAMES if f'define internal preserve_nonecc i64 @"op.{name}"(' in text}
    assert handled | SIDE_EXITS == set(OPCODE_NAMES)
    assert not handled & SIDE_EXITS


def test_table_has_a_row_for_every_opcode_word() -> None:
    table = loop_text().split("@handlers = ")[1]
    assert table.startswith(f"internal constant [{len(BASE_OPCODE)} x ptr]")


class Random:
    """Operands by a seed: hypothesis would take six times as long for as many examples."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def slot(self, wide: bool) -> int:
        return 2 * self.number(SLOTS // 2) if wide else self.number(SLOTS)

    def number(self, limit: int) -> int:
        return int(self._generator.integers(limit))


def _moves(shape: str, random: Random) -> list[int]:
    words = []
    for letter in shape:
        wide = letter == "d"
        words += [int(wide), random.slot(wide), random.slot(wide)]
    return words


def _operands(mnemonic: str, random: Random) -> list[int]:
    words = []
    for operand in BY_MNEMONIC[mnemonic].operands:
        kind = operand.kind.removeprefix("r.")
        words.append(random.number(REFS) if kind == "ref" else random.slot(kind.endswith("64")))
    return words


class Writer:
    """Lays out the words of one superinstruction between exits, which tell by their place where it went."""

    def __init__(self, parts: Superinstruction, random: Random) -> None:
        self.words: list[int] = []
        self.starts: list[int] = []
        self.random = random
        self._results: list[int] = []
        self._pending: list[tuple[int, int]] = []
        for part in parts:
            self._write(part)
        self._instruction([OPCODE["host.exit"]])
        for origin, position in self._pending:
            self.words[position] = len(self.words) - origin
            self._instruction([OPCODE["host.exit"]])

    def _instruction(self, words: list[int]) -> int:
        self.starts.append(len(self.words))
        self.words += words
        return self.starts[-1]

    def _write(self, part: Part) -> None:
        name, _, special = part.name.partition(":")
        if name in ("br", "cond_br", "loop"):
            start = {"br": self._br, "cond_br": self._cond_br, "loop": self._loop}[name](special, part.name)
        else:
            start = self._instruction([OPCODE[name], *_operands(name, self.random)])
        for position, number in part.links:
            self.words[start + position] = self._results[number]
        self._results.append(self.words[-1])

    def _br(self, shape: str, name: str) -> int:
        moves = _moves(shape, self.random)
        start = self._instruction([OPCODE["br"], 0, len(shape), *moves] if shape else [OPCODE["br.bare"], 0])
        self._pending.append((start, start + 1))
        return start

    def _cond_br(self, side: str, name: str) -> int:
        start = self._instruction([OPCODE["cond_br"], self.random.number(SLOTS), 4, 4])
        for offset, label in ((2, "true"), (3, "false")):
            if side != label:
                self._pending.append((start, start + offset))
        return start

    def _loop(self, special: str, name: str) -> int:
        loop = LOOP_BY_NAME[name]
        shape = loop.shape.removeprefix("br:")
        moves = [len(shape), *_moves(shape, self.random)] if shape else []
        copied = _operands(loop.compare, self.random)
        start = self._instruction([LOOP_OPCODE[loop], 0, *moves, *copied, 0, 0])
        # The branch as such leads to the comparison it copies.
        header = self._instruction([OPCODE[loop.compare], *copied])
        self.words[start + 1] = header - start
        branch = self._instruction([OPCODE["cond_br"], copied[-1], 0, 0])
        for side in (0, 1):
            landing = self._instruction([OPCODE["host.exit"]])
            self.words[branch + 2 + side] = landing - branch
            self.words[header - 2 + side] = landing - start
        return start


@cache
def fusing_tables() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(tables.generate(), np.uint8)


@cache
def fusing_code() -> tuple[Image, Any]:
    image = map_image(
        link([compile_object(functions.texts([joining.fuse]), ["fuse"], host_target())], ["fuse"])
    )
    return image, ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(image.addresses["fuse"])


def fuse(writer: Writer) -> list[int]:
    """The words with the opcodes of the superinstructions that loading finds in them."""
    words = np.array([*writer.words, *[0] * 16], np.int32)
    memory: dict[str, np.ndarray[Any, Any]] = {
        "tables": fusing_tables(),
        "words": words,
        "instruction_words": np.array(writer.starts, np.int32),
        "parts": np.zeros(16 * size_of(FoundPart), np.uint8),
    }
    named, decoder = words_of(Decoder), np.zeros(size_of(Decoder) // 8, np.int64)
    decoder[named.instruction_count] = len(writer.starts)
    for name, array in memory.items():
        decoder[getattr(named, name)] = address_of(array)
    fusing_code()[1](address_of(decoder), 0)
    return words[: len(writer.words)].tolist()  # type: ignore[no-any-return]


def _run(words: list[int], fast: bool, values: list[int], refs: list[VmBuffer | None]) -> tuple[Any, ...]:
    """Value slots, pc, bytes of the buffers and failure after running words in the host's frame."""
    memory = np.zeros(FUNCTION.size // 8, np.int64)
    record = FunctionRecord(memory, np.array(words, np.int32), 0, (SLOTS, REFS), ())
    record.module = _NoModule()  # type: ignore[assignment]
    machine = _machine()
    machine.functions[record.address] = record
    machine.begin(record)
    machine.pc = 0
    for slot, value in enumerate(values):
        machine.i32[slot] = value
    for register, ref in enumerate(refs):
        machine.refs[register] = machine.table.wrap(ref)
    failure = ""
    try:
        (FastEngine() if fast else PlainEngine()).run(machine)
    except StatusError as error:
        failure = str(error)
    result = machine.i32[:SLOTS].tolist(), machine.pc, [bytes(ref) for ref in refs if ref], failure
    machine.release_frames()
    assert machine.table.live_count == 0
    return result


class _NoModule:
    address = 0


def _machine() -> Machine:
    return Machine(HandleTable(RefTypes(), capacity=16), FunctionRecords())


_VALUES = [0, 0, 0, 1, 2, 3, 5, 7, 0x3F800000, 0x40000000, 0xBF800000 - 2**32, -(2**31)]
"""No NaNs as floats: which of two goes on is open."""


_LENGTHS = sorted({len(parts) for parts in SUPERINSTRUCTIONS})


def _of_length(length: int) -> dict[str, tuple[int, tuple[Part, ...]]]:
    """Superinstructions of so many parts, and their numbers."""
    return {
        f"{number}: {' '.join(map(str, parts))}": (number, parts)
        for number, parts in enumerate(SUPERINSTRUCTIONS)
        if len(parts) == length
    }


def _equals_its_parts(row: tuple[int, tuple[Part, ...]]) -> None:
    for seed in range(10):
        random = Random(seed)
        writer = Writer(row[1], random)
        fused = fuse(writer)
        values = [_VALUES[random.number(len(_VALUES))] for _ in range(SLOTS)]
        base = [BASE_OPCODE[word] if at in writer.starts else word for at, word in enumerate(writer.words)]
        expected = _run(base, False, values, _refs())
        assert _run(fused, True, values, _refs()) == expected, (seed, values)


@pytest.mark.parametrize("length", _LENGTHS)
def test_superinstructions_equal_their_parts(length: int) -> None:
    each_row(_of_length(length), _equals_its_parts)


def test_loops_equal_their_parts() -> None:
    loops = {loop.name: (number, (Part(loop.name),)) for number, loop in enumerate(LOOP_OPCODE)}
    assert len(loops) == len(LOOP_OPCODE)
    each_row(loops, _equals_its_parts)


def _refs() -> list[VmBuffer | None]:
    read_only = VmBuffer.alias(bytes(range(48)))
    return [None, VmBuffer(64), VmBuffer(32), read_only]


@pytest.mark.parametrize("length", _LENGTHS)
def test_superinstructions_are_found(length: int) -> None:
    """Words written for a superinstruction get its opcode, unless a longer or more special one applies."""

    def check(row: tuple[int, tuple[Part, ...]]) -> None:
        number, parts = row
        opcodes = {fuse(Writer(parts, Random(seed)))[0] for seed in range(20)}
        assert len(OPCODE) + len(LOOPS) + number in opcodes

    each_row(_of_length(length), check)


def test_handlers_for_aarch64() -> None:
    """The table of the image that is shipped has a handler for each opcode."""
    with open(shipped.path_of(LOOP.name, "aarch64"), "rb") as file:
        flat = decode_trusted(file.read())
    assert flat is not None
    table = np.frombuffer(flat.code, "<u8")[np.frombuffer(flat.rebase, "<u4") >> 3]
    assert len(table) == len(BASE_OPCODE)
    assert len(set(table.tolist())) > len(BASE_OPCODE) - len(SIDE_EXITS), "a handler each"
    assert (table < len(flat.code)).all() and (table % 4 == 0).all()
    code = np.frombuffer(flat.code, "<u4")
    flushing = code[(code & 0xFFA0FC00) == 0x1E207800]  # fminnm of one value
    assert len(flushing) == 4, "least and greatest of both widths, where denormal numbers count as zeros"
