"""What a person asks first of a module file: which release, for which machine, with which parameters, and how
its functions look from Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from jitree.tools.dump_parameters import needed_parameters
from jitree.tools.dump_stub import stub_lines
from jitree.vmfb.module import RELEASES
from jitree.vmfb.schema import Dependency, Module

_HAL_RELEASES: Final[tuple[tuple[int, int, str], ...]] = (
    (0, 2, "20240129.785 to 20240724.964"),
    (3, 5, "20240828.999 to 3.3.0"),
    (6, 6, "3.4.0 to 3.11.0"),
    (7, 7, "3.12 to 3.13.0"),
)
"""(first, last minimum version of the hal module, IREE releases whose compilers demand it)."""

_FORMATS: Final = (
    "embedded-elf", "system-elf", "system-dylib", "system-dll", "system-wasm", "embedded-macho", "static",
    "vmvx-bytecode", "cuda-nvptx", "rocm-hsaco", "hip-hsaco", "amdgcn", "vulkan-spirv", "metal-metallib",
    "metal-msl", "webgpu-wgsl", "webgpu-spirv",
)  # fmt: skip
"""How the names of executable formats begin."""
_LONGEST_FORMAT: Final = 64


def summary_lines(module: Module) -> Iterator[str]:
    """The summary as text; the stub at its end is valid Python."""
    major, minor = module.bytecode_version
    yield f"Module:     {module.name}, version {module.version}"
    yield f"File:       {module.archive.name}, {len(module.archive.data)} bytes"
    yield f"Bytecode:   {major}.{minor} (IREE {RELEASES[major]})"
    for dependency in module.dependencies:
        need = "" if dependency.required else ", optional"
        yield f"Needs:      {dependency.name} >= {dependency.minimum_version}{_hal_release(dependency)}{need}"
    yield f"Targets:    {', '.join(executable_formats(module)) or 'none: no executables'}"
    yield from _parameter_lines(module)
    yield f"State:      {module.globals_size} bytes and {module.ref_global_count} refs of globals"
    yield f"Code:       {len(module.functions)} functions, {len(module.bytecode)} bytes"
    yield f"Constants:  {len(module.rodata)} segments, {sum(len(row.data) for row in module.rodata)} bytes"
    yield ""
    yield "# Python stub"
    yield from stub_lines(module)


def _hal_release(dependency: Dependency) -> str:
    if dependency.name != "hal":
        return ""
    for first, last, releases in _HAL_RELEASES:
        if first <= dependency.minimum_version <= last:
            return f" (IREE {releases})"
    return " (IREE after 3.13.0)"


def executable_formats(module: Module) -> list[str]:
    """Executable formats that the module names in its constants, in the order of their appearance."""
    found = []
    for segment in module.rodata:
        if segment.external or not 0 < len(segment.data) <= _LONGEST_FORMAT:
            continue
        text = bytes(segment.data).decode("latin-1")
        if text.startswith(_FORMATS) and text.isprintable() and text not in found:
            found.append(text)
    return found


def _parameter_lines(module: Module) -> Iterator[str]:
    scopes: dict[str | None, list[str]] = defaultdict(list)
    for parameter in needed_parameters(module):
        scopes[parameter.scope].append(f"{parameter.key} ({parameter.extent} bytes)")
    for scope, entries in scopes.items():
        label = f"scope '{scope}'" if scope is not None else "no scope"
        yield f"Parameters: {label}: {', '.join(dict.fromkeys(entries))}"
