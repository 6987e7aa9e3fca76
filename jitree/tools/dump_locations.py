"""``jitree dump --output=locations``: where functions and dispatches come from, as far as the module says it.

Libraries of machine code are loaded for that, as a session does: what they say they give to a query. Those
for other processors only show their format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jitree.cuda import executable_format
from jitree.errors import StatusError
from jitree.loaders import fatelf
from jitree.loaders.embedded_elf import open_library
from jitree.loaders.environment import Environment
from jitree.loaders.library import NativeExecutable, query_library
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels
from jitree.loaders.vmvx.loader import kernel_places
from jitree.tools.dump_executables import ELF, is_executable
from jitree.vmfb.schema import ModuleTables

Named = Iterator[tuple[str, list[str]]]
"""Names of functions and their lines of the source."""


def location_lines(module: ModuleTables) -> Iterator[str]:
    """Functions of the program, then those of its executables; the first damage is raised after all."""
    debug, rows = module.debug, module.functions
    yield f"Functions of @{module.name}:"
    yield from _lines(
        (module.function_name(row.ordinal), debug.places(row.ordinal) if debug else []) for row in rows
    )
    damage: StatusError | None = None
    for index, segment in enumerate(module.rodata):
        if not is_executable(segment.data):
            continue
        yield f"Executable in .rodata[{index}]:"
        try:
            yield from _lines(_native(segment.data))
        except StatusError as error:
            yield f"  {error}"
            damage = damage or error
    for executable in vmvx_kernels.executables(module):
        names = [export.name for export in kernels(executable.module)]
        yield f"VMVX executable @{executable.name}:"
        yield from _lines((name, kernel_places(executable.module, row)) for row, name in enumerate(names))
    if damage is not None:
        raise damage


def _lines(functions: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    for name, places in functions:
        yield f"  {name}: {', '.join(places) or 'the module does not say'}"


def _native(data: memoryview) -> Named:
    if not fatelf.is_fatelf(data) and bytes(data[:4]) != ELF:
        for export in executable_format.read(data).exports:
            stages = [f"{place} ({stage})" for stage, place in export.stages.items()]
            yield export.name, [*([str(export.location)] if export.location else ()), *stages]
        return
    image, query = open_library(data)
    environment = Environment(())
    executable = NativeExecutable(query_library(image, query, environment.address), environment, image)
    for number in range(executable.function_count):
        yield executable.function_label(number), executable.places(number)
    for path, content in executable.source_files().items():
        yield path, [f"{len(content)} bytes of source in the executable"]
