"""Counting references in LLVM IR, for the loop and for compiled functions, and the metadata of both."""

from __future__ import annotations

from typing import Final

from jitree.regs.layout import COUNT_UNLIMITED, ENTRY, STATE

METADATA: Final = """\
attributes #0 = { nounwind "no-builtins" }
attributes #2 = { nounwind alwaysinline "no-builtins" }
!0 = !{}
!1 = !{!"branch_weights", i32 1, i32 4096}
!2 = !{!"branch_weights", i32 4096, i32 1}
!9 = !{!"jitree"}
!10 = !{!"bytes", !9, i64 0}
!11 = !{!"globals", !9, i64 0}
!12 = !{!"entry", !9, i64 0}
!13 = !{!"count", !9, i64 0}
!14 = !{!"frame", !9, i64 0}
!15 = !{!"state", !9, i64 0}
!16 = !{!"list slot", !9, i64 0}
!17 = !{!"link", !9, i64 0}
!20 = !{!10, !10, i64 0}
!21 = !{!11, !11, i64 0}
!22 = !{!12, !12, i64 0}
!23 = !{!13, !13, i64 0}
!24 = !{!14, !14, i64 0}
!25 = !{!15, !15, i64 0}
!26 = !{!16, !16, i64 0}
!27 = !{!17, !17, i64 0}
"""
"""Functions with attributes #0 are the usual ones, those with #2 are inlined. Behind !1 and !2 are branches
that are nearly never and nearly always taken, behind !20 and the next accesses that do not overlap others."""

_COUNTS: Final = """\
; Adds a reference; null is left alone.
define internal void @retain(ptr %entry) #2 {{
  %live = icmp ne ptr %entry, null
  br i1 %live, label %add, label %done
add:
  %count.at = getelementptr i8, ptr %entry, i64 {count}
  %count = load i32, ptr %count.at, align 4, !tbaa !23
  %counted = icmp slt i32 %count, {unlimited}
  br i1 %counted, label %store, label %done
store:
  %more = add i32 %count, 1
  store i32 %more, ptr %count.at, align 4, !tbaa !23
  br label %done
done:
  ret void
}}

; Drops a reference; the last one links the entry into the list of released entries.
define internal void @drop(ptr %entry, ptr %state) #2 {{
  %live = icmp ne ptr %entry, null
  br i1 %live, label %less, label %done
less:
  %count.at = getelementptr i8, ptr %entry, i64 {count}
  %count = load i32, ptr %count.at, align 4, !tbaa !23
  %counted = icmp slt i32 %count, {unlimited}
  br i1 %counted, label %store, label %done
store:
  %fewer = sub i32 %count, 1
  store i32 %fewer, ptr %count.at, align 4, !tbaa !23
  %last = icmp eq i32 %fewer, 0
  br i1 %last, label %free, label %done, !prof !1
free:
  %head.at = getelementptr i8, ptr %state, i64 {released}
  %head = load ptr, ptr %head.at, align 8, !tbaa !25
  %link.at = getelementptr i8, ptr %entry, i64 {link}
  store ptr %head, ptr %link.at, align 8, !tbaa !27
  store ptr %entry, ptr %head.at, align 8, !tbaa !25
  br label %done
done:
  ret void
}}
"""


def counting() -> str:
    """``@retain(entry)`` and ``@drop(entry, state)``, for both of which null is nothing."""
    return _COUNTS.format(
        count=ENTRY["count"], link=ENTRY["link"], released=STATE["released"], unlimited=COUNT_UNLIMITED
    )
