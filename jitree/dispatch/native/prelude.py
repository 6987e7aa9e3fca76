"""Writes what every module of native code begins with.

It counts references, takes side exits, has memory for buffers (:mod:`jitree.regs.access`,
:mod:`jitree.dispatch.native.side_exits`) and metadata. What of it is not inlined is the same in all images:
they begin with a copy of one that is shipped (:data:`BASE`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jitree.codegen.image.flat import Recipe
from jitree.codegen.image.generated import STRAIGHT, Generated, Unit
from jitree.codegen.ir_text import ModuleText
from jitree.codegen.vector_math.ir import SHARED_ENTRIES, shared_texts
from jitree.dispatch.native import rows
from jitree.dispatch.native.rows import METADATA, Declare, declared, on_pointers
from jitree.regs.layout import STATE

CONTEXT: Final = "ptr %state, ptr %frame, ptr %values, ptr %refs"
"""Parameters of a function: the state block; where its frame record and registers are, for a side exit."""

_ATTRIBUTES: Final = """\
@null.entry = internal constant [64 x i8] zeroinitializer, align 64
attributes #1 = { nounwind noinline cold "no-builtins" }
attributes #3 = { nounwind noinline "no-builtins" }
attributes #4 = { nounwind willreturn memory(none) }
"""
BYTES: Final = ", !tbaa !20"
"""Marks accesses to contents of buffers, which never overlap anything else that native code touches."""
GLOBALS: Final = ", !tbaa !21"
ENTRIES: Final = ", !tbaa !22"
"""Marks accesses to fields of handle entries, counts aside."""
FRAMES: Final = ", !tbaa !24"
"""Marks accesses to registers in memory."""
SLOTS: Final = ", !tbaa !26"
FIXED: Final = ", !invariant.load !0"
"""Marks loads of what does not change as long as a function runs."""

_ROOM: Final = """\
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
"""

_KEEP: Final = """\
; A reference that others keep is written to the frame.
define fastcc void @vm.keep(ptr %reference) #1 {
  call void @vm.retain(ptr %reference)
  ret void
}
"""
BASE: Final = Recipe("base", "what native code calls", "jitree.dispatch.native.prelude:called", 0.5)
_INLINED: Final = ("retain", "drop")
_CALLED: Final = (
    "clear",
    "constants",
    "side_exit",
    "suspend",
    "pop",
    "allocate",
    "take",
    "refuel_function",
    "look",
    "slow",
)


def prelude(declare: Declare) -> str:
    """The text, with declarations of what :data:`BASE` has."""
    declare("declare ptr @llvm.stacksave.p0()")
    inlined = _defined(declare, _INLINED)
    room = _ROOM.format(**{f"state_{name}": offset for name, offset in STATE.offsets.items()})
    keep = "declare fastcc void @vm.keep(ptr) #1"
    return "\n".join([METADATA, _ATTRIBUTES, *inlined, *map(declared, _CALLED), room, keep])


def called() -> Generated:
    """The generator of :data:`BASE`."""
    module = ModuleText()
    inlined = _defined(module.declare, _INLINED)
    texts = [
        text.replace("define internal fastcc", "define fastcc") for text in _defined(module.declare, _CALLED)
    ]
    for text in shared_texts():
        module.define(text)
    text = "\n".join([METADATA, _ATTRIBUTES, module.text(), *inlined, *texts, _KEEP])
    names = (*(f"vm.{name}" for name in (*_CALLED, "keep")), *SHARED_ENTRIES)
    return Generated([Unit((text,), names, STRAIGHT)], names)


def _defined(declare: Declare, names: Iterable[str]) -> list[str]:
    return [f"{rows.function(declare, name)}\n{on_pointers(name)}" for name in names]
