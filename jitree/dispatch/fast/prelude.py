"""The hand-written part of the loop's IR: entry and leaving."""

from __future__ import annotations

from typing import Final

from jitree.base.stop_word import NEVER
from jitree.dispatch.fast.handler import PARAMETERS
from jitree.dispatch.native.counting import declaration, on_pointers
from jitree.regs.access import CALLED
from jitree.regs.fuel import CLOCK, STOP
from jitree.regs.layout import EXIT_FINISHED, EXIT_OUT_OF_FUEL, EXIT_SIDE, EXIT_STOPPED, STATE

_COUNTING: Final = ("retain", "drop", "put", "move")
_ACCESS: Final = tuple(function.__name__ for function in CALLED)

ATTRIBUTES: Final = """\
attributes #1 = { nounwind noinline "no-builtins" }
"""

_RETURN: Final = """\
; Leaves the loop: {why}.
define internal preserve_nonecc i64 @{name}({parameters}) #1 {{
  %pc.at = getelementptr i8, ptr %state, i64 {pc}
  store ptr %pc, ptr %pc.at, align 8
  %values.at = getelementptr i8, ptr %state, i64 {values}
  store ptr %values, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {refs}
  store ptr %refs, ptr %refs.at, align 8
  %fuel.at = getelementptr i8, ptr %state, i64 {fuel}
  store i64 %fuel, ptr %fuel.at, align 8
  %status.at = getelementptr i8, ptr %state, i64 {status}
  store i64 {left}, ptr %status.at, align 8
  ret i64 {left}
}}
"""

_EXIT: Final = """\
; Leaves the loop: the call of the host is complete. What machine code made and nothing refers to goes first.
define internal preserve_nonecc i64 @exit({parameters}) #1 {{
  %released.at = getelementptr i8, ptr %state, i64 {released}
  %released = load ptr, ptr %released.at, align 8
  %sweep.at = getelementptr i8, ptr %state, i64 {sweep}
  %sweep = load ptr, ptr %sweep.at, align 8
  %some = icmp ne ptr %released, null
  %able = icmp ne ptr %sweep, null
  %both = and i1 %some, %able
  br i1 %both, label %free, label %leave
free:
  call void %sweep(ptr %state)
  br label %leave
leave:
  %left = call preserve_nonecc i64 @finish({arguments})
  ret i64 %left
}}
"""

_REFUEL: Final = """\
; The fuel is used up, and nothing of this instruction has happened: it begins again with more, in its time.
define internal preserve_nonecc i64 @out_of_fuel({parameters}) #1 {{
  %more = call fastcc i64 @vm.refuel(ptr %state)
  %over = icmp eq i64 %more, 0
  br i1 %over, label %leave, label %go
leave:
  %left = musttail call preserve_nonecc i64 @out_of_time({arguments})
  ret i64 %left
go:
  %spendable = add i64 %more, 1
  %opcode = load i32, ptr %pc, align 4
  %index = zext i32 %opcode to i64
  %slot = getelementptr ptr, ptr %table, i64 %index
  %handler = load ptr, ptr %slot, align 8
  %done = musttail call preserve_nonecc i64 %handler({again})
  ret i64 %done
}}
"""

_RUN: Final = """\
; Runs from where the state block says until the loop must return; the result says why (EXIT_*). If a thread
; has rung, or a deadline has passed, the first branch looks: what Python has done since may have taken long.
define i64 @loop(ptr %state) #0 {{
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  %stack.at = getelementptr i8, ptr %state, i64 {stack}
  %stack = load i64, ptr %stack.at, align 8
  %room = sub i64 0, %stack
  %limit = getelementptr i8, ptr %here, i64 %room
  %limit.at = getelementptr i8, ptr %state, i64 {stack_limit}
  store ptr %limit, ptr %limit.at, align 8
  %fuel.at = getelementptr i8, ptr %state, i64 {fuel}
  %left.before = load i64, ptr %fuel.at, align 8
  %math.at = getelementptr i8, ptr %state, i64 {math}
  %math = load ptr, ptr %math.at, align 8
  %word.place = getelementptr i8, ptr %math, i64 {stop}
  %word.at = load ptr, ptr %word.place, align 8
  %word = load i64, ptr %word.at, align 8
  %attended.at = getelementptr i8, ptr %state, i64 {attended}
  %attended = load i64, ptr %attended.at, align 8
  %rung = icmp ne i64 %word, %attended
  %limited = icmp slt i64 %word, {never}
  br i1 %limited, label %timed, label %begin
timed:
  %clock.place = getelementptr i8, ptr %math, i64 {clock}
  %clock = load ptr, ptr %clock.place, align 8
  %now = call i64 %clock()
  %passed = icmp sge i64 %now, %word
  br label %begin
begin:
  %late = phi i1 [ false, %0 ], [ %passed, %timed ]
  %looks = or i1 %rung, %late
  %fuel = select i1 %looks, i64 1, i64 %left.before
  %resume.at = getelementptr i8, ptr %state, i64 {resume}
  %resume = load ptr, ptr %resume.at, align 8
  %compiled = icmp ne ptr %resume, null
  br i1 %compiled, label %first, label %go
first:
  store ptr null, ptr %resume.at, align 8
  %frame.at = getelementptr i8, ptr %state, i64 {frame}
  %frame = load ptr, ptr %frame.at, align 8
  %remaining = call i64 %resume(ptr %state, ptr %frame, i64 %fuel)
  %stopped = icmp eq i64 %remaining, 0
  br i1 %stopped, label %stop, label %go
stop:
  %status.at = getelementptr i8, ptr %state, i64 {status}
  store i64 {exit_stopped}, ptr %status.at, align 8
  ret i64 {exit_stopped}
go:
  %spendable = phi i64 [ %fuel, %begin ], [ %remaining, %first ]
  %pc.at = getelementptr i8, ptr %state, i64 {pc}
  %pc = load ptr, ptr %pc.at, align 8
  %values.at = getelementptr i8, ptr %state, i64 {values}
  %values = load ptr, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {refs}
  %refs = load ptr, ptr %refs.at, align 8
  %opcode = load i32, ptr %pc, align 4
  %index = zext i32 %opcode to i64
  %slot = getelementptr ptr, ptr @handlers, i64 %index
  %handler = load ptr, ptr %slot, align 8
  %left = call preserve_nonecc i64 %handler(ptr %pc, ptr %values, ptr %refs, ptr %state, ptr @handlers, \
i64 %spendable)
  ret i64 %left
}}
declare ptr @llvm.frameaddress.p0(i32)
"""


def _returning(name: str, why: str, left: int) -> str:
    return _RETURN.format(name=name, why=why, left=left, parameters=PARAMETERS, **STATE.offsets)


def prelude() -> str:
    """Everything but the handlers and their table."""
    parts = [
        _RUN.format(exit_stopped=EXIT_STOPPED, stop=STOP, never=NEVER, clock=CLOCK, **STATE.offsets),
        _returning("side_exit", "nothing of this instruction has happened", EXIT_SIDE),
        _returning("out_of_time", "the time is over", EXIT_OUT_OF_FUEL),
        _REFUEL.format(
            parameters=PARAMETERS, arguments=PARAMETERS, again=PARAMETERS.replace("%fuel", "%spendable")
        ),
        _returning("finish", "the call of the host is complete", EXIT_FINISHED),
        _EXIT.format(parameters=PARAMETERS, arguments=PARAMETERS, **STATE.offsets),
        *(declaration(name) + on_pointers(name) for name in (*_COUNTING, *_ACCESS, "refuel")),
    ]
    return "\n".join(parts)
