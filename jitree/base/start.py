"""Imports a first result's files from one file.

It has the code of all files that a first result takes, and the calls after it.

Python finds, opens and checks each file of a package by itself, 60 us a file, and makes the names in each
anew. So what it keeps of them in ``__pycache__`` stands there once more, together
(``start.cpython-311.bin``): a process that ends writes it, unless it may not, and later ones take from it
what is as old as its source. Modules that are not imported before the calls after a first result, or by
programs of other kinds (VMVX, ``local-task``), have a file of their own (``later.cpython-311.bin``), of
which each program reads what it needs. Everything else is imported as usual. Nothing depends on whether the
files are there.

The file also says what a module imports while it runs. That is run first, without Python's search for
each (:class:`_Loader`): half of what it costs to import a module that is known.
"""

from __future__ import annotations

import _frozen_importlib
import ctypes
import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader, cache_from_source
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES: Final = os.path.join(os.path.dirname(__file__), "start.txt")
"""Lists the modules of a first result, each in front of those that it imports while it runs, which are
indented; after an empty line those of the calls after it, and of programs of other kinds.
`tests/test_layers.py` compares both with what is imported, ``write_imports`` there writes the first part."""
_FIRST, _LATER = "start", "later"
"""How the names of the files begin."""
_SUFFIX: Final = ".bin"
_FORM: Final = b"4"
"""Changes with the fields of an :data:`Entry`."""
_OWN: Final = "jitree."
_MAKER: Final = "__getattr__"
"""What a plain module asks for names that it lacks."""

_PROT_READ, _MAP_PRIVATE, _MAP_FAILED, _BUFFER_READ = 1, 2, ctypes.c_size_t(-1).value, 0x100
"""Of mmap(2), and Python's PyBUF_READ."""
_LOCKS: Final[dict[str, object] | None] = vars(_frozen_importlib).get("_module_locks")
"""Python's locks of modules that are being imported, by name: threads that import one wait for it. None in
a Python that keeps them otherwise: each module is then imported as usual."""

Entry = tuple[str, str, bool, tuple[int, int], tuple[str, ...], CodeType | tuple[int, int]]
"""File of the source and of its code, whether it is a package, age and size of the source, what it imports
while it runs, the code. In the file for later, of which a program needs a part, the code lies at the end: how
many bytes from there, and its size."""


class _Module(ModuleType):
    """A module that says what it lacks without composing a message. Each ``from module import name`` asks
    for ``__path__``, and a plain module takes 5,000 instructions for an error that the import drops."""

    __getattribute__ = object.__getattribute__


class _Loader(SourceFileLoader):
    """Loads a file whose code is known, after the modules that it imports."""

    def __init__(
        self, name: str, path: str, code: CodeType, finder: _Finder, imports: tuple[str, ...]
    ) -> None:
        self.name, self.path = name, path  # all that the class above would do
        self._code: CodeType | None = code
        self._finder, self._imports = finder, imports

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        code = self._code
        return None if code is None or _MAKER in code.co_names else _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if self._imports and _LOCKS is not None and (lock := _LOCKS.get(module.__name__)) is not None:
            self.run_imports(lock)
        super().exec_module(module)

    def run_imports(self, lock: object) -> None:
        """Runs what is not loaded yet. Other threads see a module from then on, and wait for it: by the lock
        of the module that is being imported, which this thread holds."""
        for name in self._imports:
            if name not in sys.modules:
                self._finder.run_early(name, lock)
        self._imports = ()

    def run(self, module: ModuleType, lock: object) -> None:
        """As ``exec_module``."""
        if self._imports:
            self.run_imports(lock)
        code, self._code = self._code, None
        assert code is not None
        exec(code, module.__dict__)

    def get_code(self, fullname: str) -> CodeType | None:
        code, self._code = self._code, None
        # Asked for once more when it is reloaded: the file may have changed.
        return super().get_code(fullname) if code is None else code


