"""What every module of native code begins with: the ways out to the interpreter, and memory for its buffers.

A function that leaves in the middle writes its registers to its frame and calls ``@leave``; native functions
further out then do the same with ``@suspend``. Afterwards memory looks as if the interpreter had run all the
time.
"""

from __future__ import annotations

from typing import Final

from jitree.dispatch.native.counting import METADATA, counting
from jitree.regs.layout import (
    ENTRY,
    FRAME,
    FUNCTION,
    IMPORT,
    LIBRARY_FUNCTIONS,
    MODULE,
    SCRATCH,
    SCRATCH_ALIGNMENT,
    SLOW_REFUSED,
    SLOW_STOP,
    STATE,
)

CONTEXT: Final = "ptr %state, ptr %frame, ptr %values, ptr %refs"
"""Of a function: the state block; where its frame record and registers are, should it leave."""

_ATTRIBUTES: Final = """\
@null.entry = internal constant [64 x i8] zeroinitializer, align 64
attributes #1 = { nounwind noinline cold "no-builtins" }
attributes #3 = { nounwind noinline "no-builtins" }
attributes #4 = { nounwind willreturn memory(none) }
"""
BYTES: Final = ", !tbaa !20"
"""Of accesses to the contents of buffers, which never overlap anything else that native code touches."""
GLOBALS: Final = ", !tbaa !21"
ENTRIES: Final = ", !tbaa !22"
"""Of fields of handle entries, counts aside."""
FRAMES: Final = ", !tbaa !24"
"""Of registers in memory."""
SLOTS: Final = ", !tbaa !26"
FIXED: Final = ", !invariant.load !0"
"""Of loads of what does not change as long as a function runs."""

