"""Memory that the machine code of loading and Python share."""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record

DECODER: Final = Record(
    "decoder",
    """
    i64 tables            # address of the TABLES record
    i64 bytecode          # of the module's bytecode
    i64 functions         # of one FUNCTION_ROW each
    i64 function_count
    i64 imports           # of one i32 each: where its convention is among the conventions, -1 = unreadable
    i64 import_count
    i64 conventions       # of i32 words, see `../decode.py`
    i64 honours_moves     # 1 where move flags of single operands and remaps mean something
    i64 version           # of the bytecode
    i64 multiply_add      # opcode word that fma.f32 becomes
    i64 globals_size
    i64 ref_global_count
    i64 rodata_count
    i64 type_count
    i64 words             # what comes out: i32 words of the module
    i64 next_word         # address of the next one
    i64 instruction_words # i32 each, as instruction_offsets
    i64 instruction_offsets
    i64 instruction_count
    i64 site_words        # i32 each, as site_segments
    i64 site_segments
    i64 site_count
    i64 body              # of the current function: address of its bytes
    i64 length
    i64 offset            # in the bytecode
    i64 requirements
    i64 value_count
    i64 ref_count
    i64 convention
    i64 blocks            # BLOCK records
    i64 block_count
    i64 edges             # EDGE records
    i64 edge_count
    i64 moves             # MOVES records, and what they move
    i64 next_moves        # address where the next one goes
    i64 marks             # i32 per byte of the body: number of the block that begins there, from 1
    i64 draft             # words of the function before blocks are joined
    i64 next_draft        # address of the next one
    i64 draft_starts      # i32 each: where instructions begin in the draft, and their byte offsets
    i64 draft_offsets
    i64 draft_count
    i64 tags              # bytes: of the registers of a call
    i64 parts             # PART records of a superinstruction that is looked for
    i64 sizes             # SIZES_* of the instructions of the current function
    i64 sized             # what comes out: 1 if a function may compute sizes
    """,
)

FUNCTION_ROW: Final = Record(
    "function_row",
    """
    i32 offset            # as in the descriptor
    i32 length
    i32 requirements
    i32 block_count
    i32 value_count
    i32 ref_count
    i32 convention        # where it is among the conventions
    i32 start             # what comes out: index of the first word, and after the last one
    i32 end
    i32 spare
    """,
)

CONVENTION: Final = Record(
    "convention",
    """
    i32 items             # arguments
    i32 results           # how many
    i32 results_at        # words from here to the tags of the results
    i32 slots_at          # words from here to the register of each argument in the callee
    """,
)
"""An item for each argument follows: its tag, or SPAN and a number of tags, and these tags."""
SPAN: Final = 256

BLOCK: Final = Record(
    "block",
    """
    i32 first_word        # of the draft
    i32 exit_word
    i32 end_word
    i32 first_instruction # the last one of them is the exit
    i32 first_edge
    i32 first_site
    i32 place             # index of its first word in the module, as exit_place
    i32 exit_place
    i32 header            # number of the block whose comparison its exit carries, 0 = none
    i32 carried           # words of the exit without that
    i32 offset            # of the marker, in bytes, as exit_offset
    i32 exit_offset
    """,
)

EDGE: Final = Record(
    "edge",
    """
    i64 moves             # address of the MOVES record, 0 = none
    i32 position          # of the displacement in the exit's words
    i32 target            # byte offset
    """,
)

MOVES: Final = Record(
    "moves",
    """
    i32 count
    i32 stub              # index of the word of the branch that does them, 0 = there is none yet
    """,
)
"""(tag, source, destination) of each move follow."""

PART: Final = Record(
    "part",
    """
    i32 slot              # what a part of a superinstruction writes
    i32 width
    """,
)

