"""Constants that lie along a reduction, in the order in which lanes need them: sixteen rows of a matrix are a
block, in which the elements of a column lie side by side.

To transpose squares of rows in registers takes longer than to multiply by them, where each is met by one
row of the other matrix. What is a constant of the program is the same in each call; so a block that is met
a second time is copied, and from then on read from its copy. The copy of a block is as large as the block,
and as far from it as the copies of all others (PACKED). Where blocks of different shapes overlap, the first
one is copied.

An i32 for each line of constants says what is known of it: nothing, that a block has been met that
begins there, that it belongs to a block, that no block that begins there is to be copied, or
the depth of the block that begins there and has a copy.
"""

from __future__ import annotations

from typing import Final

from jitree.regs.layout import PACKED, PACKED_LINE, SCRATCH, STATE

LANES: Final = 16
"""Rows of a block."""
_NEW, _MET, _TAKEN, _REFUSED, _DEPTHS = range(5)
"""What a line's number says; from the last one on it is the depth of a block with a copy, so much more."""


def _field(record: str, name: str, offset: int) -> str:
    return f"""  %{name}.at = getelementptr i8, ptr %{record}, i64 {offset}
  %{name} = load i64, ptr %{name}.at, align 8
"""


_RECORD: Final = "".join(
    _field("record", name, PACKED.offsets[name]) for name in ("start", "size", "distance", "marks")
)

