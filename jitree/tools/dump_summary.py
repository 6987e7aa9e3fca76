"""What a person asks first of a module file: which release, for which machine, with which parameters, and how
its functions look from Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from jitree.modules.releases import origin, releases
from jitree.tools.dump_parameters import needed_parameters
from jitree.tools.dump_stub import stub_lines
from jitree.vmfb.module import RELEASES
from jitree.vmfb.schema import ModuleTables

_FORMATS: Final = (
    "embedded-elf", "system-elf", "system-dylib", "system-dll", "system-wasm", "embedded-macho", "static",
    "vmvx-bytecode", "cuda-nvptx", "rocm-hsaco", "hip-hsaco", "amdgcn", "vulkan-spirv", "metal-metallib",
    "metal-msl", "webgpu-wgsl", "webgpu-spirv",
)  # fmt: skip
"""How the names of executable formats begin."""
_LONGEST_FORMAT: Final = 64


def summary_lines(module: ModuleTables) -> Iterator[str]:
    """The summary as text; the stub at its end is valid Python."""
    major, minor = module.bytecode_version
    yield f"Module:     {module.name}, version {module.version}"
    yield f"File:       {module.archive.name}, {len(module.archive.data)} bytes"
    yield f"Bytecode:   {major}.{minor} (IREE {RELEASES[major]})"
    yield from _origin_lines(module)
    for dependency in module.dependencies:
        need = "" if dependency.required else ", optional"
        yield f"Needs:      {dependency.name} >= {dependency.minimum_version}{need}"
    yield f"Targets:    {', '.join(executable_formats(module)) or 'none: no executables'}"
    yield from _parameter_lines(module)
    yield f"State:      {module.globals_size} bytes and {module.ref_global_count} refs of globals"
    yield f"Code:       {len(module.functions)} functions, {len(module.bytecode)} bytes"
    yield f"Constants:  {len(module.rodata)} segments, {sum(len(row.data) for row in module.rodata)} bytes"
    yield ""
    yield "# Python stub"
    yield from stub_lines(module)


def _origin_lines(module: ModuleTables) -> Iterator[str]:
    """The releases that can have compiled it, by the imports; the versions that modules state do not tell."""
    found = origin(module)
    if found.families:
        yield f"HAL ABI:    {_span(found.families)}"
    if found.releases:
        yield f"Compiler:   IREE {_span(found.releases)}"
    else:
        yield f"Compiler:   none of IREE {_span([release.name for release in releases()])}"
    for name in found.unknown:
        yield f"Unknown:    {name}"


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def executable_formats(module: ModuleTables) -> list[str]:
    """Executable formats that the module names in its constants, in the order of their appearance."""
    found = []
    for segment in module.rodata:
        if segment.external or not 0 < len(segment.data) <= _LONGEST_FORMAT:
            continue
        text = bytes(segment.data).decode("latin-1")
        if text.startswith(_FORMATS) and text.isprintable() and text not in found:
            found.append(text)
    return found


def _parameter_lines(module: ModuleTables) -> Iterator[str]:
    scopes: dict[str | None, list[str]] = defaultdict(list)
    for parameter in needed_parameters(module):
        scopes[parameter.scope].append(f"{parameter.key} ({parameter.extent} bytes)")
    for scope, entries in scopes.items():
        label = f"scope '{scope}'" if scope is not None else "no scope"
        yield f"Parameters: {label}: {', '.join(dict.fromkeys(entries))}"
