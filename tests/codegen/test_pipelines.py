"""What pipelines say of machine code is done, for that unit alone."""

from __future__ import annotations

from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.generated import PLAIN

_TEXT = """
define void @clear(ptr %base, i64 %count, i64 %stride) {
entry:
  br label %head
head:
  %number = phi i64 [ 0, %entry ], [ %next, %head ]
  %offset = mul i64 %number, %stride
  %place = getelementptr i8, ptr %base, i64 %offset
  store i8 0, ptr %place
  %next = add i64 %number, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %head, label %done
done:
  ret void
}
"""


def test_strength_reduction_is_each_units() -> None:
    pipelines = (PLAIN, PLAIN._replace(strength_reduction=False), PLAIN)
    reduced, kept, again = (compile_object([_TEXT], ["clear"], host_target(), item) for item in pipelines)
    assert reduced == again != kept