TABLES: Final = Record(
    "tables",
    """
    u16 marker            # opcode byte of block markers
    u16 shapes            # halfwords from here to the key of each shape of branch, 0 = it has none
    u16 loops             # … to the rows of each shape of branch, 0 = it is in no loop
    u16 roots             # … to the first parts of superinstructions by key
    u16 schema            # … to where the FIELDs of each kind of tables begin, the root first, from there
    u16 unions            # number of the kind of tables of the first location
    """,
)
"""Halfwords from here to each PLAN follow, by set and opcode byte; 0 = unknown. See `tables.py`."""
PREFIXED_SETS: Final = 0xE0
"""Opcode byte that announces the second set, and after it those of the others."""

COND_BR_KEYS: Final = 16
"""Keys of a ``cond_br`` whose block if true, or if false, comes next; they follow those of shapes."""

PLAN: Final = Record(
    "plan",
    """
    u16 opcode            # word
    u16 since             # bytecode version
    u16 special           # SPECIAL_*
    u8 count              # operands; their kinds follow, KIND_*
    u8 sizes              # whether it may compute sizes: SIZES_*
    """,
)

SIZES_WITH_ARGUMENTS: Final = 1
SIZES_ALWAYS: Final = 2
"""Functions with this instruction may compute sizes: those that have arguments, or all. Initializers, which
have none and count devices, do so only by products."""

NODE: Final = Record(
    "node",
    """
    u16 size              # words of a part
    u16 width             # slots that it writes
    u16 opcode            # of what ends here, 0 = none does
    u16 following         # halfwords from the tables to (key, row) of the next parts, 0 = none
    u16 links             # how many (position, part) follow
    """,
)

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

VERIFIER: Final = Record(
    "verifier",
    """
    i64 data              # address of the FlatBuffer, without size prefix
    i64 length
    i64 tables            # address of the TABLES record
    i64 budget            # what may still be looked at, in bytes
    i64 findings          # address of FINDING records
    i64 found             # how many there are
    i64 most
    """,
)

FINDING: Final = Record(
    "finding",
    """
    i32 what              # FOUND_*
    i32 table             # number of a table's kind
    i32 slot              # -1 = the table itself
    i32 position          # in bytes
    """,
)

FIELD: Final = Record(
    "field",
    """
    u16 kind              # FIELD_*, 0 after the last one of a table
    u16 slot
    u16 size              # bytes of it or of an element; of tables, the number of the table's kind
    u16 spare
    """,
)
FIELD_SCALAR, FIELD_TEXT, FIELD_VECTOR, FIELD_TABLE, FIELD_TABLES, FIELD_UNION, FIELD_UNIONS = range(1, 8)

(
    FOUND_HEADER, FOUND_VTABLE, FOUND_VTABLE_SIZE, FOUND_TABLE_SIZE, FOUND_TABLE, FOUND_FIELD, FOUND_NULL,
    FOUND_VECTOR_HEADER, FOUND_VECTOR, FOUND_TEXT, FOUND_UNION, FOUND_OVERLAP,
) = range(12)  # fmt: skip

COLUMN_READER: Final = Record(
    "column_reader",
    """
    i64 data              # address of the FlatBuffer, without size prefix
    i64 length
    i64 first             # position of the first offset to a table
    i64 count             # tables
    i64 wanted            # address of COLUMN records
    i64 wanted_count
    i64 values            # what comes out: of each column a number for each table
    i64 texts             # different ones so far, as far as one can say
    i64*8 seen            # tables of the last ones, which a text is compared with
    """,
)

COLUMN: Final = Record(
    "column",
    """
    i32 kind              # COLUMN_*
    i32 outer             # slot of the table in each that has the field, -1 = that is the table itself
    i32 slot
    i32 default           # where there is no such field
    """,
)
COLUMN_PLACE, COLUMN_NUMBER, COLUMN_NUMBER64, COLUMN_TARGET, COLUMN_COUNT, COLUMN_ALIKE = range(6)
"""Where a field lies, its number, where its offset leads to, the length of what is there; and for a text,
whose COLUMN_TARGET and COLUMN_COUNT are the two columns before, the first table that has the same."""

HALFWORD: Final = Record("halfword", "u16 value")
UNSIGNED: Final = Record("unsigned", "u32 value")
