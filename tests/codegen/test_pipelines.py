"""What pipelines say of machine code is done, for that unit alone."""

from __future__ import annotations

import re

import pytest

from jitree.codegen.image import compile as compiling
from jitree.codegen.image.compile import Target, compile_object, host_target, optimized_module, target_of
from jitree.codegen.image.generated import PLAIN, PROGRAM, STRAIGHT, TIDYING

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


_ADDRESSED = """
define i64 @clear(ptr %base, i64 %number, i1 %which) {
entry:
  %place = getelementptr i64, ptr %base, i64 %number
  br i1 %which, label %one, label %other
one:
  %x = load i64, ptr %place
  ret i64 %x
other:
  ret i64 0
}
"""
_SQUARES = "\n".join((
    "define void @clear(ptr noalias %base, ptr noalias %other) {",
    *(f"%p{n} = getelementptr i64, ptr %base, i64 {n}\n%x{n} = load i64, ptr %p{n}" for n in range(12)),
    *(f"%y{n} = mul i64 %x{n}, %x{n}" for n in range(12)),
    *(f"%q{n} = getelementptr i64, ptr %other, i64 {n}\nstore i64 %y{n}, ptr %q{n}" for n in range(12)),
    "ret void\n}\n",
))  # fmt: skip


_X86, _ARM = target_of("x86_64", "x86-64-v2"), target_of("aarch64", "generic")


@pytest.mark.parametrize(
    ("option", "text", "target"),
    [
        ("disable-lsr", _TEXT, _X86),
        ("disable-cgp", _ADDRESSED, _X86),
        ("enable-misched", _SQUARES, _ARM),
        ("disable-post-ra", _SQUARES, _ARM),
    ],
)
def test_what_is_left_out_is_each_units(
    option: str, text: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "TIDYING", {option: TIDYING[option]})
    as_it_is = PLAIN._replace(passes=("dead_code_elimination",))
    pipelines = as_it_is, as_it_is._replace(tidies=False), as_it_is
    whole, without, again = (compile_object([text], ["clear"], target, item) for item in pipelines)
    assert whole == again != without


def test_what_is_visible_to_others_is_made_internal() -> None:
    texts = [
        "@number = constant i64 1\ndefine i64 @run() {\n  ret i64 1\n}\n",
        "define void @other() noinline {\n  ret void\n}\n",
    ]
    module = optimized_module(texts, ["run"], host_target())
    assert [item.name for item in (*module.functions, *module.global_variables)] == ["run"]


_CALLED = """
define internal i64 @unused(i64 %x) {
  ret i64 %x
}
define i64 @doubled(i64 %x) alwaysinline {
  %place = alloca i64
  store i64 %x, ptr %place
  %unused = mul i64 %x, %x
  %read = load i64, ptr %place
  %sum = add i64 %read, %x
  ret i64 %sum
}
define i64 @run(i64 %x) {
  %made = call i64 @doubled(i64 %x)
  ret i64 %made
}
"""


def test_straight_code_is_inlined_and_simplified() -> None:
    module = optimized_module([_CALLED], ["run"], host_target(), STRAIGHT)
    defined = [function for function in module.functions if not function.is_declaration]
    assert [function.name for function in defined] == ["run"]
    instructions = [item.opcode for block in defined[0].blocks for item in block.instructions]
    assert instructions == ["shl", "ret"]


def test_straight_code_keeps_its_loops() -> None:
    module = optimized_module([_TEXT], ["clear"], host_target(), STRAIGHT)
    (function,) = module.functions
    assert sum(item.opcode == "store" for block in function.blocks for item in block.instructions) == 1
    assert "llvm.memset" not in str(module)


_KNOWN = """
define i64 @run(i64 %x) {
entry:
  %is.low = icmp ult i64 %x, 4
  br i1 %is.low, label %low, label %high
low:
  call void @one()
  br label %joined
high:
  call void @high()
  br label %joined
joined:
  %is.two = icmp eq i64 %x, 2
  br i1 %is.two, label %two, label %rest
two:
  call void @one()
  ret i64 1
rest:
  call void @other()
  ret i64 2
}
declare void @one()
declare void @other()
declare void @high()
"""


def test_straight_code_does_not_ask_what_follows_from_where_it_comes() -> None:
    (function,) = (
        item
        for item in optimized_module([_KNOWN], ["run"], host_target(), STRAIGHT).functions
        if not item.is_declaration
    )
    blocks = {block.name: [str(item).strip() for item in block.instructions] for block in function.blocks}
    (high,) = (lines for lines in blocks.values() if any("@high" in line for line in lines))
    assert not any(
        "icmp" in line for name in re.findall(r"label %([\w.]+)", high[-1]) for line in blocks[name]
    )


def test_llvm_makes_no_masks_for_the_rest_of_short_loops() -> None:
    """With AVX-512 it stores one lane of nine, of which it knows the mask, before it is narrowed: four bytes
    too many."""
    steps = "".join(f"%x{n} = xor i64 %v{n}, %a\n%v{n + 1} = mul i64 %v{n}, %x{n}\n" for n in range(8))
    text = f"""
define void @run(ptr %p, i64 %a) {{
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %next, %loop ]
  %v0 = add i64 %i, %a
  {steps}%narrow = trunc i64 %v8 to i32
  %at = getelementptr i32, ptr %p, i64 %i
  store i32 %narrow, ptr %at, align 1
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 9
  br i1 %more, label %loop, label %end
end:
  ret void
}}"""
    target = target_of("x86_64", "skylake-avx512")
    assert "masked" not in str(optimized_module([text], ["run"], target, PROGRAM))
