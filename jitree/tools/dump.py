"""Shows the contents of a module file: ``jitree dump``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from jitree.errors import InvalidArgumentError, NotFoundError, StatusError
from jitree.tools.dump_json import flatbuffer_json, metadata_lines
from jitree.tools.dump_summary import summary_lines
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.vmfb.archive import Archive, standard_input
from jitree.vmfb.disassemble import (
    Disassembler,
    OffsetColumn,
    function_symbol,
    hexadecimal_offsets,
    no_offsets,
)
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import FunctionRow, ModuleTables

_STANDARD_INPUT: Final = "-"

FLAGS: Final = flag_set("dump", "shows what a compiled module holds", "dump", positional="module")


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; raises StatusError for a file that cannot be read or a function that is not there.
    A damaged function body shows as far as it goes, and its error follows all output."""
    path = flags.text("module")
    if not path:
        print("Syntax: jitree dump [--output=...] module.vmfb", file=sys.stderr)
        return 1
    archive = Archive.open(standard_input(), "<stdin>") if path == _STANDARD_INPUT else Archive.open(path)
    if flags.text("output") == "flatbuffer-binary":
        sys.stdout.flush()
        sys.stdout.buffer.write(archive.flatbuffer)
        return 0
    if flags.text("output") == "flatbuffer-json":
        sys.stdout.writelines(flatbuffer_json(archive, pretty=flags.boolean("pretty")))
        return 0
    if flags.boolean("verify"):
        from jitree.tools.dump_summary import findings

        found = list(findings(archive))
        _print(found or [f"{archive.name}: nothing is wrong"])
        return int(bool(found))
    module = read_module(archive)
    _print(_native_lines(module, flags) if _asks_for_native(flags) else _lines(module, flags))
    return 0


def _asks_for_native(flags: ParsedFlags) -> bool:
    return any(flags.boolean(name) for name in ("tiers", "time", "llvm", "asm"))


def _native_lines(read: ModuleTables, flags: ParsedFlags) -> Iterator[str]:
    from jitree.dispatch.bytecode_module import BytecodeModule
    from jitree.tools import dump_code
    from jitree.vmfb.decode import decode_module

    module = BytecodeModule(read, decode_module(read))
    if flags.boolean("tiers"):
        yield from dump_code.tier_lines(module)
    if flags.boolean("time"):
        yield from dump_code.time_lines(module)
    renderers = [
        renderer
        for name, renderer in (("llvm", dump_code.llvm_lines), ("asm", dump_code.assembly_lines))
        if flags.boolean(name)
    ]
    if not renderers:
        return
    if not flags.text("function"):
        raise InvalidArgumentError("--llvm and --asm need --function=<name or ordinal>")
    yield from dump_code.code_lines(module, flags.text("function"), _answers_to, renderers)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")


def _lines(module: ModuleTables, flags: ParsedFlags) -> Iterator[str]:
    output = flags.text("output")
    if output == "executables":
        from jitree.tools.dump_executables import executable_lines

        yield from executable_lines(module)
        return
    if output == "locations":
        from jitree.tools.dump_executables import location_lines

        yield from location_lines(module)
        return
    if output == "summary":
        yield from summary_lines(module)
        return
    if output in ("all", "metadata"):
        yield from metadata_lines(module)
        yield ""
    if output == "all":
        yield ""
    if output in ("all", "disassembly"):
        selected = select_functions(module, flags.text("function"))
        column = hexadecimal_offsets if flags.boolean("bytecode_offsets") else no_offsets
        yield from disassembly_lines(module, selected, column)


def select_functions(module: ModuleTables, text: str) -> Sequence[FunctionRow]:
    """The functions of a name or ordinal; all of them for empty text. NOT_FOUND if there is none."""
    if not text:
        return module.functions
    found = [function for function in module.functions if _answers_to(module, function, text)]
    if not found:
        names = ", ".join(sorted(export.name for export in module.exports))
        raise NotFoundError(
            f"no function `{text}` in the module; it exports {names or 'nothing'} and has "
            f"{len(module.functions)} functions, which can be named by ordinal"
        )
    return tuple(found)


def _answers_to(module: ModuleTables, function: FunctionRow, text: str) -> bool:
    if text == str(function.ordinal) or text == function_symbol(module, function.ordinal):
        return True
    return any(export.name == text and export.ordinal == function.ordinal for export in module.exports)


def disassembly_lines(
    module: ModuleTables, functions: Sequence[FunctionRow], column: OffsetColumn = no_offsets
) -> Iterator[str]:
    """Declarations and the text of functions; the first damage found is raised after all of them."""
    yield f"vm.module @{module.name} version {module.version}"
    yield from (f"vm.type {name}" for name in module.types)
    for entry in module.imports:
        optional = "optional " if entry.optional else ""
        yield f'vm.import {optional}@{entry.full_name} cconv "{entry.cconv or ""}"'
    for index, segment in enumerate(module.rodata):
        yield f"vm.rodata[{index}] = {segment.data.hex().upper()}"
    disassembler = Disassembler(module)
    damage: StatusError | None = None
    for function in functions:
        yield ""
        try:
            yield from disassembler.function(function, column)
        except StatusError as error:
            damage = damage or error
    if damage is not None:
        raise damage
