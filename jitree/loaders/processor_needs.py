"""Tells what compiled code needs of the processor, and whether this one has it.

Compilers since August 2024 write what code is made for into the text of a ``vm.fail`` ("HAL device … not
found"). A feature that is stated there and missing here matters if an instruction of the code needs it: that
ends the process by SIGILL. Modules without the text are told by their code alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.records import NamedTuple, rows_of
from jitree.codegen.image.shipped import levels_here
from jitree.errors import StatusError
from jitree.loaders.code_scan import PADDING
from jitree.loaders.elf_file import MINIMUM_SIZE, ElfFile, Segment, bad_elf, read_elf
from jitree.loaders.elf_format import DT_RELA, DT_RELASZ, FATELF_MAGIC, PF_X, host_architecture, select_slice
from jitree.loaders.environment import host_cpu_data
from jitree.loaders.instruction_tables import features, needed

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.vmfb.schema import ModuleTables


_FORMATS: Final = (
    "embedded-elf", "system-elf", "system-dylib", "system-dll", "system-wasm", "embedded-macho", "static",
    "vmvx-bytecode", "cuda-nvptx", "rocm-hsaco", "hip-hsaco", "amdgcn", "vulkan-spirv", "metal-metallib",
    "metal-msl", "webgpu-wgsl", "webgpu-spirv",
)  # fmt: skip
"""How the names of executable formats begin."""
_LONGEST_FORMAT: Final = 64
_TARGET: Final = re.compile(
    rb'#hal\.executable\.target<"llvm-cpu", "([^"]+)", \{(?:cpu = "([^"]*)", )?cpu_features = "([^"]*)"'
)
"""In the text of a ``vm.fail``: the format, the processor and its features, as the compiler is told."""
_FIRST: Final = ("avx512f", "avx2", "avx", "sse4.2", "sve")
"""Features that a message names first: levels of processors differ by them."""
_AMBIGUOUS: Final = frozenset(("bmi",))
"""Features with an instruction that others read as an older one: compilers write tzcnt for that, too."""
_IMPLIED: Final = {"avx512": ("avx512f", "avx2", "avx"), "avx2": ("avx",), "fma": ("avx",), "f16c": ("avx",)}
"""By how a feature's name begins."""
_SHOWN: Final = 3
"""How many features a message names."""
_ELF_MAGIC: Final = b"\x7fELF"
_kept: Final[dict[tuple[tuple[int, ...] | None, frozenset[str]], frozenset[str]]] = {}
"""What was found in a file, by its state: a digest of code takes as long as reading it."""
_MOST_KEPT: Final = 1000
_TYPE: Final = 0xFFFFFFFF
_LAST: Final = (1 << 64) - 1
"""The part of a relocation's second word that is its type."""


class CompiledFor(NamedTuple):
    """What the compiler is told for one format of executables."""

    format: str
    cpu: str
    """Empty where it is told features alone."""
    features: frozenset[str]
    """LLVM's names of those that are on."""

    def lacks(self) -> str:
        """The features, of a target that has those which this processor lacks: the basic ones first."""
        names = sorted(self.features, key=lambda name: (name not in _FIRST, name))
        more = len(names) - _SHOWN
        return f"{', '.join(names[:_SHOWN])} and {more} more features" if more > 1 else ", ".join(names)

    def refusal(self) -> str:
        """Says why executables cannot run here, and the way out."""
        level, flag = next(iter(levels_here()), ""), "--iree-llvmcpu-target-cpu="
        of, here = (f"for {self.cpu} " if self.cpu else ""), (f" ({level})" if level else "")
        own = f"{flag}{level}, with " if level else ""
        return (
            f"cannot run on this processor: its executables of format '{self.format}' are compiled {of}with "
            f"{self.lacks()}, which this processor{here} does not have; compile it with {own}{flag}generic "
            "for all processors, or for vmvx, which jitree compiles where it runs"
        )


def executable_formats(module: ModuleTables) -> list[str]:
    """Names the executable formats in the module's constants, in order of their appearance."""
    found = []
    for segment in module.rodata:
        if segment.external or not 0 < len(segment.data) <= _LONGEST_FORMAT:
            continue
        text = bytes(segment.data).decode("latin-1")
        if text.startswith(_FORMATS) and text.isprintable() and text not in found:
            found.append(text)
    return found


def targets(module: ModuleTables) -> list[CompiledFor]:
    """What a module says that its executables are compiled for; nothing for modules that do not say."""
    found: dict[CompiledFor, None] = {}
    for match in _TARGET.finditer(module.bytecode):
        format, cpu, features = (str(part or b"", "ascii", "replace") for part in match.groups())
        found[CompiledFor(format, cpu, _with_implied(features.split(",")))] = None
    return list(found)


def _with_implied(features: list[str]) -> frozenset[str]:
    on = {name[1:] for name in features if name.startswith("+")}
    for prefix, implied in _IMPLIED.items():
        if any(name.startswith(prefix) for name in on):
            on.update(implied)
    return frozenset(on)


