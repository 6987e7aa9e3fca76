"""Memory that the machine code of loading and Python share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import MemoryRecord, Repeated

if TYPE_CHECKING:
    from jitree.codegen.record import i32, i64, u8, u16, u32


class Decoder(MemoryRecord):
    """Decodes the functions of a module."""

    tables: Tables  # address of the Tables record
    bytecode: i64  # of the module's bytecode
    functions: i64  # of one FunctionRowRecord each
    function_count: i64
    imports: i64  # of one i32 each: where its convention is among the conventions, -1 = unreadable
    import_count: i64
    conventions: i64  # of i32 words, see `../decode.py`
    honours_moves: i64  # 1 where move flags of single operands and remaps mean something
    version: i64  # of the bytecode
    multiply_add: i64  # opcode word that fma.f32 becomes
    globals_size: i64
    ref_global_count: i64
    rodata_count: i64
    type_count: i64
    words: i64  # what comes out: i32 words of the module
    next_word: i64  # address of the next one
    instruction_words: i64  # i32 each, as instruction_offsets
    instruction_offsets: i64
    instruction_count: i64
    site_words: i64  # i32 each, as site_segments
    site_segments: i64
    site_count: i64
    body: i64  # of the current function: address of its bytes
    length: i64
    offset: i64  # in the bytecode
    requirements: i64
    value_count: i64
    ref_count: i64
    convention: i64
    blocks: i64  # BlockRecord records
    block_count: i64
    edges: i64  # EdgeRecord records
    edge_count: i64
    moves: i64  # Moves records, and what they move
    next_moves: i64  # address where the next one goes
    marks: i64  # i32 per byte of the body: number of the block that begins there, from 1
    draft: i64  # words of the function before blocks are joined
    next_draft: i64  # address of the next one
    draft_starts: i64  # i32 each: where instructions begin in the draft, and their byte offsets
    draft_offsets: i64
    draft_count: i64
    tags: i64  # bytes: of the registers of a call
    parts: i64  # FoundPart records of a superinstruction that is looked for
    sizes: i64  # SIZES_* of the instructions of the current function
    sized: i64  # what comes out: 1 if a function may compute sizes


class FunctionRowRecord(MemoryRecord):
    """Says what is in a function, and where its words are."""

    offset: i32  # as in the descriptor
    length: i32
    requirements: i32
    block_count: i32
    value_count: i32
    ref_count: i32
    convention: i32  # where it is among the conventions
    start: i32  # what comes out: index of the first word, and after the last one
    end: i32
    spare: i32


class Convention(MemoryRecord):
    """Tells how a function is called.

    An item for each argument follows: its tag, or SPAN and a number of tags, and these tags."""

    items: i32  # arguments
    results: i32  # how many
    results_at: i32  # words from here to the tags of the results
    slots_at: i32  # words from here to the register of each argument in the callee


SPAN: Final = 256


class BlockRecord(MemoryRecord):
    """Bounds a block of a function."""

    first_word: i32  # of the draft
    exit_word: i32
    end_word: i32
    first_instruction: i32  # the last one of them is the exit
    first_edge: i32
    first_site: i32
    place: i32  # index of its first word in the module, as exit_place
    exit_place: i32
    header: i32  # number of the block whose comparison its exit carries, 0 = none
    carried: i32  # words of the exit without that
    offset: i32  # of the marker, in bytes, as exit_offset
    exit_offset: i32


class EdgeRecord(MemoryRecord):
    """Leads from a block to another one."""

    moves: Moves  # address of the Moves record, 0 = none
    position: i32  # of the displacement in the exit's words
    target: i32  # byte offset


class Moves(MemoryRecord):
    """Counts moves, of which (tag, source, destination) follow."""

    count: i32
    stub: i32  # index of the word of the branch that does them, 0 = there is none yet


class FoundPart(MemoryRecord):
    """Finds a part of a superinstruction."""

    slot: i32  # what a part of a superinstruction writes
    width: i32


class Tables(MemoryRecord):
    """Lists what is known of instructions (`tables.py`).

    Halfwords from here to each OperandPlan follow, by set and opcode byte; 0 = unknown."""

    marker: u16  # opcode byte of block markers
    shapes: u16  # halfwords from here to the key of each shape of branch, 0 = it has none
    loops: u16  # … to the rows of each shape of branch, 0 = it is in no loop
    roots: u16  # … to the first parts of superinstructions by key
    schema: u16  # … to where the FIELDs of each kind of tables begin, the root first, from there
    unions: u16  # number of the kind of tables of the first location


PREFIXED_SETS: Final = 0xE0
"""Opcode byte that announces the second set, and after it those of the others."""

COND_BR_KEYS: Final = 16
"""Keys of a ``cond_br`` whose block if true, or if false, comes next; they follow those of shapes."""


class OperandPlan(MemoryRecord):
    """Lists the operands of an instruction."""

    opcode: u16  # word
    since: u16  # bytecode version
    special: u16  # SPECIAL_*
    count: u8  # operands; their kinds follow, KIND_*
    sizes: u8  # whether it may compute sizes: SIZES_*


SIZES_WITH_ARGUMENTS: Final = 1
SIZES_ALWAYS: Final = 2
"""Functions with this instruction may compute sizes: those that have arguments, or all. Initializers, which
have none and count devices, do so only by products."""


class Node(MemoryRecord):
    """Leads from a part of a superinstruction to the next ones."""

    size: u16  # words of a part
    width: u16  # slots that it writes
    opcode: u16  # of what ends here, 0 = none does
    following: u16  # halfwords from the tables to (key, row) of the next parts, 0 = none
    links: u16  # how many (position, part) follow


(
    KIND_LITERAL32, KIND_LITERAL64, KIND_VALUE, KIND_PAIR, KIND_RODATA, KIND_TYPE, KIND_GLOBAL32,
    KIND_GLOBAL64, KIND_REF_GLOBAL, KIND_REF, KIND_REF_KEPT, KIND_REF_MOVABLE, KIND_IMPORT, KIND_STRING,
    KIND_LIST_VALUE, KIND_LIST_PAIR, KIND_LIST_REF, KIND_LIST_ANY,
) = range(18)  # fmt: skip
"""Kinds of operands that become separate words."""

(
    SPECIAL_NONE, SPECIAL_BR, SPECIAL_JUMP, SPECIAL_COND_BR, SPECIAL_COND_BREAK, SPECIAL_BR_TABLE,
    SPECIAL_FAIL, SPECIAL_RETURN, SPECIAL_CALL, SPECIAL_CALL_VARIADIC, SPECIAL_CALL_YIELDABLE,
    SPECIAL_CALL_VARIADIC_YIELDABLE,
) = range(12)  # fmt: skip
"""Instructions that need more than that; from SPECIAL_CALL on, calls, every other one variadic."""


class Verifier(MemoryRecord):
    """Verifies the tables of a file."""

    data: i64  # address of the FlatBuffer, without size prefix
    length: i64
    tables: Tables  # address of the Tables record
    budget: i64  # what may still be looked at, in bytes
    findings: i64  # address of Finding records
    found: i64  # how many there are
    most: i64


class Finding(MemoryRecord):
    """Names a fault."""

    what: i32  # FOUND_*
    table: i32  # number of a table's kind
    slot: i32  # -1 = the table itself
    position: i32  # in bytes


class Field(MemoryRecord):
    """Describes a field of a table of the file."""

    kind: u16  # FIELD_*, 0 after the last one of a table
    slot: u16
    size: u16  # bytes of it or of an element; of tables, the number of the table's kind
    spare: u16


FIELD_SCALAR, FIELD_TEXT, FIELD_VECTOR, FIELD_TABLE, FIELD_TABLES, FIELD_UNION, FIELD_UNIONS = range(1, 8)

(
    FOUND_HEADER, FOUND_VTABLE, FOUND_VTABLE_SIZE, FOUND_TABLE_SIZE, FOUND_TABLE, FOUND_FIELD, FOUND_NULL,
    FOUND_VECTOR_HEADER, FOUND_VECTOR, FOUND_TEXT, FOUND_UNION, FOUND_OVERLAP,
) = range(12)  # fmt: skip


class ColumnReader(MemoryRecord):
    """Reads fields of all tables of a vector."""

    data: i64  # address of the FlatBuffer, without size prefix
    length: i64
    first: i64  # position of the first offset to a table
    count: i64  # tables
    wanted: i64  # address of Column records
    wanted_count: i64
    values: i64  # what comes out: of each column a number for each table
    texts: i64  # different ones so far, as far as one can say
    seen: i64 = Repeated(8)  # tables of the last ones, which a text is compared with


class Column(MemoryRecord):
    """Names a field that is wanted."""

    kind: i32  # COLUMN_*
    outer: i32  # slot of the table in each that has the field, -1 = that is the table itself
    slot: i32
    default: i32  # where there is no such field


COLUMN_PLACE, COLUMN_NUMBER, COLUMN_NUMBER64, COLUMN_TARGET, COLUMN_COUNT, COLUMN_ALIKE = range(6)
"""Where a field lies, its number, where its offset leads to, the length of what is there; and for a text,
whose COLUMN_TARGET and COLUMN_COUNT are the two columns before, the first table that has the same."""


class Halfword(MemoryRecord):
    """Is 16 bits without sign."""

    value: u16


class Unsigned(MemoryRecord):
    """Is 32 bits without sign."""

    value: u32