_LEAVING: Final = """\
; Sets those ref registers to null whose bits are set.
define internal fastcc void @clear(ptr %refs, i64 %bits) #1 {{
entry:
  br label %more
more:
  %left = phi i64 [ %bits, %entry ], [ %fewer, %more ]
  %slot = call i64 @llvm.cttz.i64(i64 %left, i1 false)
  %place = getelementptr ptr, ptr %refs, i64 %slot
  store ptr null, ptr %place, align 8
  %less = sub i64 %left, 1
  %fewer = and i64 %left, %less
  %last = icmp eq i64 %fewer, 0
  br i1 %last, label %done, label %more
done:
  ret void
}}
declare i64 @llvm.cttz.i64(i64, i1)

; Fills the frame record of a function; returns the address of its module's words.
define internal fastcc ptr @materialise({context}, i64 %ordinal) #1 {{
  %module.at = getelementptr i8, ptr %state, i64 {state_module}
  %module = load ptr, ptr %module.at, align 8
  %functions.at = getelementptr i8, ptr %module, i64 {module_functions}
  %functions = load ptr, ptr %functions.at, align 8
  %function = getelementptr [{function_size} x i8], ptr %functions, i64 %ordinal
  %value.count.at = getelementptr i8, ptr %function, i64 {function_values}
  %value.count = load i32, ptr %value.count.at, align 4
  %ref.count.at = getelementptr i8, ptr %function, i64 {function_refs}
  %ref.count = load i32, ptr %ref.count.at, align 4
  %values.end = getelementptr i32, ptr %values, i32 %value.count
  %refs.end = getelementptr ptr, ptr %refs, i32 %ref.count
  %function.at = getelementptr i8, ptr %frame, i64 {frame_function}
  store ptr %function, ptr %function.at, align 8
  %values.at = getelementptr i8, ptr %frame, i64 {frame_values}
  store ptr %values, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %frame, i64 {frame_refs}
  store ptr %refs, ptr %refs.at, align 8
  %values.end.at = getelementptr i8, ptr %frame, i64 {frame_values_end}
  store ptr %values.end, ptr %values.end.at, align 8
  %refs.end.at = getelementptr i8, ptr %frame, i64 {frame_refs_end}
  store ptr %refs.end, ptr %refs.end.at, align 8
  %code.at = getelementptr i8, ptr %module, i64 {module_code}
  %code = load ptr, ptr %code.at, align 8
  ret ptr %code
}}

; The interpreter is to go on at word %pc of this function; its registers are in memory already. %fuel is what
; it may spend; 0: the machine has to stop.
define internal fastcc void @leave({context}, i64 %ordinal, i64 %pc, i64 %fuel) #1 {{
  %code = call fastcc ptr @materialise({arguments}, i64 %ordinal)
  %place = getelementptr i32, ptr %code, i64 %pc
  %pc.at = getelementptr i8, ptr %state, i64 {state_pc}
  store ptr %place, ptr %pc.at, align 8
  %values.at = getelementptr i8, ptr %state, i64 {state_values}
  store ptr %values, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {state_refs}
  store ptr %refs, ptr %refs.at, align 8
  %frame.at = getelementptr i8, ptr %state, i64 {state_frame}
  store ptr %frame, ptr %frame.at, align 8
  %fuel.at = getelementptr i8, ptr %state, i64 {state_fuel}
  store i64 %fuel, ptr %fuel.at, align 8
  ret void
}}

; A function that this one has called has left: this one goes on at word %pc when that returns, and takes its
; results by the list at word %results.
define internal fastcc void @suspend({context}, i64 %ordinal, i64 %pc, i64 %results) #1 {{
  %code = call fastcc ptr @materialise({arguments}, i64 %ordinal)
  %place = getelementptr i32, ptr %code, i64 %pc
  %pc.at = getelementptr i8, ptr %frame, i64 {frame_pc}
  store ptr %place, ptr %pc.at, align 8
  %list = getelementptr i32, ptr %code, i64 %results
  %results.at = getelementptr i8, ptr %frame, i64 {callee_results}
  store ptr %list, ptr %results.at, align 8
  ret void
}}

; The call of the host or of the interpreter is done: its frame is current again, behind the call.
define internal fastcc void @pop(ptr %state, ptr %frame) #3 {{
  %caller = getelementptr i8, ptr %frame, i64 -{frame_size}
  %frame.at = getelementptr i8, ptr %state, i64 {state_frame}
  store ptr %caller, ptr %frame.at, align 8
  %function.at = getelementptr i8, ptr %caller, i64 {frame_function}
  %function = load ptr, ptr %function.at, align 8
  %module.from = getelementptr i8, ptr %function, i64 {function_module}
  %module = load ptr, ptr %module.from, align 8
  %module.at = getelementptr i8, ptr %state, i64 {state_module}
  store ptr %module, ptr %module.at, align 8
  %pc.from = getelementptr i8, ptr %caller, i64 {frame_pc}
  %pc = load ptr, ptr %pc.from, align 8
  %pc.at = getelementptr i8, ptr %state, i64 {state_pc}
  store ptr %pc, ptr %pc.at, align 8
  %values.from = getelementptr i8, ptr %caller, i64 {frame_values}
  %values = load ptr, ptr %values.from, align 8
  %values.at = getelementptr i8, ptr %state, i64 {state_values}
  store ptr %values, ptr %values.at, align 8
  %refs.from = getelementptr i8, ptr %caller, i64 {frame_refs}
  %refs = load ptr, ptr %refs.from, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {state_refs}
  store ptr %refs, ptr %refs.at, align 8
  ret void
}}

; Whether a frame, value slots and ref registers that end here have room, and the processor's stack too.
define internal i1 @room(ptr %state, ptr %frame, ptr %values, ptr %refs) #2 {{
  %frames.at = getelementptr i8, ptr %state, i64 {state_frames_limit}
  %frames.limit = load ptr, ptr %frames.at, align 8, !invariant.load !0
  %frame.fits = icmp ule ptr %frame, %frames.limit
  %values.at = getelementptr i8, ptr %state, i64 {state_values_limit}
  %values.limit = load ptr, ptr %values.at, align 8, !invariant.load !0
  %values.fit = icmp ule ptr %values, %values.limit
  %refs.at = getelementptr i8, ptr %state, i64 {state_refs_limit}
  %refs.limit = load ptr, ptr %refs.at, align 8, !invariant.load !0
  %refs.fit = icmp ule ptr %refs, %refs.limit
  %both = and i1 %frame.fits, %values.fit
  %all = and i1 %both, %refs.fit
  ret i1 %all
}}

; Whether the processor's stack has room for another native function.
define internal i1 @deep.enough(ptr %state) #2 {{
  %here = call ptr @llvm.stacksave.p0()
  %limit.at = getelementptr i8, ptr %state, i64 {state_stack_limit}
  %limit = load ptr, ptr %limit.at, align 8, !tbaa !25
  %fits = icmp uge ptr %here, %limit
  ret i1 %fits
}}
declare ptr @llvm.stacksave.p0()
"""

ASK_PYTHON: Final = """\
; Has the instruction at word %pc executed by its plain handler, on the registers in memory, and says
; what came of it (SLOW_*). %import is the record of the import that
; is called, if any: functions of other modules are the interpreter's.
define internal fastcc i64 @slow({context}, i64 %ordinal, i64 %pc, ptr %import) #1 {{
  %calls = icmp ne ptr %import, null
  br i1 %calls, label %look, label %able
look:
  %function.at = getelementptr i8, ptr %import, i64 {import_function}
  %function = load ptr, ptr %function.at, align 8
  %across = icmp ne ptr %function, null
  br i1 %across, label %refused, label %able
able:
  %slow.at = getelementptr i8, ptr %state, i64 {state_slow}
  %slow = load ptr, ptr %slow.at, align 8
  %willing = icmp ne ptr %slow, null
  br i1 %willing, label %ask, label %refused
ask:
  call fastcc void @leave({arguments}, i64 %ordinal, i64 %pc, i64 1)
  %answer.at = getelementptr i8, ptr %state, i64 {state_answer}
  store i64 {slow_stop}, ptr %answer.at, align 8
  call void %slow(ptr %state)
  %answer = load i64, ptr %answer.at, align 8
  ret i64 %answer
refused:
  ret i64 {slow_refused}
}}
"""
"""How an instruction is executed that compiled code does not know."""
NEVER_ASK: Final = """\
; Nothing is executed elsewhere: the function leaves.
define internal fastcc i64 @slow({context}, i64 %ordinal, i64 %pc, ptr %import) #2 {{
  ret i64 {slow_refused}
}}
"""
"""For functions that must not call Python."""