class _Finder:
    """Finds the modules whose code it has, once each."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._entries = entries
        self._later: memoryview | None = None
        self._kept = ExitStack()
        self.is_stale = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        entry = self._entries.pop(name, None)
        if entry is None and self._later is None and name.startswith(_OWN):
            later, self._later = _read(_file(_LATER), self._kept)
            self.is_stale |= not later
            self._entries |= later
            entry = self._entries.pop(name, None)
        return None if entry is None else self._spec(name, entry)

    def _spec(self, name: str, entry: Entry) -> ModuleSpec | None:
        """None if the source is another one by now."""
        file, cached, is_package, state, imports, code = entry
        if _state(file) != state:
            self.is_stale = True
            return None
        if isinstance(code, tuple):
            assert self._later is not None
            first, size = len(self._later) - code[0], code[1]
            code = marshal.loads(self._later[first : first + size])
        loader = _Loader(name, file, code, self, imports)
        spec = ModuleSpec(name, loader, origin=file, is_package=is_package)
        spec.has_location = True
        spec.cached = cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec

    def run_early(self, name: str, lock: object) -> None:
        """Imports a module that is about to be imported, unless it is searched for."""
        above, _, last = name.rpartition(".")
        package, entry = sys.modules.get(above), self._entries.pop(name, None)
        if package is None or entry is None or (spec := self._spec(name, entry)) is None:
            return
        loader = spec.loader
        assert isinstance(loader, _Loader) and _LOCKS is not None
        module = _of_spec(spec, loader, entry, above)
        spec._initializing = True  # type: ignore[attr-defined]  # threads look at the lock then
        _LOCKS[name] = lock
        sys.modules[name] = module
        try:
            loader.run(module, lock)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        finally:
            spec._initializing = False  # type: ignore[attr-defined]
            _LOCKS.pop(name, None)
        setattr(package, last, module)


def _of_spec(spec: ModuleSpec, loader: _Loader, entry: Entry, above: str) -> ModuleType:
    """A new module, as Python makes them; ``above`` is the package that it lies in."""
    file, cached, is_package, *_ = entry
    module = loader.create_module(spec) or ModuleType(spec.name)
    names = module.__dict__
    names["__spec__"], names["__loader__"] = spec, loader
    names["__package__"] = spec.name if is_package else above
    names["__file__"], names["__cached__"] = file, cached
    if spec.submodule_search_locations is not None:
        names["__path__"] = spec.submodule_search_locations
    return module


_FROZEN_BY_USERS = 2000
"""Objects that are frozen at least where a program has frozen those of its interpreter. Some begin with a few
hundred (375 of CPython 3.12.3)."""
_is_used = False


def imported(name: str) -> ModuleType:
    """A module, imported from the file if that has it. The garbage collector does not look at what comes
    with it, 15,000 objects that stay: they go where those are that have stayed for long."""
    if name in sys.modules or not gc.isenabled():
        use()
        return import_module(name)
    gc.disable()
    try:
        use()
        return import_module(name)
    finally:
        gc.enable()
        if gc.get_freeze_count() < _FROZEN_BY_USERS:  # those of the user's would thaw as well
            gc.freeze()
            gc.unfreeze()


def use() -> None:
    """Has the modules imported from the file from now on."""
    global _is_used
    if _is_used:
        return
    _is_used = True
    with ExitStack() as kept:
        entries, _ = _read(_file(_FIRST), kept)
    finder = _Finder(entries)
    if entries:
        sys.meta_path.insert(0, finder)
    if not sys.dont_write_bytecode:
        import atexit  # built in

        atexit.register(_keep, finder, bool(entries))


def _file(name: str) -> str:
    return os.path.splitext(cache_from_source(os.path.join(_PACKAGE, "base", f"{name}.py")))[0] + _SUFFIX


def _beginning(size: int) -> bytes:
    """Begins a file of this interpreter, form and place, with so many bytes after: in a file that was cut off
    no place is what it was."""
    return MAGIC_NUMBER + _FORM + os.fsencode(_PACKAGE) + b"\0" + size.to_bytes(8, "little")


def _read(file: str, kept: ExitStack) -> tuple[dict[str, Entry], memoryview]:
    """Reads a file, and its bytes, which stay as long as ``kept`` is open. Nothing if it is another
    interpreter's, of another place, or not there."""
    length = len(_beginning(0))
    try:
        with open(file, "rb", buffering=0, opener=_at_once) as opened:
            content = kept.enter_context(_mapped(opened.fileno()))
        size = len(content) - length
        if size > 0 and content[:length] == _beginning(size):
            with content[length:] as marshalled:
                entries = marshal.loads(marshalled)
            if isinstance(entries, dict):
                return entries, content
    except (OSError, EOFError, ValueError, TypeError, MemoryError) as error:
        from jitree.errors import pass_interruption  # not before it is known where modules lie

        pass_interruption(error)
    return {}, memoryview(b"")


