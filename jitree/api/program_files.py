"""Finds the files of a program that travels, and tells what they hold.

Files are known by what is in them, found by their paths. What a module declares, and what functions assert
that declare nothing, is read without a session.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX, DeclaredTensor, Signature, signature_of
from jitree.base.records import NamedTuple
from jitree.codegen.image.flat import begin_digest
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    folded,
    pass_interruption,
)
from jitree.types import element_type
from jitree.vmfb.archive import Archive, Source, content, file_state
from jitree.vmfb.cconv import parse
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import Dependency, Import

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.variants import AssertedTensor
    from jitree.vmfb.decode import BytecodeModule

_STAMPED_SIZE: Final = 8 << 20
"""Smaller files are read again, which takes some milliseconds."""
_SETTLED_SECONDS: Final = 2.0
"""Since its last change: a second change within a tick of the file system's clock would not be seen."""
_WHOLE_SIZE: Final = 256 << 20
_SAMPLES: Final = 256
_SAMPLE_SIZE: Final = 1 << 20


class ProgramFile(NamedTuple):
    """A file, or bytes that are none."""

    digest: bytes
    size: int
    role: str
    """What a program makes of it: the scope of parameters, ``@create?key=value`` of a Python module."""
    path: str | None
    data: bytes | memoryview | None = None
    """What travels instead of the path."""
    stamp: tuple[int, ...] | None = None
    """By which the same file is known again on the same machine without reading it."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for the same contents, wherever they lie."""
        return self.digest, self.size, self.role

    def contents(self) -> memoryview:
        """The bytes, which are those that the program was made of. NOT_FOUND without the file,
        FAILED_PRECONDITION for other bytes."""
        if self.data is not None:
            return memoryview(self.data).toreadonly()
        assert self.path is not None
        try:
            data = content(self.path)
        except NotFoundError as error:
            raise error.with_context(
                "a program travels by the path of its files; put them there on each machine, or make the "
                "program with embed=True"
            ) from None
        is_sampled = self.role.startswith("=")
        if self.stamp is None or self.stamp != _stamp(self.path):
            found = digest_of(data, is_sampled)
            if found != self.digest:
                raise FailedPreconditionError(
                    f"'{self.path}' is not the file that the program was made of (digest "
                    f"{found.hex()[:16]}…, expected {self.digest.hex()[:16]}…); put the same file there, or "
                    "make the program again"
                )
        return data

    def state(self) -> tuple[int, ...] | None:
        """Numbers that change when the file at the path does."""
        return None if self.data is not None or self.path is None else file_state(self.path)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        data: Any = self.data
        if data is not None:  # protocol 5 may pass the bytes beside the pickle
            from pickle import PickleBuffer

            data = PickleBuffer(data) if int(protocol) >= 5 else bytes(data)
        return ProgramFile, (self.digest, self.size, self.role, self.path, data, self.stamp)


def packed(files: Sequence[ProgramFile]) -> bytes:
    """Files that travel by path, in few bytes: their folders and scopes are the same, where each rank of a
    sharded model has its archive."""
    import pickle
    import zlib

    return zlib.compress(pickle.dumps([tuple(file) for file in files], 4))


def unpacked(data: bytes) -> tuple[ProgramFile, ...]:
    import pickle
    import zlib

    return tuple(ProgramFile(*fields) for fields in pickle.loads(zlib.decompress(data)))


