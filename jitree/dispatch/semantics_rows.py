"""What each instruction is as a few of LLVM's: rows, made of what Numba makes of the semantics functions.

Compiled functions are written with them, without numba: they are kept with the loop's image, as its notes.
"""

from __future__ import annotations

import json
import re
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.dispatch.fast import LOOP
from jitree.dispatch.native.counting import ALIASES, LIKELY, UNLIKELY

if TYPE_CHECKING:
    from collections.abc import Mapping


class Row(NamedTuple):
    """An instruction. Its operands are ``%a0``, ``%a1`` …"""

    lines: list[str]
    """LLVM's instructions, each ``%0``, ``%1`` … in the order of the list, each a :data:`STEP` or a
    :data:`CALL`; none where ``text`` is given."""
    result: str
    """An operand, one of those, or a constant."""
    condition: str
    """The i1 whose i32 is the result of a comparison."""
    text: str = ""
    """The definition of :func:`symbol`, where there is more than one block, or other instructions."""


_TYPE: Final = r"(?:i\d+|half|bfloat|float|double)"
_VALUE: Final = r"[-+%\w.]+"
STEP: Final = re.compile(
    rf"([a-z]+(?: [a-z]+)*) ({_TYPE} {_VALUE}(?:, (?:{_TYPE} )?{_VALUE})*)(?: to ({_TYPE}))?"
)
"""An instruction that exists on vectors as on one value: name and flags, operands, target of a conversion."""
CALL: Final = re.compile(
    rf"call ({_TYPE}) @(llvm(?:\.[a-z]+)+)((?:\.[if]\d+)+)"
    rf"\(((?!i1 )({_TYPE}) {_VALUE}(?:, (?:\5|i1) {_VALUE})*)\)"
)
"""A call of LLVM's that exists so, too, of operands of one type and flags: result, name, types, operands."""
TARGET: Final = ("x86_64-unknown-linux-gnu", "x86-64", "")
"""Rows do not depend on the machine: nothing in them is decided by one."""
_TRUTH: Final = re.compile(r"zext(?: nneg)? i1 (%\S+) to i32")
_NAMES: Final = re.compile(r'%(?:"[^"]+"|[-\w.$]+)')
_LABEL: Final = re.compile(r'^("[^"]+"|[-\w.$]+):')
_UNSTABLE: Final = re.compile(r"\btail (?=call)|\bsamesign |\brange\([^)]*\) | #\d+$")
"""What texts of one LLVM have and others do not know."""
_METADATA: Final = re.compile(r", !(\w+) (!\d+)")


def symbol(mnemonic: str) -> str:
    return _quoted(f"semantics.{mnemonic}")


def _quoted(name: str) -> str:
    return f'@"{name}"'


def encode(texts: list[str], names: Mapping[str, str]) -> bytes:
    """The rows of functions, by name, from their IR; ``names`` are by symbol. Imports llvmlite."""
    from jitree.codegen.image.compile import Target, optimized_module

    module = optimized_module(texts, names, Target(*TARGET))
    metadata = metadata_of(module)
    rows = {
        names[function.name]: tuple(_row(function, metadata))
        for function in module.functions
        if function.name in names
    }
    return zlib.compress(json.dumps(rows).encode(), 9)


def metadata_of(module: Any) -> dict[str, str]:
    """The numbers that the metadata of a module has in others (:mod:`jitree.dispatch.native.counting`)."""
    nodes = dict(re.findall(r"^(!\d+) = !\{(.*)\}", str(module), re.MULTILINE))
    found = {}
    for number, text in nodes.items():
        accessed = nodes.get(text.partition(",")[0], "").partition(",")[0].strip('!"')
        if accessed in ALIASES:
            found[number] = ALIASES[accessed]
        if weights := re.fullmatch(r'!"branch_weights",(?: !"expected",)? i32 (\d+), i32 (\d+)', text):
            found[number] = UNLIKELY if int(weights[1]) < int(weights[2]) else LIKELY
    return found


def decode(notes: bytes) -> Mapping[str, Row]:
    """The rows by mnemonic."""
    return {mnemonic: Row(*fields) for mnemonic, fields in json.loads(zlib.decompress(notes)).items()}


@cache
def rows() -> Mapping[str, Row]:
    """Those of the loop's image; waits for it."""
    return decode(image.notes(LOOP))


def _row(function: Any, metadata: Mapping[str, str]) -> Row:
    blocks = list(function.blocks)
    *body, last = (_UNSTABLE.sub("", str(item).strip()) for item in blocks[0].instructions)
    names = {f"%{item.name}": f"%a{number}" for number, item in enumerate(function.arguments)}
    names |= {line.split(" = ")[0]: f"%{number}" for number, line in enumerate(body)}

    def renamed(text: str) -> str:
        return _NAMES.sub(lambda found: names[found[0]], text)

    if len(blocks) > 1 or not all(_is_elementwise(line) for line in body):
        return Row([], "", "", definition(function, metadata, "define internal", "alwaysinline nounwind"))
    lines = [renamed(line.split(" = ", 1)[1]) for line in body]
    result = renamed(last.split()[-1])
    made = _TRUTH.fullmatch(lines[-1]) if lines and result == f"%{len(lines) - 1}" else None
    return Row(lines, result, made[1] if made else "")


def _is_elementwise(line: str) -> bool:
    text = _NAMES.sub("%0", line.partition(" = ")[2])
    return bool(STEP.fullmatch(text) or CALL.fullmatch(text))


def declaration(function: Any) -> str:
    """As text that any module may contain."""
    text = next(line for line in str(function).splitlines() if line.startswith("declare "))
    return text[: text.rindex(")") + 1]


def definition(function: Any, metadata: Mapping[str, str], begin: str, attributes: str) -> str:
    """The same of what is not only declared."""

    def known(found: re.Match[str]) -> str:
        return f", !{found[1]} {metadata[found[2]]}" if found[2] in metadata else ""

    first, *lines = (
        _METADATA.sub(known, _UNSTABLE.sub("", line.partition(";")[0].rstrip()))
        for line in str(function).splitlines()
        if not line.startswith(";")
    )
    result, _, rest = first.removeprefix("define ").partition(" @")
    arguments = rest[rest.index("(") : rest.index(")") + 1]
    name = _quoted(function.name)
    head = f"{begin} {result.split()[-1]} {name}{arguments} {attributes} {{"
    text = "\n".join([head, *(_LABEL.sub(r"%\1:", line) for line in lines if line)])
    names = {name: f"%v{number}" for number, name in enumerate(dict.fromkeys(_NAMES.findall(text)))}
    return _NAMES.sub(lambda found: names[found[0]], text).replace("\n%v", "\nv")