def _at_once(file: str, access: int) -> int:
    """Opens a file; a named pipe, too, without waiting for who writes."""
    return os.open(file, access | os.O_NONBLOCK | os.O_CLOEXEC)


@contextmanager
def _mapped(file: int) -> Iterator[memoryview]:
    """The bytes of a file. To read them would take 330 new pages, and longer than what they save; the module
    ``mmap`` takes 0.25 ms to import. Who writes the file anew replaces it."""
    library, word = ctypes.pythonapi, ctypes.c_size_t
    mmap, munmap, view = (library[name] for name in ("mmap", "munmap", "PyMemoryView_FromMemory"))
    mmap.restype, mmap.argtypes = word, [word, word, ctypes.c_int, ctypes.c_int, ctypes.c_int, word]
    munmap.argtypes = [word, word]
    view.restype, view.argtypes = ctypes.py_object, [word, word, ctypes.c_int]
    size = os.fstat(file).st_size
    start = mmap(0, size, _PROT_READ, _MAP_PRIVATE, file, 0)
    if start == _MAP_FAILED:  # it is empty, too
        raise OSError(f"a file of {size} bytes cannot be mapped")
    try:
        with view(start, size, _BUFFER_READ) as content:
            yield content
    finally:
        munmap(start, size)


def _keep(finder: _Finder, is_there: bool) -> None:
    """Writes missing files, and those out of date, at the end of a process."""
    if is_there and not finder.is_stale:
        return
    with suppress(OSError, SyntaxError):  # not ours to write to, or sources are being changed
        with open(_NAMES, encoding="ascii") as names:
            first, _, later = names.read().partition("\n\n")
        _write(_file(_FIRST), _whole(_imports(first)))
        _write(_file(_LATER), _indexed(later.split()))


def _imports(lines: str) -> dict[str, tuple[str, ...]]:
    """What each module imports while it runs: the lines below it that are indented by one more."""
    found: dict[str, list[str]] = {}
    above: list[list[str]] = [[]]
    for line in lines.splitlines():
        name = line.lstrip(" ")
        del above[len(line) - len(name) + 1 :]
        above[-1].append(name)
        above.append(found.setdefault(name, []))
    return {name: tuple(names) for name, names in found.items()}


def _whole(names: dict[str, tuple[str, ...]]) -> bytes:
    """Names and texts that modules have in common stand there once."""
    return marshal.dumps({name: _entry(name, imports) for name, imports in names.items()})


def _indexed(names: list[str]) -> bytes:
    """Each module's code is read when it is imported."""
    entries = {name: _entry(name, ()) for name in names}
    codes = [marshal.dumps(entry[-1]) for entry in entries.values()]
    places, rest = [], sum(map(len, codes))
    for code in codes:
        places.append((rest, len(code)))
        rest -= len(code)
    index = {name: (*entry[:-1], place) for (name, entry), place in zip(entries.items(), places, strict=True)}
    return marshal.dumps(index) + b"".join(codes)


def _write(file: str, content: bytes) -> None:
    """Writes a file, in one step. It is code: whatever the umask, no other user may write it, nor read it
    who may not read the sources."""
    part = f"{file}.{os.getpid()}"
    mode = os.stat(_NAMES).st_mode & 0o644
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # first: most of what can fail
    try:
        with open(descriptor, "wb") as opened:
            opened.write(_beginning(len(content)) + content)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise


def _entry(name: str, imports: tuple[str, ...]) -> Entry:
    path = os.path.join(os.path.dirname(_PACKAGE), *name.split("."))
    package = os.path.join(path, "__init__.py")
    is_package = os.path.exists(package)
    file = package if is_package else f"{path}.py"
    found = os.stat(file)
    state = found.st_mtime_ns, found.st_size
    code = SourceFileLoader(name, file).get_code(name)
    assert code is not None
    return file, cache_from_source(file), is_package, state, imports, code


def _state(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError as error:
        from jitree.errors import pass_interruption

        pass_interruption(error)
        return None
    return found.st_mtime_ns, found.st_size