_SCRATCH: Final = """\
; A zeroed buffer from the memory for buffers that die with their function; null if there is none.
define internal fastcc ptr @allocate(ptr %state, i64 %length) #3 {{
  %scratch.at = getelementptr i8, ptr %state, i64 {state_scratch}
  %scratch = load ptr, ptr %scratch.at, align 8
  %present = icmp ne ptr %scratch, null
  br i1 %present, label %look, label %refused
look:
  %free.at = getelementptr i8, ptr %scratch, i64 {free}
  %entry = load ptr, ptr %free.at, align 8
  %some = icmp ne ptr %entry, null
  %next.at = getelementptr i8, ptr %scratch, i64 {next}
  %next = load ptr, ptr %next.at, align 8
  %limit.at = getelementptr i8, ptr %scratch, i64 {limit}
  %limit = load ptr, ptr %limit.at, align 8
  %first = ptrtoint ptr %next to i64
  %last = ptrtoint ptr %limit to i64
  %distance = sub i64 %last, %first
  %room = and i64 %distance, {alignment_mask}
  %fits = icmp ule i64 %length, %room
  %able = and i1 %some, %fits
  br i1 %able, label %take, label %refused
take:
  %link.at = getelementptr i8, ptr %entry, i64 {link}
  %following = load ptr, ptr %link.at, align 8, !tbaa !27
  store ptr %following, ptr %free.at, align 8
  store ptr null, ptr %link.at, align 8, !tbaa !27
  %address.at = getelementptr i8, ptr %entry, i64 {address}
  store ptr %next, ptr %address.at, align 8
  %length.at = getelementptr i8, ptr %entry, i64 {length}
  store i64 %length, ptr %length.at, align 8
  %count.at = getelementptr i8, ptr %entry, i64 {count}
  store i32 1, ptr %count.at, align 4
  %padded = add i64 %length, {alignment_less_one}
  %rounded = and i64 %padded, {alignment_mask}
  %behind = getelementptr i8, ptr %next, i64 %rounded
  store ptr %behind, ptr %next.at, align 8
  %taken.at = getelementptr i8, ptr %scratch, i64 {taken}
  %taken = load i64, ptr %taken.at, align 8
  %more = add i64 %taken, 1
  store i64 %more, ptr %taken.at, align 8
  %library.at = getelementptr i8, ptr %state, i64 {state_math}
  %library = load ptr, ptr %library.at, align 8
  %memset.at = getelementptr i8, ptr %library, i64 {memset}
  %memset = load ptr, ptr %memset.at, align 8
  %zeroed = call ptr %memset(ptr %next, i32 0, i64 %length)
  ret ptr %entry
refused:
  ret ptr null
}}
"""


def prelude(slow: str = ASK_PYTHON) -> str:
    """The text; ``slow`` is ASK_PYTHON or NEVER_ASK."""
    arguments = CONTEXT
    leaving = (_LEAVING + slow).format(
        context=CONTEXT,
        arguments=arguments,
        slow_stop=SLOW_STOP,
        slow_refused=SLOW_REFUSED,
        frame_size=FRAME.size,
        function_size=FUNCTION.size,
        callee_results=FRAME.size + FRAME["results"],
        function_values=FUNCTION["value_count"],
        function_refs=FUNCTION["ref_count"],
        **{f"state_{name}": offset for name, offset in STATE.offsets.items()},
        **{f"frame_{name}": offset for name, offset in FRAME.offsets.items()},
        **{f"module_{name}": offset for name, offset in MODULE.offsets.items()},
        function_module=FUNCTION["module"],
        import_function=IMPORT["function"],
    )
    scratch = _SCRATCH.format(
        state_scratch=STATE["scratch"],
        state_math=STATE["math"],
        memset=8 * LIBRARY_FUNCTIONS.index("memset"),
        link=ENTRY["link"],
        address=ENTRY["address"],
        length=ENTRY["length"],
        count=ENTRY["count"],
        alignment_less_one=SCRATCH_ALIGNMENT - 1,
        alignment_mask=-SCRATCH_ALIGNMENT,
        **{name: SCRATCH[name] for name in ("free", "next", "limit", "taken")},
    )
    return "\n".join([METADATA, _ATTRIBUTES, counting(), leaving, scratch])