TEXT: Final = f"""
define internal fastcc i64 @vm.packed(ptr %state, ptr %first, i64 %depth, i64 %blocks) noinline nounwind {{
{_field("state", "scratch", STATE.offsets["scratch"])}
  %outside = icmp eq i64 %scratch, 0
  br i1 %outside, label %none, label %own
own:
  %scratch.ptr = inttoptr i64 %scratch to ptr
{_field("scratch.ptr", "packed", SCRATCH.offsets["packed"])}
  br label %candidate
candidate:
  %place = phi i64 [ %packed, %own ], [ %following, %other ]
  %over = icmp eq i64 %place, 0
  br i1 %over, label %none, label %known
known:
  %record = inttoptr i64 %place to ptr
{_RECORD}
  %address = ptrtoint ptr %first to i64
  %begin = sub i64 %address, %start
  %block = mul i64 %depth, {4 * LANES}
  %bytes = mul i64 %block, %blocks
  %spare = sub i64 %size, %bytes
  %enough = icmp sge i64 %spare, 0
  %inside = icmp ule i64 %begin, %spare
  %within = and i64 %begin, {PACKED_LINE - 1}
  %aligned = icmp eq i64 %within, 0
  %fits = and i1 %enough, %inside
  %usable = and i1 %fits, %aligned
  %marks.ptr = inttoptr i64 %marks to ptr
  %wide = add i64 %depth, {_DEPTHS}
  %tag = trunc i64 %wide to i32
  %end = add i64 %begin, %bytes
  br i1 %usable, label %look, label %other
other:
{_field("record", "following", PACKED.offsets["next"]).rstrip()}
  br label %candidate
look:
  %at = phi i64 [ %begin, %known ], [ %next, %done ]
  %before = phi i1 [ true, %known ], [ %good, %done ]
  %line = lshr i64 %at, {PACKED_LINE.bit_length() - 1}
  %mark.at = getelementptr i32, ptr %marks.ptr, i64 %line
  %mark = load atomic i32, ptr %mark.at acquire, align 4
  %is = icmp eq i32 %mark, %tag
  br i1 %is, label %done, label %missing
missing:
  %made = call fastcc i1 @vm.pack(ptr %record, i64 %at, i64 %depth, i32 %mark)
  br label %done
done:
  %has = phi i1 [ true, %look ], [ %made, %missing ]
  %good = and i1 %before, %has
  %next = add i64 %at, %block
  %more = icmp ult i64 %next, %end
  br i1 %more, label %look, label %all
all:
  %found = select i1 %good, i64 %distance, i64 0
  ret i64 %found
none:
  ret i64 0
}}
define internal fastcc i1 @vm.pack(ptr %record, i64 %at, i64 %depth, i32 %mark) noinline cold nounwind {{
{_RECORD}
  %marks.ptr = inttoptr i64 %marks to ptr
  %room.at = getelementptr i8, ptr %record, i64 {PACKED.offsets["room"]}
  %bytes = mul i64 %depth, {4 * LANES}
  %first = lshr i64 %at, {PACKED_LINE.bit_length() - 1}
  %lines = lshr i64 %bytes, {PACKED_LINE.bit_length() - 1}
  %end = add i64 %first, %lines
  %first.at = getelementptr i32, ptr %marks.ptr, i64 %first
  switch i32 %mark, label %no [ i32 {_NEW}, label %meet i32 {_MET}, label %reserve ]
meet:
  %met = cmpxchg ptr %first.at, i32 {_NEW}, i32 {_MET} acq_rel monotonic
  ret i1 false
reserve:
  %left = atomicrmw sub ptr %room.at, i64 %bytes acq_rel
  %enough = icmp sge i64 %left, %bytes
  br i1 %enough, label %begin, label %refuse
begin:
  %begun = cmpxchg ptr %first.at, i32 {_MET}, i32 {_TAKEN} acq_rel monotonic
  %mine = extractvalue {{ i32, i1 }} %begun, 1
  br i1 %mine, label %claim, label %give_back
claim:
  %before = phi i64 [ %first, %begin ], [ %line, %claimed ]
  %line = add i64 %before, 1
  %all = icmp eq i64 %line, %end
  br i1 %all, label %copy, label %next
next:
  %line.at = getelementptr i32, ptr %marks.ptr, i64 %line
  %pair = cmpxchg ptr %line.at, i32 {_NEW}, i32 {_TAKEN} acq_rel monotonic
  %free = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %free, label %claimed, label %undo
claimed:
  br label %claim
undo:
  %undone = phi i64 [ %line, %next ], [ %previous, %clear ]
  %previous = sub i64 %undone, 1
  %over = icmp eq i64 %previous, %first
  br i1 %over, label %refuse, label %clear
clear:
  %previous.at = getelementptr i32, ptr %marks.ptr, i64 %previous
  store atomic i32 {_NEW}, ptr %previous.at release, align 4
  br label %undo
refuse:
  store atomic i32 {_REFUSED}, ptr %first.at release, align 4
  br label %give_back
give_back:
  %given = atomicrmw add ptr %room.at, i64 %bytes acq_rel
  br label %no
no:
  ret i1 false
copy:
  %address = add i64 %start, %at
  %source = inttoptr i64 %address to ptr
  %target.address = add i64 %address, %distance
  %target = inttoptr i64 %target.address to ptr
  br label %column
column:
  %k = phi i64 [ 0, %copy ], [ %following, %row.end ]
  br label %row
row:
  %lane = phi i64 [ 0, %column ], [ %lane.next, %row ]
  %row.start = mul i64 %lane, %depth
  %from = add i64 %row.start, %k
  %from.at = getelementptr i32, ptr %source, i64 %from
  %value = load i32, ptr %from.at, align 1
  %column.start = mul i64 %k, {LANES}
  %to = add i64 %column.start, %lane
  %to.at = getelementptr i32, ptr %target, i64 %to
  store i32 %value, ptr %to.at, align 1
  %lane.next = add i64 %lane, 1
  %row.over = icmp eq i64 %lane.next, {LANES}
  br i1 %row.over, label %row.end, label %row
row.end:
  %following = add i64 %k, 1
  %finished = icmp eq i64 %following, %depth
  br i1 %finished, label %publish, label %column
publish:
  %wide = add i64 %depth, {_DEPTHS}
  %tag = trunc i64 %wide to i32
  store atomic i32 %tag, ptr %first.at release, align 4
  ret i1 true
}}"""
"""``i64 @vm.packed(state, address of the first block, depth, blocks)``: from constants to their copies, if
all these blocks have one or get it now, or 0."""
