"""Writes arithmetic into functions, for one value or vectors. Each takes a few of LLVM's instructions.

These rows are what Numba and LLVM make of the semantics functions. They are kept with the loop's image, as
its notes, so that compiled functions are written without numba. What is a function there has a call here, for
the loop and compiled functions alike, and the metadata of both.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jitree.base.platform import processor
from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.codegen.ir_text import llvm_type
from jitree.dispatch.fast import LOOP
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs.layout import STATE
from jitree.vmfb.instructions import BY_MNEMONIC

if TYPE_CHECKING:
    from collections.abc import Mapping


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
"""Functions with attributes #0 are the usual ones, those with #2 are inlined. After !1 and !2 are branches
that are nearly never and nearly always taken, after !20 and the next accesses that do not overlap others."""

ALIASES: Final = {"entry": "!22", "count": "!23", "state": "!25", "list slot": "!26", "link": "!27"}
"""The metadata of what :mod:`jitree.regs.access` and :mod:`jitree.regs.access` name."""
UNLIKELY: Final = "!1"
LIKELY: Final = "!2"

_CALLS: Final = {
    "retain": ("ptr", "void i64", "#2"),
    "drop": ("ptr released", "void void", "#2"),
    "put": ("ptr ptr released", "void void", "#2"),
    "move": ("i32 i64 i64 ptr ptr ptr ptr released", "void void", "#2"),
    "clear": ("ptr i64", "void void", "#1"),
    "constants": ("ptr ptr i64", "void void", "#1"),
    "side_exit": ("ptr ptr ptr ptr i64 i64 i64", "void void", "#1"),
    "suspend": ("ptr ptr ptr ptr i64 i64 i64", "void void", "#1"),
    "pop": ("ptr ptr", "void void", "#3"),
    "slow": ("ptr ptr ptr ptr i64 i64 ptr", "i64 i64", "#1"),
    "allocate": ("ptr i64", "ptr i64", "#3"),
    "take": ("ptr i64", "ptr i64", "#3"),
    "refuel": ("ptr", "i64 i64", "#1"),
    "refuel_function": ("ptr", "i64 i64", "#1"),
    "packed": ("ptr ptr i64 i64", "i64 i64", "#3"),
    "look": ("ptr", "i1 i1", "#1"),
    "is_of": ("ptr i64", "i1 i1", "#2"),
    "list_made": ("ptr i64 i64", "ptr i64", "#2"),
    "list_holds": ("ptr i64", "i1 i1", "#2"),
    "list_grows": ("ptr i64", "i1 i1", "#2"),
    "has_element": ("ptr i64", "i1 i1", "#2"),
    "slot_of": ("ptr i64", "ptr i64", "#2"),
    "list_reads": ("ptr i64", "i1 i1", "#2"),
    "list_takes": ("ptr ptr i64", "i1 i1", "#2"),
    "list_reads_ref": ("ptr i64", "i1 i1", "#2"),
    "list_takes_ref": ("ptr ptr ptr", "i1 i1", "#2"),
    "buffer_fill": ("ptr ptr i64 i64 i64 i64 i64", "i1 i1", "#2"),
    "buffer_copy": ("ptr ptr i64 i64 ptr i64 i64 i64", "i1 i1", "#2"),
    "buffer_compare": ("ptr ptr i64 i64 ptr i64 i64 i64", "i64 i64", "#2"),
}
"""Parameters, result and the function's own result, attributes. ``released`` is the list of a state block."""
_CONVERSIONS: Final = {"ptr": "ptrtoint ptr", "i32": "zext i32", "i64": "add i64 0,"}


def declaration(name: str) -> str:
    parameters, results, _ = _CALLS[name]
    count = len(parameters.split())
    return f"declare {results.split()[1]} @{name}({', '.join(['i64'] * count)})\n"


def call(name: str, arguments: Sequence[str]) -> str:
    """A call of :func:`on_pointers`, of what is inlined."""
    kinds, results, _ = _CALLS[name]
    typed = (
        f"{'ptr' if kind == 'released' else kind} {argument}"
        for kind, argument in zip(kinds.split(), arguments, strict=True)
    )
    return f"call {results.split()[0]} @vm.{name}({', '.join(typed)})"


def declared(name: str) -> str:
    """The declaration of :func:`on_pointers`, of what another unit has and does not inline."""
    kinds, results, attributes = _CALLS[name]
    return f"declare fastcc {results.split()[0]} @vm.{name}({', '.join(kinds.split())}) {attributes}"


