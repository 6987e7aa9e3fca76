"""LLVM IR of the code around compiled kernels: loops over workgroups that call what the native tier has
lowered.

Only builders and tests import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen import functions, image
from jitree.codegen.frontend import compiled, signature_of
from jitree.codegen.image.generated import Generated, Unit
from jitree.dispatch.native.calls import Needs
from jitree.loaders.vmvx_images import SPANS
from jitree.loaders.vmvx_spans import run_span
from jitree.loaders.vmvx_workgroups import has_room, kernel, workgroups
from jitree.regs.layout import FRAME
from jitree.vmfb.words import BASE_OPCODE, OPCODE_NAMES

_CHANGES_LISTS: Final = ("list.set", "list.resize", "list.reserve", "list.swap")
"""Beginnings of mnemonics that could leave a worker context's list of bindings changed for the next span."""
_IDS: Final = ("x", "y", "z", "size_x", "size_y", "size_z", "count_x", "count_y", "count_z")


class Kernel(NamedTuple):
    """A kernel as its ``workgroups`` calls it."""

    ordinal: int
    """Of its function in the module."""
    symbol: str
    """Of the lowered function, in the same LLVM module."""
    needs: Needs
    """Room that it and its callees take on the machine's stacks."""


def texts(lowered: str, kernels: Sequence[Kernel]) -> list[str]:
    """The text of the lowered module, and a ``workgroups`` for each kernel."""
    template = image.wait(SPANS).notes.decode()
    bridges = [_bridges(kernel) for kernel in kernels]
    return ["\n".join([lowered, *bridges]), *(_named(template, kernel.ordinal) for kernel in kernels)]


def spans() -> Generated:
    """What all kernels have in common: the code that runs spans, and as notes the IR of ``workgroups``."""
    notes = compiled(workgroups, workgroups.__name__, signature_of(workgroups)).text.encode()
    return Generated([Unit(functions.texts([run_span]), SPANS.entries)], (), notes)


def list_changes(words: Sequence[int], starts: Sequence[int]) -> Iterator[str]:
    """Instructions of a module, whose words begin at ``starts``, that rule out
    worker contexts."""
    for start in starts:
        mnemonic = OPCODE_NAMES[BASE_OPCODE[words[start]]]
        if mnemonic.startswith(_CHANGES_LISTS):
            yield mnemonic


def _named(text: str, ordinal: int) -> str:
    """Each kernel has functions of its own."""
    for function in (workgroups, kernel, has_room):
        text = text.replace(f'@"{function.__name__}"', f'@"{function.__name__}.{ordinal}"')
    return text


def _bridges(own: Kernel) -> str:
    """``kernel`` and ``has_room`` of a kernel: the lowered function; its room."""
    ends = {"frame": FRAME.size * own.needs.frames, "values": own.needs.values, "refs": own.needs.refs}
    text = f"""
define i64 @"kernel"({_parameters(kernel)}) alwaysinline nounwind "no-builtins" {{
{_pointers("state", "frame", "values", "refs", "local", "constants", "bindings")}
{_lines("%{0}.i32 = trunc i64 %{0} to i32", _IDS)}
  call void @retain(ptr %local.ptr)
  call void @retain(ptr %constants.ptr)
  call void @retain(ptr %bindings.ptr)
  %outcome = call fastcc {{ i64 }} @{own.symbol}(
    ptr %state.ptr, ptr %frame.ptr, ptr %values.ptr, ptr %refs.ptr, i64 %fuel,
    ptr %local.ptr, ptr %constants.ptr, ptr %bindings.ptr, {", ".join(f"i32 %{name}.i32" for name in _IDS)}
  ) alwaysinline
  %left = extractvalue {{ i64 }} %outcome, 0
  ret i64 %left
}}
define i1 @"has_room"({_parameters(has_room)}) alwaysinline nounwind "no-builtins" {{
{_pointers("state", *ends)}
{_lines("%{0}.end = getelementptr i8, ptr %{0}.ptr, i64 {1}", ends.items())}
  %fits = call i1 @room(ptr %state.ptr, ptr %frame.end, ptr %values.end, ptr %refs.end)
  ret i1 %fits
}}
"""
    return _named(text, own.ordinal)


def _parameters(function: Callable[..., object]) -> str:
    names = function.__annotations__.keys() - {"return"}
    return ", ".join(f"i64 %{name}" for name in function.__annotations__ if name in names)


def _pointers(*names: str) -> str:
    return _lines("%{0}.ptr = inttoptr i64 %{0} to ptr", names)


def _lines(form: str, items: Iterable[str | tuple[str, int]]) -> str:
    return "\n".join("  " + form.format(*((item,) if isinstance(item, str) else item)) for item in items)
