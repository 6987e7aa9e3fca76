"""Finds instructions that need a feature of the processor. Machine code.

Code is read by functions: from where one is known to begin, one instruction after the other, to where it
ends. Behind that may lie data, or functions that are called only where the processor has what they need; so
neither is taken for what the code needs. Bytes that are no instruction end a function, too. What a function
calls or goes on with by an instruction that names the place is a function, too.

Lengths and encodings of x86: Intel's manual, volume 2, chapter 2 and "Opcode Map"; of Arm: DDI 0487, C4.1.
:mod:`jitree.loaders.instruction_tables` has what is known of opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.primitives import load8, load32, load64, store8, store64
from jitree.codegen.record import MemoryRecord

if TYPE_CHECKING:
    from jitree.codegen.image.generated import Generated
    from jitree.codegen.record import i64

PADDING: Final = 32
"""Bytes behind code that are read with an instruction which is cut: any."""


class CodeScan(MemoryRecord):
    """Looks for features in code."""

    code: i64  # address of its first byte
    starts: i64  # of i64 each: where functions begin in it, ascending, and behind them the size of the code
    forms: i64  # of a byte for each opcode of each space: FORM_*
    sizes: i64  # of a byte for each ModRM byte: how many bytes it and what it asks for are
    rules: i64  # of i32 each, as forms: the first of its conditions, 0 = none
    conditions: i64  # of i64 each
    known: i64  # of a bit for each byte of the code: whether the function that begins there was found
    waiting: i64  # of i64 each: where those begin that are to be read
    most: i64  # that can wait
    count: i64  # of functions in starts
    wanted: i64  # bits of the features that are looked for
    found: i64  # what comes out: those that code needs
    seen: i64  # … the bytes that were read
    listed: i64  # how many of starts were taken
    waits: i64  # how many functions wait
    begin: i64  # of the function that is read, its address
    end: i64  # … and that of the next one in starts


FORM_CONSTANT: Final = 15
"""The bytes that follow all else."""
FORM_MODRM: Final = 16
FORM_SHORT: Final = 32
"""Whether the constant has two bytes less with a prefix 66."""
FORM_FLOW: Final = 64
"""Whether it may not go on with the next instruction."""
FORM_UNKNOWN: Final = 128
FORM_PREFIX: Final = 129
FORM_REX: Final = 130
FORM_TEST8: Final = 131
FORM_TEST: Final = 132
"""Bytes of several instructions, of which only TEST has a constant."""
FORM_REGISTER: Final = 133
"""A constant as long as the register."""
FORM_ADDRESS: Final = 134
FORM_ESCAPE: Final = 135
FORM_VEX2: Final = 136
FORM_VEX3: Final = 137
FORM_EVEX: Final = 138
FORM_XOP: Final = 139

LEGACY: Final = 0
VEX: Final = 4
EVEX: Final = 12
XOP: Final = 20
SPACES: Final = 23
"""Where the maps of an encoding begin among all, and how many there are."""

HAS_PREFIX: Final = 0
"""The bits of conditions: prefix none, 66, F3 or F2; …"""
HAS_LENGTH: Final = 4
"""… vectors of 128, 256 or 512 bits; …"""
HAS_WIDTH: Final = 7
"""… the smaller or larger of two sizes (W); …"""
HAS_DIGIT: Final = 9
"""… the register of the ModRM byte, from 0 to 7; …"""
HAS_MEMORY: Final = 17
"""… an operand in memory, or none. A condition holds if it has all bits that an instruction has."""
IS_LAST: Final = 1 << 19
FEATURE: Final = 20
"""The bit where the number of the feature begins."""

MOST_PREFIXES: Final = 14
CALL: Final = 0xE8
NO_MEMORY: Final = 192
"""From this on a ModRM byte names registers alone."""

FLOW_JUMP: Final = 1
FLOW_CONDITION: Final = 2
FLOW_TEST: Final = 3
FLOW_RETURN: Final = 4
FLOW_TRAP: Final = 5
FLOW_UNDEFINED: Final = 6
FLOW_CALL: Final = 7
"""What the first byte of a word of Arm may be the beginning of."""


def scan_opcodes(scan: CodeScan) -> int:
    """Those of the features wanted that functions of x86-64 need."""
    while scan.found != scan.wanted and next_function(scan):
        scan.seen += read_opcodes(scan, scan.begin, scan.end) - scan.begin
    return scan.found


def next_function(scan: CodeScan) -> bool:
    """Takes one that was not read: of those listed, then of those that others call."""
    size = load64(scan.starts + 8 * scan.count)
    if scan.listed < scan.count:
        at = scan.starts + 8 * scan.listed
        scan.listed += 1
        start = load64(at)
        end = load64(at + 8)
    else:
        if scan.waits == 0 or scan.seen > 2 * size:  # code of functions one inside the other
            return False
        scan.waits -= 1
        start = load64(scan.waiting + 8 * scan.waits)
        low = 0
        high = scan.count
        while low < high:
            middle = low + high >> 1
            if load64(scan.starts + 8 * middle) > start:
                high = middle
            else:
                low = middle + 1
        end = load64(scan.starts + 8 * low)
    scan.begin = scan.code + start
    scan.end = scan.code + end
    return True


def follow(scan: CodeScan, target: int) -> None:
    """Has a function read that another one calls, once."""
    start = target - scan.code
    if start < 0 or start >= load64(scan.starts + 8 * scan.count) or scan.waits >= scan.most:
        return
    place = scan.known + (start >> 3)
    bits = load8(place)
    bit = 1 << (start & 7)
    if bits & bit == 0:
        store8(place, bits | bit)
        store64(scan.waiting + 8 * scan.waits, start)
        scan.waits += 1


def read_opcodes(scan: CodeScan, at: int, end: int) -> int:
    """Reads a function up to its end, or another one's beginning; gives where it ends."""
    forms = scan.forms
    sizes = scan.sizes
    rules = scan.rules
    begin = at
    reach = at
    while at < end:
        start = at
        byte = load8(at)
        form = load8(forms + byte)
        prefix = 0
        short = 0
        address = 0
        long = 0
        space = 0
        while form == FORM_PREFIX:
            if byte == 0x66:
                short = 1
            elif byte >= 0xF2:
                prefix = 0xF5 - byte
            elif byte == 0x67:
                address = 1
            at += 1
            if at - start > MOST_PREFIXES:
                return start
            byte = load8(at)
            form = load8(forms + byte)
        if form == FORM_REX:
            long = byte >> 3 & 1
            at += 1
            byte = load8(at)
            form = load8(forms + byte)
        if form >= FORM_ESCAPE:
            length = 0
            if form == FORM_VEX2:
                last = load8(at + 1)
                space = VEX + 1
                length = last >> 2 & 1
                prefix = last & 3
                at += 2
            elif form == FORM_VEX3:
                number = load8(at + 1) & 31
                if number > EVEX - VEX - 1:
                    return start
                last = load8(at + 2)
                space = VEX + number
                long = last >> 7
                length = last >> 2 & 1
                prefix = last & 3
                at += 3
            elif form == FORM_EVEX:
                second = load8(at + 2)
                last = load8(at + 3)
                number = load8(at + 1)
                if number & 8 != 0 or second & 4 == 0:
                    return start
                space = EVEX + (number & 7)
                long = second >> 7
                prefix = second & 3
                length = last >> 5 & 3
                if last & 16 != 0 and load8(at + 5) >= NO_MEMORY:
                    length = 2  # how it is rounded
                at += 4
            elif form == FORM_ESCAPE:
                if prefix == 0:
                    prefix = short
                at += 1
                space = LEGACY + 1
                byte = load8(at)
                if byte == 0x38:
                    space = LEGACY + 2
                    at += 1
                elif byte == 0x3A:
                    space = LEGACY + 3
                    at += 1
            else:
                number = load8(at + 1) & 31
                if number >= 8:
                    if number > 7 + SPACES - XOP:
                        return start
                    last = load8(at + 2)
                    space = XOP + number - 8
                    long = last >> 7
                    length = last >> 2 & 1
                    prefix = last & 3
                    at += 3
            byte = load8(at)
            form = load8(forms + 256 * space + byte)
            rule = load32(rules + 1024 * space + 4 * byte)
            if space == LEGACY:
                form = FORM_MODRM  # pop
            if rule != 0:
                has = 1 << prefix | 1 << HAS_LENGTH + length | 1 << HAS_WIDTH + long
                modrm = load8(at + 1)
                has |= 1 << HAS_DIGIT + (modrm >> 3 & 7)
                has |= 2 << HAS_MEMORY if modrm >= NO_MEMORY else 1 << HAS_MEMORY
                note(scan, rule, has)
        if form >= FORM_UNKNOWN:
            if FORM_TEST8 <= form <= FORM_TEST:
                has_constant = load8(at + 1) & 0x38 < 16
                constant = 1 if form == FORM_TEST8 else FORM_SHORT | 4
                form = FORM_MODRM | constant if has_constant else FORM_MODRM
            elif form == FORM_REGISTER:
                form = 8 if long != 0 else FORM_SHORT | 4
            elif form == FORM_ADDRESS:
                form = 4 if address != 0 else 8
            else:
                return start
        at += 1
        modrm = load8(at)
        if form & FORM_MODRM != 0:
            if modrm >= NO_MEMORY:  # which does not wait for the table
                at += 1
            else:
                if modrm & 0xC7 == 4 and load8(at + 1) & 7 == 5:
                    at += 4
                at += load8(sizes + modrm)
        if form == FORM_MODRM:
            continue
        at += form & FORM_CONSTANT
        if form & FORM_SHORT != 0 and short > long:
            at -= 2
        if form & FORM_FLOW != 0:
            target = 0
            if form & FORM_CONSTANT == 1:
                target = at + signed(load8(at - 1), 8)
            elif form & FORM_CONSTANT == 4:
                target = at + load32(at - 4)
                if byte == CALL:
                    follow(scan, target)
                    continue
                if target < begin or target >= end:
                    follow(scan, target)
            if target > reach and target < end:
                reach = target
            if at > reach and leaves(space, byte, modrm):
                return at
    return at