def on_pointers(name: str) -> str:
    """``@vm.<name>``, of pointers: calls a function of :mod:`jitree.regs.access`, :mod:`jitree.regs.access`
    or :mod:`jitree.dispatch.native.side_exits`, to which addresses are integers."""
    kinds, results, attributes = _CALLS[name]
    result, made = results.split()
    parameters, lines, passed = [], [], []
    for number, kind in enumerate(kinds.split()):
        operand = f"%a{number}"
        parameters.append(f"{'ptr' if kind == 'released' else kind} {operand}")
        if kind == "released":
            lines.append(f"  %list = getelementptr i8, ptr {operand}, i64 {STATE['released']}")
            kind, operand = "ptr", "%list"
        lines.append(f"  %b{number} = {_CONVERSIONS[kind]} {operand}{'' if kind == 'i64' else ' to i64'}")
        passed.append(f"i64 %b{number}")
    lines.append(f"  {'' if made == 'void' else '%made = '}call {made} @{name}({', '.join(passed)})")
    if result == "ptr":
        lines.append("  %place = inttoptr i64 %made to ptr")
    lines.append(
        "  ret ptr %place"
        if result == "ptr"
        else "  ret void"
        if result == "void"
        else f"  ret {result} %made"
    )
    convention = "" if attributes == "#2" else "fastcc "  # nothing is left of what is inlined
    head = f"define internal {convention}{result} @vm.{name}({', '.join(parameters)}) {attributes} {{"
    return "\n".join([head, *lines, "}"])


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
    """The numbers that the metadata of a module has in others (:mod:`jitree.dispatch.native.rows`)."""
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


def definition(function: Any, metadata: Mapping[str, str], begin: str, attributes: str) -> str:
    """The text of a function, as any module may contain it."""

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


Let = Callable[[str], str]
"""Adds an instruction and returns the name of its result."""
Declare = Callable[[str], None]
"""Adds a line outside of functions."""

_FUSED: Final = "fma.f32.fused"
"""Its row has steps for processors that cannot do it at once."""
_EXTREMES: Final = ("min.f32", "max.f32", "min.f64", "max.f64")
"""In their rows nothing flushes: x86-64 has an instruction of what they compare and choose."""
_PLACEHOLDER: Final = re.compile(r"%(a?)(\d+)")
_ARGUMENTS: Final = tuple(f"a{number}" for number in range(16))
_DECLARED: Final = re.compile(r".*call (.+?) (@llvm[\w.]+)\((.*)\)")
_OVER_BITS: Final = ("abs", "bitcast", "select")
"""Instructions on bits of floats of which LLVM may know all: what it makes of them changes none."""


def condition(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str]) -> str | None:
    """The i1 of a comparison; None for other instructions. References are compared elsewhere."""
    row = rows().get(mnemonic)
    if row is None or not row.condition:
        return None
    arguments = _stated(let, declare, mnemonic, arguments, 1)
    return _template(row.condition, 1).text.format_map(_expanded(let, declare, row.lines[:-1], arguments, 1))


def result(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str], lanes: int) -> str:
    """The result of an instruction."""
    semantic, row = SEMANTICS[mnemonic], rows()[mnemonic]
    arguments = _stated(let, declare, mnemonic, arguments, lanes)
    if mnemonic == _FUSED and processor.fuses():
        lines = ["call float @llvm.fma.f32(float %a0, float %a1, float %a2)"]
        made = _expanded(let, declare, lines, arguments, lanes)["r0"]
    elif row.text:
        assert lanes == 1, f"{mnemonic} is not elementwise"
        made = _called(let, declare, mnemonic, arguments)
    else:
        names = _expanded(let, declare, row.lines, arguments, lanes)
        made = _template(row.result, 1).text.format_map(names)
    if mnemonic in _EXTREMES and processor.machine() == "aarch64":
        kind = llvm_type(semantic.result_type, 1)
        line = f"call {kind} @llvm.canonicalize.{semantic.result_type}({kind} %a0)"
        made = _expanded(let, declare, [line], [made], lanes)["r0"]
    given = _kinds(mnemonic)[-1]
    if given == semantic.result_type:
        return made
    made = _as_bits(let, semantic.result_type, given, lanes, made)
    return made if mnemonic.startswith(_OVER_BITS) else fenced(let, declare, given, lanes, made)


def _stated(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str], lanes: int) -> Sequence[str]:
    """Converts arguments of a row to those of the semantics function. That one may look at the bits of
    floats."""
    kinds = _kinds(mnemonic)
    if mnemonic.startswith("select.f"):
        fences = (fenced(let, declare, kinds[-1], lanes, value) for value in arguments[1:])
        arguments = [arguments[0], *fences]
    stated = SEMANTICS[mnemonic].argument_types
    if kinds[: len(stated)] == stated:
        return arguments
    return [
        _as_bits(let, kind, wanted, lanes, argument)
        for kind, wanted, argument in zip(kinds, stated, arguments, strict=False)
    ]