def need_of(module: ModuleTables, format: str) -> CompiledFor | None:
    """What executables of a module in a format need and this processor lacks; None if it can run them.

    Of several targets with one format a program takes the one that fits, so only what all need counts.
    """
    stated = [target for target in targets(module) if target.format == format]
    wanted = frozenset.intersection(*(target.features for target in stated)) if stated else unstated()
    found = used(module, wanted & host_cpu_data().lacking)
    if not found:
        return None
    cpus = {target.cpu for target in stated}
    return CompiledFor(format, cpus.pop() if len(cpus) == 1 else "", found)


def need_of_executable(data: memoryview, format: str) -> CompiledFor | None:
    """Tells by its code what an executable needs and this processor lacks."""
    found = _needed(data, unstated() & host_cpu_data().lacking)
    return CompiledFor(format, "", found) if found else None


@cache
def looked_for() -> tuple[str, ...]:
    """The features whose instructions are known on this machine, the older ones first."""
    architecture = host_architecture()
    known = {} if architecture is None else features(architecture.name)
    return tuple(name for name, row in known.items() if row.instructions)


@cache
def unstated() -> frozenset[str]:
    """Those that are looked for in code of which nothing is said."""
    return frozenset(looked_for()) - _AMBIGUOUS


def used(module: ModuleTables, wanted: frozenset[str]) -> frozenset[str]:
    """Finds those of the features that machine code among the constants has instructions of."""
    if not wanted:
        return wanted
    key = module.archive.state, wanted
    found = _kept.get(key)
    if found is None:
        found = frozenset[str]().union(*(_needed(library, wanted) for library in _libraries(module)))
        if module.archive.state is not None:
            if len(_kept) >= _MOST_KEPT:
                _kept.clear()
            _kept[key] = found
    return found


def _libraries(module: ModuleTables) -> Iterator[memoryview]:
    """The ELF files among the constants. Damaged modules have more than their bytes, one in the other: of
    these no more than that is looked through."""
    left = len(module.archive.data)
    for index in np.flatnonzero(module.rodata.lengths >= MINIMUM_SIZE).tolist():
        data = module.rodata[index].data
        if bytes(data[:4]) in (_ELF_MAGIC, FATELF_MAGIC):
            left -= len(data)
            if left < 0:
                return
            yield data


def _needed(data: memoryview, wanted: frozenset[str]) -> frozenset[str]:
    """As :func:`used`, of an executable. Damaged libraries are for loaders to refuse."""
    architecture = host_architecture()
    found = frozenset[str]()
    if architecture is None or bytes(data[:4]) not in (_ELF_MAGIC, FATELF_MAGIC):
        return found
    with suppress(StatusError):
        library = select_slice(data, architecture)
        file = read_elf(library, architecture)
        addresses = relocated(file, library)
        for load in file.loads:
            if load.flags & PF_X:
                starts = functions_in(addresses, load)
                found |= needed(_padded(library, load), starts, architecture.name, wanted - found)
    return found


def relocated(file: ElfFile, data: memoryview) -> npt.NDArray[np.uint64]:
    """What addresses in the library's tables point to, ascending."""
    layout, relative = file.architecture.word_size, file.architecture.relative
    whole = file.dynamic.memory_size // layout.dynamic.size * layout.dynamic.size
    listed = rows_of(layout.dynamic, _at(file, data, file.dynamic._replace(memory_size=whole)))
    entries = dict(takewhile(itemgetter(0), listed))  # to DT_NULL
    size = entries.get(DT_RELASZ, 0) // layout.rela_size * layout.rela_size
    table = _at(file, data, file.dynamic._replace(address=entries.get(DT_RELA, 0), memory_size=size))
    rows = np.frombuffer(table, np.uint64).reshape(-1, 3)
    return np.sort(rows[(rows[:, 1] & _TYPE) == relative, 2])


def functions_in(addresses: npt.NDArray[np.uint64], code: Segment) -> npt.NDArray[np.int64]:
    """Where functions begin in a segment, ascending: those of the addresses that are in it."""
    ends = np.array((code.address, min(code.address + code.file_size, _LAST)), np.uint64)
    first, last = np.searchsorted(addresses, ends)
    found: npt.NDArray[np.int64] = (addresses[first:last] - ends[0]).astype(np.int64)
    return found


def _padded(data: memoryview, code: Segment) -> memoryview:
    """A segment's bytes and what follows them; zeros where that is not enough."""
    size = code.file_size + PADDING
    found = data[code.offset : code.offset + size]
    return found if len(found) == size else memoryview(bytes(found).ljust(size, b"\0"))


def _at(file: ElfFile, data: memoryview, place: Segment) -> memoryview:
    """The bytes of the file at an address; FAILED_PRECONDITION for those that no segment is filled with."""
    load = file.load_with(place.address, place.memory_size, "a table")
    start = place.address - load.address
    if start + place.memory_size > load.file_size:
        raise bad_elf("a table is outside the file")
    return data[load.offset + start : load.offset + start + place.memory_size]