def leaves(space: int, byte: int, modrm: int) -> bool:
    """Whether an instruction of control never goes on with the next one."""
    if space != 0:
        return byte == 0x0B
    if byte == 0xFF:
        return modrm >> 4 & 3 == 2
    return byte >= 0xC2 and not 0xE0 <= byte <= 0xE3


def signed(value: int, bits: int) -> int:
    """A number of so many bits, with its sign."""
    return value - ((value >> bits - 1 & 1) << bits)


def note(scan: CodeScan, rule: int, has: int) -> None:
    """Writes down the features that an instruction needs."""
    condition = 0
    while condition & IS_LAST == 0:
        condition = load64(scan.conditions + 8 * rule)
        if has & ~condition == 0:
            scan.found |= 1 << (condition >> FEATURE)
        rule += 1


def scan_words(scan: CodeScan) -> int:
    """As :func:`scan_opcodes`, of AArch64."""
    while scan.found != scan.wanted and next_function(scan):
        scan.seen += read_words(scan, scan.begin, scan.end) - scan.begin
    return scan.found


def read_words(scan: CodeScan, at: int, end: int) -> int:
    """Reads a function up to its end, or another one's beginning; gives where it ends."""
    begin = at
    reach = at
    while at + 3 < end:
        word = load32(at) & 0xFFFFFFFF
        rule = load32(scan.rules + 4 * (word >> 24))
        if rule != 0:
            note_word(scan, rule, word)
        flow = load8(scan.forms + (word >> 24))
        if flow != 0:
            target = 0
            if flow == FLOW_CALL or flow == FLOW_JUMP:  # noqa: SIM109
                target = at + 4 * signed(word & 0x3FFFFFF, 26)
                if flow == FLOW_CALL or target < begin or target >= end:
                    follow(scan, target)
            elif flow == FLOW_CONDITION:
                target = at + 4 * signed(word >> 5 & 0x7FFFF, 19)
            elif flow == FLOW_TEST:
                target = at + 4 * signed(word >> 5 & 0x3FFF, 14)
            if target > reach and target < end and flow != FLOW_CALL:
                reach = target
            if at >= reach and leaves_by(flow, word):
                return at + 4
        at += 4
    return at


def leaves_by(flow: int, word: int) -> bool:
    if flow == FLOW_UNDEFINED:
        return word < 0x10000
    if flow == FLOW_RETURN:
        return word >> 21 & 3 != 1  # not a call
    if flow == FLOW_TRAP:
        return word & 0xFFE0001F == 0xD4200000
    return flow == FLOW_JUMP


def note_word(scan: CodeScan, rule: int, word: int) -> None:
    """Writes down the features that a word needs: each condition is a mask, and the value under it."""
    place = scan.conditions + 16 * rule
    what = 0
    while what & IS_LAST == 0:
        what = load64(place + 8)
        if (word & load32(place)) == load32(place + 4) & 0xFFFFFFFF:
            scan.found |= 1 << (what >> FEATURE)
        place += 16


_ENTRIES: Final = (scan_opcodes, scan_words)


def generate() -> Generated:
    """The image of both."""
    from jitree.codegen import functions  # here: only builders have Numba
    from jitree.codegen.image.generated import one_unit

    return one_unit(functions.texts(_ENTRIES), [entry.__name__ for entry in _ENTRIES])