@cache
def _kinds(mnemonic: str) -> tuple[str, ...]:
    """The types of operands, as the instruction table has them."""
    return tuple(operand.kind.removeprefix("r.") for operand in BY_MNEMONIC[mnemonic].operands)


def function(declare: Declare, name: str) -> str:
    """The definition of what is a separate function; declares what that calls."""
    text = rows()[name].text
    for declaration in _declarations(name):
        declare(declaration)
    return text


@cache
def _declarations(name: str) -> list[str]:
    return [called for line in rows()[name].text.splitlines() if (called := _declaration(line))]


processor.kept.extend((rows, _declarations))


def fenced(let: Let, declare: Declare, kind: str, lanes: int, value: str) -> str:
    """A float of which LLVM knows nothing. It would make a minimum of a choice between compared values, which
    flushes subnormal ones in kernels; fold negations into additions, and leave out multiplications by one,
    where a NaN would then have other bits."""
    wanted = llvm_type(kind, lanes)
    name = f"llvm.arithmetic.fence.{kind if lanes == 1 else f'v{lanes}{kind}'}"
    declare(f"declare {wanted} @{name}({wanted})")
    return let(f"call {wanted} @{name}({wanted} {value})")


def _as_bits(let: Let, kind: str, wanted: str, lanes: int, value: str) -> str:
    """A value as another type of its width."""
    if kind == wanted:
        return value
    return let(f"bitcast {llvm_type(kind, lanes)} {value} to {llvm_type(wanted, lanes)}")


def _called(let: Let, declare: Declare, mnemonic: str, arguments: Sequence[str]) -> str:
    """A call of what is a separate function."""
    declare(function(declare, mnemonic))
    semantic = SEMANTICS[mnemonic]
    typed = ", ".join(
        f"{llvm_type(kind, 1)} {argument}"
        for kind, argument in zip(semantic.argument_types, arguments, strict=True)
    )
    return let(f"call {llvm_type(semantic.result_type, 1)} {symbol(mnemonic)}({typed})")


def _expanded(
    let: Let, declare: Declare, lines: Sequence[str], arguments: Sequence[str], lanes: int
) -> dict[str, str]:
    """Adds instructions of a row; what its placeholders stand for."""
    names = dict(zip(_ARGUMENTS, arguments, strict=False))
    for number, line in enumerate(lines):
        text, declaration = _template(line, lanes)
        if declaration:
            declare(declaration)
        names[f"r{number}"] = let(text.format_map(names))
    return names


class _Template(NamedTuple):
    """An instruction of a row, with ``{a0}`` and ``{r0}`` for arguments and results; what it calls."""

    text: str
    declaration: str


@cache
def _template(line: str, lanes: int) -> _Template:
    text = _widened(line, lanes)
    escaped = text.replace("{", "{{").replace("}", "}}")
    named = _PLACEHOLDER.sub(lambda found: f"{{{found[1] or 'r'}{found[2]}}}", escaped)
    return _Template(named, _declaration(text))


@cache
def _declaration(line: str) -> str:
    """What an instruction calls."""
    found = _DECLARED.match(line)
    if found is None:
        return ""
    kinds = (re.match(r"<[^>]*>|\S+", part)[0] for part in found[3].split(", "))  # type: ignore[index]
    return f"declare {found[1]} {found[2]}({', '.join(kinds)})"


# -- vectors -------------------------------------------------------------------------------------------------


@cache
def _widened(line: str, lanes: int) -> str:
    """An instruction of a row, on vectors of so many lanes."""
    if lanes == 1:
        return line
    if found := CALL.fullmatch(line):
        kind, name, suffix, operands, _ = found.groups()
        suffix = suffix.replace(".", f".v{lanes}")
        return f"call {_vector(kind, lanes)} @{name}{suffix}({_operands(operands, lanes, flags='i1')})"
    found = STEP.fullmatch(line)
    assert found is not None, line
    operation, operands, target = found.groups()
    conversion = f" to {_vector(target, lanes)}" if target else ""
    return f"{operation} {_operands(operands, lanes, flags='')}{conversion}"


def _vector(kind: str, lanes: int) -> str:
    return f"<{lanes} x {kind}>"


def _operands(text: str, lanes: int, flags: str) -> str:
    """Operands, of which some have a type in front; those of the type ``flags`` stay what they are."""
    kind, made = "", []
    for part in text.split(", "):
        *stated, value = part.split()
        kind = stated[0] if stated else kind
        if kind == flags:
            made.append(part)
            continue
        wide = value if value.startswith("%") else f"splat ({kind} {value})"
        made.append(f"{_vector(kind, lanes)} {wide}" if stated else wide)
    return ", ".join(made)
