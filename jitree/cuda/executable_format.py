"""Reads the flatbuffers of CUDA executables, both generations, into one description.

``CUDA`` (releases 20240129 to 20240724) holds one image and tables beside each other; ``CDA1`` (from
20240828) holds exports that name their module, and from 3.9.0 a header in front of the flatbuffer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from jitree.errors import InvalidArgumentError
from jitree.hal.pipeline_layout import SourceLocation
from jitree.vmfb.flatbuffer import FlatBuffer, Table

_LEGACY: Final = b"CUDA"
_CURRENT: Final = b"CDA1"
_HEADER: Final = struct.Struct("<4sIQ48x")
_HEADER_VERSION: Final = 0
_MAXIMUM_THREADS: Final = 1024
_MAXIMUM_DIMENSIONS: Final = (1024, 1024, 64)
"""Threads of a block on every architecture since compute capability 2."""
_MAXIMUM_SHARED_MEMORY: Final = 1 << 20
"""Bytes of a block; several times what any architecture has."""


@dataclass(frozen=True, slots=True)
class ExportDescription:
    """Describes one kernel. Counts are None when only the program's pipeline layout states them
    (``CUDA``)."""

    name: str
    module: int
    """Index of the image that has it."""
    block: tuple[int, int, int]
    """Threads in x, y, z."""
    shared_memory: int
    """Bytes of dynamic shared memory of a block."""
    constant_count: int | None
    binding_count: int | None
    location: SourceLocation | None
    stages: dict[str, SourceLocation]
    """Source location by compilation stage, of modules with debug information."""


@dataclass(frozen=True, slots=True)
class ExecutableDescription:
    images: tuple[bytes, ...]
    """PTX text without its terminator, or cubins."""
    exports: tuple[ExportDescription, ...]
    source_files: dict[str, bytes]
    """Contents of the sources that the executable carries, by path."""


def read(data: memoryview) -> ExecutableDescription:
    """Reads an executable. INVALID_ARGUMENT for data that is damaged or of another kind."""
    data = data.cast("B") if data.nbytes else memoryview(b"")
    identifier = bytes(data[4:8])
    if bytes(data[:4]) == _CURRENT:
        return _read_current(FlatBuffer(_content(data)))
    if identifier == _CURRENT:
        return _read_current(FlatBuffer(data))
    if identifier == _LEGACY:
        return _read_legacy(FlatBuffer(data))
    raise InvalidArgumentError(
        f"a CUDA executable of {len(data)} bytes begins with {bytes(data[:8])!r}; it must have the "
        "identifier "
        "'CUDA' or 'CDA1'. The module is damaged or of a release this version does not know"
    )


def _content(data: memoryview) -> memoryview:
    """The flatbuffer after the header of releases from 3.9.0 on."""
    if len(data) < _HEADER.size:
        raise InvalidArgumentError(f"a CUDA executable ends inside its header, after {len(data)} bytes")
    _, version, size = _HEADER.unpack_from(data)
    if version != _HEADER_VERSION:
        raise InvalidArgumentError(
            f"a CUDA executable has a header of version {version}; this version of jitree knows "
            f"{_HEADER_VERSION}. A newer compiler made the module"
        )
    if size > len(data) - _HEADER.size:
        raise InvalidArgumentError(
            f"a CUDA executable states {size} bytes of content but has {len(data) - _HEADER.size}"
        )
    return data[_HEADER.size : _HEADER.size + size]


def _read_current(buffer: FlatBuffer) -> ExecutableDescription:
    root = buffer.root(_CURRENT)
    images = tuple(_image(module, 0) for module in root.tables(1))
    exports = tuple(_current_export(export, len(images)) for export in root.tables(0))
    sources = {table.text(0) or "": bytes(table.content(1) or b"") for table in root.tables(2)}
    return ExecutableDescription(images, _checked(exports), sources)


def _current_export(table: Table, image_count: int) -> ExportDescription:
    module = table.uint32(0)
    name = table.text(1) or ""
    dimensions = table.field(2, 12)
    if not dimensions:
        raise InvalidArgumentError(f"kernel '{name}' of a CUDA executable states no block dimensions")
    if module >= image_count:
        raise InvalidArgumentError(
            f"kernel '{name}' of a CUDA executable is in image {module}; there are {image_count}"
        )
    flags = bytes(table.content(5, 8) or b"")
    debug = table.table(6)
    return ExportDescription(
        name,
        module,
        _dimensions(table.buffer, dimensions),
        table.uint32(3),
        table.uint32(4),
        len(flags) // 8,
        None if debug is None else _location(debug.table(1)),
        {} if debug is None else _stages(debug),
    )


def _stages(debug: Table) -> dict[str, SourceLocation]:
    stages = {}
    for table in debug.tables(2):
        location = _location(table.table(1))
        if location is not None:
            stages[table.text(0) or ""] = location
    return stages


def _read_legacy(buffer: FlatBuffer) -> ExecutableDescription:
    root = buffer.root(_LEGACY)
    names = _texts(root, 0)
    blocks = root.vector(1, 12) or (0, 0)
    shared = root.vector(2, 4) or (0, 0)
    if not len(names) == blocks[1] == shared[1]:
        raise InvalidArgumentError(
            f"a CUDA executable states {len(names)} kernels, {blocks[1]} block sizes and {shared[1]} sizes "
            "of "
            "shared memory"
        )
    locations = root.tables(4)
    if locations and len(locations) != len(names):
        raise InvalidArgumentError(
            f"a CUDA executable states {len(names)} kernels and {len(locations)} source locations"
        )
    exports = tuple(
        ExportDescription(
            name,
            0,
            _dimensions(buffer, blocks[0] + 12 * index),
            buffer.uint32(shared[0] + 4 * index),
            None,
            None,
            _location(locations[index]) if locations else None,
            {},
        )
        for index, name in enumerate(names)
    )
    return ExecutableDescription((_image(root, 3),), _checked(exports), {})


def _texts(table: Table, slot: int) -> list[str]:
    start, count = table.vector(slot, 4) or (0, 0)
    return [table.buffer.text(at) for at in range(start, start + 4 * count, 4)]


def _image(table: Table, slot: int) -> bytes:
    content = table.content(slot)
    if content is None or not content.nbytes:
        raise InvalidArgumentError("a CUDA executable has no PTX image")
    image = bytes(content)
    return image if image.startswith(b"\x7fELF") else image.rstrip(b"\0")


def _dimensions(buffer: FlatBuffer, position: int) -> tuple[int, int, int]:
    return buffer.uint32(position), buffer.uint32(position + 4), buffer.uint32(position + 8)


def _location(table: Table | None) -> SourceLocation | None:
    return None if table is None else SourceLocation(table.text(0) or "", table.uint32(1))


def _checked(exports: tuple[ExportDescription, ...]) -> tuple[ExportDescription, ...]:
    """INVALID_ARGUMENT for a kernel that no device can launch."""
    for export in exports:
        x, y, z = export.block
        if not export.name or "\0" in export.name:
            raise InvalidArgumentError("a CUDA executable has a kernel without a proper name")
        if not 0 < x * y * z <= _MAXIMUM_THREADS or any(
            size > most for size, most in zip(export.block, _MAXIMUM_DIMENSIONS, strict=True)
        ):
            raise InvalidArgumentError(
                f"kernel '{export.name}' of a CUDA executable has blocks of {x} x {y} x {z} threads; a block "
                f"has 1 to {_MAXIMUM_THREADS}"
            )
        if export.shared_memory > _MAXIMUM_SHARED_MEMORY:
            raise InvalidArgumentError(
                f"kernel '{export.name}' of a CUDA executable wants {export.shared_memory} bytes of shared "
                "memory"
            )
    return exports