def require_file(path: str) -> None:
    """INVALID_ARGUMENT for what can be read once only, or without end: another process reads it again."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:  # reading it says why
        pass_interruption(error)
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InvalidArgumentError(
            f"'{path}' is no regular file, and other processes have to read it again; copy it to a file, or "
            "pass the bytes"
        )


def module_file(path: str, role: str = "", embed: bool = False) -> ProgramFile:
    """A module by its path."""
    stamp, data = _stamp(path), content(path)
    return ProgramFile(
        digest_of(data), data.nbytes, role, os.path.abspath(path), bytes(data) if embed else None, stamp
    )


def module_bytes(data: bytes | memoryview) -> ProgramFile:
    view = memoryview(data)
    return ProgramFile(digest_of(view), view.nbytes, "", None, data)


def parameter_file(scope: str, path: str) -> ProgramFile:
    """A parameter archive by its path; it never travels itself."""
    require_file(path)
    stamp, data = _stamp(path), content(path)
    return ProgramFile(
        digest_of(data, is_sampled=True), data.nbytes, f"={scope}", os.path.abspath(path), None, stamp
    )


def digest_of(data: memoryview, is_sampled: bool = False) -> bytes:
    """BLAKE2b, as ``b2sum -l 256`` prints it. Of archives beyond 256 MiB it is that of the size and
    of 256 parts: reading all would take longer than the first calls do."""
    state = begin_digest()
    if is_sampled and data.nbytes > _WHOLE_SIZE:
        state.update(data.nbytes.to_bytes(8, "little"))
        for number in range(_SAMPLES):
            start = (data.nbytes - _SAMPLE_SIZE) * number // (_SAMPLES - 1)
            state.update(data[start : start + _SAMPLE_SIZE])
    else:
        state.update(data)
    return state.digest()


def _stamp(path: str) -> tuple[int, ...] | None:
    """Numbers that change when a large file is written; None where that could be missed."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # reading it says why
        pass_interruption(error)
        return None
    if status.st_size < _STAMPED_SIZE or time.time() - status.st_ctime < _SETTLED_SECONDS:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """The tables of a module, function bodies aside. Made by :func:`jitree.inspect`.

    Its text lists name, version, size in bytes, what it needs, and declarations with types and shapes.

    >>> summary = jitree.inspect("examples/digits/digits.vmvx.vmfb")
    >>> summary.file_size, [needed.name for needed in summary.dependencies]
    (21454, ['hal'])
    """

    name: str
    """The name that the source has after ``module @``."""
    version: int
    """The version that the module states, 0 if none."""
    bytecode_version: tuple[int, int]
    """(major, minor)"""
    functions: dict[str, Signature]
    """Exported functions, ``__init`` and the like left out."""
    reflection: dict[str, dict[str, str]]
    """What the compiler attached to each of them."""
    dependencies: tuple[Dependency, ...]
    """Modules that it needs, with their minimum versions."""
    imports: tuple[Import, ...]
    """Functions that it imports, with their calling conventions."""
    file_size: int
    """Bytes."""
    fingerprint: str
    """The digest of the file, as ``b2sum -l 256`` prints it."""

    def __str__(self) -> str:
        needs = ", ".join(f"{item.name} >= {item.minimum_version}" for item in self.dependencies) or "nothing"
        major, minor = self.bytecode_version
        lines = [
            f"module {self.name} (version {self.version}, bytecode {major}.{minor}, {self.file_size} bytes)",
            f"  needs {needs}; imports {len(self.imports)} functions",
            *(f"  {signature.declaration}" for signature in self.functions.values()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from jitree.base.tables import html_table  # of notebooks

        title, *rows = str(self).splitlines()
        return html_table(title, (), [(row.strip(),) for row in rows])


@folded
def inspect(source: Source) -> ModuleSummary:
    """Reads the tables of a module file, without loading it into a session.

    ``source``: a path, bytes or an open binary file. Print the summary, or read its fields. NOT_FOUND for a
    missing file, INVALID_ARGUMENT for one that is no module or damaged.

    >>> summary = jitree.inspect("examples/digits/digits.vmvx.vmfb")
    >>> summary.functions["classify"].declaration
    'sync func @classify(%input0: tensor<8x8xf32>) -> (%output0: tensor<10xf32>)'
    """
    module = read_module(Archive.open(source))
    exports = [export for export in module.exports if not export.name.startswith("__")]
    rows = {export.name: module.functions[export.ordinal] for export in exports}
    return ModuleSummary(
        name=module.name,
        version=module.version,
        bytecode_version=module.bytecode_version,
        functions={name: signature_of(name, parse(row.cconv), row.attrs) for name, row in rows.items()},
        reflection={name: dict(row.attrs) for name, row in rows.items()},
        dependencies=module.dependencies,
        imports=module.imports,
        file_size=module.archive.data.nbytes,
        fingerprint=digest_of(module.archive.data).hex(),
    )


def declaration_of(function: VmFunction, signature: Signature) -> str:
    """``func @main(tensor<4x?xf32>, !vm.ref<?>) -> (!vm.ref<?>)``."""
    from jitree.vmfb.decode import BytecodeModule

    module = function.module
    asserted = asserted_by(module, function.name) if isinstance(module, BytecodeModule) else {}
    if not asserted:
        return signature.declaration
    arguments = (
        str(_tensor(asserted[index])) if index in asserted else argument.type
        for index, argument in enumerate(signature.arguments)
    )
    results = ", ".join(result.type for result in signature.results)
    return f"func @{function.name}({', '.join(arguments)}) -> ({results})"


def asserted_by(module: BytecodeModule, name: str) -> Mapping[int, AssertedTensor]:
    """What an exported function asserts, by position; of two twins the one that takes fences does so."""
    from jitree.dispatch.variants import asserted_tensors

    ordinals = {export.name: export.ordinal for export in module.module.exports}
    return asserted_tensors(module, ordinals.get(name + TORCH_ASYNC_SUFFIX, ordinals[name]))


def _tensor(tensor: AssertedTensor) -> DeclaredTensor:
    return DeclaredTensor(element_type(tensor.element_type), tensor.shape)
