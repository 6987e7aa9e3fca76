"""An executable of small kernels in LLVM IR, compiled when the tests run.

They do what compiled programs never do on purpose: fail, record who called them with what, take their time.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from functools import cache

import numpy as np

from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import map_image
from jitree.codegen.image.link import link
from jitree.codegen.record import layout_of, size_of
from jitree.hal.command_layout import ENTRY_SEQUENTIAL, KernelEntry
from jitree.hal.command_list import DIRECT, CommandList, Range
from jitree.hal.enums import MemoryAccess
from jitree.hal.executable import LocalExecutable
from jitree.regs.memory import address_of, zeroed

COUNT, FAIL, MULTIPLY, LOCAL, BUSY, BUSY_SEQUENTIAL = range(6)
"""Functions; each states its bindings and constants below."""
NAMES = ("count", "fail", "multiply", "local", "busy", "busy_sequential")
LOCAL_BYTES = 8192
ALL = int(MemoryAccess.ALL)

_TEXT = """
; Linear number of the workgroup.
define internal i64 @number(ptr %dispatch, ptr %group) alwaysinline {
  %gy = getelementptr i8, ptr %group, i64 4
  %gz = getelementptr i8, ptr %group, i64 8
  %dx = getelementptr i8, ptr %dispatch, i64 12
  %dy = getelementptr i8, ptr %dispatch, i64 16
  %x = load i32, ptr %group
  %y = load i32, ptr %gy
  %z = load i16, ptr %gz
  %nx = load i32, ptr %dx
  %ny = load i32, ptr %dy
  %x64 = zext i32 %x to i64
  %y64 = zext i32 %y to i64
  %z64 = zext i16 %z to i64
  %nx64 = zext i32 %nx to i64
  %ny64 = zext i32 %ny to i64
  %plane = mul i64 %z64, %ny64
  %line = add i64 %plane, %y64
  %lines = mul i64 %line, %nx64
  %number = add i64 %lines, %x64
  ret i64 %number
}
define internal ptr @binding(ptr %dispatch, i64 %index) alwaysinline {
  %at = getelementptr i8, ptr %dispatch, i64 32
  %table = load ptr, ptr %at
  %slot = getelementptr ptr, ptr %table, i64 %index
  %binding = load ptr, ptr %slot
  ret ptr %binding
}
; Whether the binding has more than so many words: programs at random also bind less.
define internal i1 @has(ptr %dispatch, i64 %index, i64 %number) alwaysinline {
  %at = getelementptr i8, ptr %dispatch, i64 40
  %table = load ptr, ptr %at
  %slot = getelementptr i64, ptr %table, i64 %index
  %length = load i64, ptr %slot
  %words = ashr i64 %length, 2
  %inside = icmp sgt i64 %words, %number
  ret i1 %inside
}
define internal i32 @constant(ptr %dispatch, i64 %index) alwaysinline {
  %at = getelementptr i8, ptr %dispatch, i64 24
  %table = load ptr, ptr %at
  %word = getelementptr i32, ptr %table, i64 %index
  %value = load i32, ptr %word
  ret i32 %value
}
; binding 0: u32 per workgroup, + 1
define i32 @count(ptr %environment, ptr %dispatch, ptr %group) {
  %number = call i64 @number(ptr %dispatch, ptr %group)
  %inside = call i1 @has(ptr %dispatch, i64 0, i64 %number)
  br i1 %inside, label %add, label %done
add:
  %counts = call ptr @binding(ptr %dispatch, i64 0)
  %place = getelementptr i32, ptr %counts, i64 %number
  %old = atomicrmw add ptr %place, i32 1 monotonic
  br label %done
done:
  ret i32 0
}
; constants: workgroup that fails, what it returns. binding 0 as in count
define i32 @fail(ptr %environment, ptr %dispatch, ptr %group) {
  %number = call i64 @number(ptr %dispatch, ptr %group)
  %done = call i32 @count(ptr %environment, ptr %dispatch, ptr %group)
  %which = call i32 @constant(ptr %dispatch, i64 0)
  %code = call i32 @constant(ptr %dispatch, i64 1)
  %number32 = trunc i64 %number to i32
  %hit = icmp eq i32 %number32, %which
  %result = select i1 %hit, i32 %code, i32 0
  ret i32 %result
}
; binding 2[i] = binding 0[i] * binding 1[i], f32, one element per workgroup
define i32 @multiply(ptr %environment, ptr %dispatch, ptr %group) {
  %number = call i64 @number(ptr %dispatch, ptr %group)
  %a.inside = call i1 @has(ptr %dispatch, i64 0, i64 %number)
  %b.inside = call i1 @has(ptr %dispatch, i64 1, i64 %number)
  %c.inside = call i1 @has(ptr %dispatch, i64 2, i64 %number)
  %ab.inside = and i1 %a.inside, %b.inside
  %inside = and i1 %ab.inside, %c.inside
  br i1 %inside, label %compute, label %done
compute:
  %a = call ptr @binding(ptr %dispatch, i64 0)
  %b = call ptr @binding(ptr %dispatch, i64 1)
  %c = call ptr @binding(ptr %dispatch, i64 2)
  %pa = getelementptr float, ptr %a, i64 %number
  %pb = getelementptr float, ptr %b, i64 %number
  %pc = getelementptr float, ptr %c, i64 %number
  %va = load float, ptr %pa
  %vb = load float, ptr %pb
  %product = fmul float %va, %vb
  store float %product, ptr %pc
  br label %done
done:
  ret i32 0
}
; binding 0: u64 address of local memory per workgroup; binding 1: u32 its size. Uses all of the memory; fails
; with 7 when another workgroup changes it meanwhile.
define i32 @local(ptr %environment, ptr %dispatch, ptr %group) {
start:
  %number = call i64 @number(ptr %dispatch, ptr %group)
  %addresses = call ptr @binding(ptr %dispatch, i64 0)
  %sizes = call ptr @binding(ptr %dispatch, i64 1)
  %local.at = getelementptr i8, ptr %group, i64 16
  %local = load ptr, ptr %local.at
  %size.at = getelementptr i8, ptr %group, i64 24
  %size = load i32, ptr %size.at
  %address.place = getelementptr i64, ptr %addresses, i64 %number
  store ptr %local, ptr %address.place
  %size.place = getelementptr i32, ptr %sizes, i64 %number
  store i32 %size, ptr %size.place
  %words = lshr i32 %size, 3
  %words64 = zext i32 %words to i64
  br label %write
write:
  %i = phi i64 [ 0, %start ], [ %i.next, %write ]
  %place = getelementptr i64, ptr %local, i64 %i
  store volatile i64 %number, ptr %place
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %words64
  br i1 %more, label %write, label %check
check:
  %j = phi i64 [ 0, %write ], [ %j.next, %same ]
  %place2 = getelementptr i64, ptr %local, i64 %j
  %value = load volatile i64, ptr %place2
  %equal = icmp eq i64 %value, %number
  br i1 %equal, label %same, label %changed
same:
  %j.next = add i64 %j, 1
  %more2 = icmp ult i64 %j.next, %words64
  br i1 %more2, label %check, label %done
changed:
  ret i32 7
done:
  ret i32 0
}
; constant 0: turns to spend. binding 0 as in count; binding 1: u32 processor id + 1 per workgroup
define i32 @busy(ptr %environment, ptr %dispatch, ptr %group) {
start:
  %number = call i64 @number(ptr %dispatch, ptr %group)
  %turns = call i32 @constant(ptr %dispatch, i64 0)
  %processor.at = getelementptr i8, ptr %group, i64 12
  %processor = load i32, ptr %processor.at
  %ids = call ptr @binding(ptr %dispatch, i64 1)
  %id.place = getelementptr i32, ptr %ids, i64 %number
  %id = add i32 %processor, 1
  store i32 %id, ptr %id.place
  br label %turn
turn:
  %i = phi i32 [ 0, %start ], [ %i.next, %turn ]
  store volatile i32 %id, ptr %id.place
  %i.next = add i32 %i, 1
  %more = icmp ult i32 %i.next, %turns
  br i1 %more, label %turn, label %done
done:
  %counted = call i32 @count(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %counted
}
define i32 @busy_sequential(ptr %environment, ptr %dispatch, ptr %group) {
  %result = call i32 @busy(ptr %environment, ptr %dispatch, ptr %group)
  ret i32 %result
}
"""


class NativeExecutable(LocalExecutable):
    """``hal.executable.LocalExecutable`` of the kernels above."""

    @property
    def name(self) -> str:
        return "test kernels"

    def __init__(self) -> None:
        self._image = map_image(link([compile_object([_TEXT], NAMES, host_target())], NAMES))
        self._environment = zeroed(96)
        self._entries = array("q")
        for ordinal, name in enumerate(NAMES):
            flags = ENTRY_SEQUENTIAL if ordinal == BUSY_SEQUENTIAL else 0
            self._entries.frombytes(struct.pack(
                "<3q6i", self._image.addresses[name], address_of(self._environment), 0,
                self.local_memory(ordinal), flags, -1, -1, ordinal, 0,
            ))  # fmt: skip

    @property
    def function_count(self) -> int:
        return len(NAMES)

    def function_name(self, ordinal: int) -> str:
        return NAMES[ordinal]

    def lookup(self, name: str) -> int:
        return NAMES.index(name)

    def constant_count(self, ordinal: int) -> int | None:
        return None

    def binding_count(self, ordinal: int) -> int | None:
        return None

    def entry_point(self, ordinal: int) -> int:
        return self._entries.buffer_info()[0] + ordinal * size_of(KernelEntry)

    def local_memory(self, ordinal: int) -> int:
        return LOCAL_BYTES if ordinal == LOCAL else 0


@cache
def executable() -> NativeExecutable:
    return NativeExecutable()


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 64 bytes, as kernels want their bindings."""
    block = zeroed(values.nbytes)
    block[:] = np.frombuffer(values.tobytes(), np.uint8)
    return block.view(values.dtype).reshape(values.shape)


def whole(block: np.ndarray) -> Range:
    """The range of an array that outlives the list it is recorded in."""
    access = ALL if block.flags.writeable else int(MemoryAccess.READ)
    return DIRECT, address_of(block), block.nbytes, access


def forget_costs() -> None:
    """Sets the averages of what the functions cost to unknown."""
    for ordinal in range(len(NAMES)):
        ctypes.c_int64.from_address(
            executable().entry_point(ordinal) + layout_of(KernelEntry)["cost"]
        ).value = 0


def dispatch(
    commands: CommandList,
    function: int,
    counts: tuple[int, int, int],
    constants: list[int],
    *blocks: np.ndarray,
) -> None:
    commands.dispatch(executable(), function, counts, constants, [whole(block) for block in blocks])
