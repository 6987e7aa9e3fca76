"""The code of all files that a first result takes, and the calls after it, in one file.

Python finds, opens and checks each file of a package by itself, 60 us a file, and makes the names in each
anew. So what it keeps of them in ``__pycache__`` stands there once more, together
(``start.cpython-311.bin``): a process that ends writes it, unless it may not, and later ones take from it
what is as old as its source. Modules that are not imported before the calls after a first result have a
file of their own (``later.cpython-311.bin``). Everything else is imported as usual. Nothing depends on
whether the files are there.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader, cache_from_source
from contextlib import suppress
from importlib import import_module
from mmap import ACCESS_READ, mmap
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_NAMES: Final = os.path.join(os.path.dirname(__file__), "start.txt")
"""Lists the modules of a first result, and after an empty line those of the calls after it;
`tests/test_layers.py` compares both with what is imported."""
_FIRST, _LATER = "start", "later"
"""How the names of the files begin."""
_SUFFIX: Final = ".bin"
_OWN: Final = "jitree."
_MAKER: Final = "__getattr__"
"""What a plain module asks for names that it lacks."""

Entry = tuple[str, str, bool, tuple[int, int], CodeType | bytes]
"""File of the source and of its code, whether it is a package, age and size of the source, the code: as bytes
in the file for later, of which a call needs a part."""


class _Module(ModuleType):
    """A module that says what it lacks without composing a message. Each ``from module import name`` asks
    for ``__path__``, and a plain module takes 5,000 instructions for an error that the import drops."""

    __getattribute__ = object.__getattribute__


class _Loader(SourceFileLoader):
    """Loads a file whose code is known."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code: CodeType | None = code
        self._makes_names = _MAKER in code.co_names

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if self._makes_names else _Module(spec.name)

    def get_code(self, fullname: str) -> CodeType | None:
        code, self._code = self._code, None
        # Asked for once more when it is reloaded: the file may have changed.
        return super().get_code(fullname) if code is None else code


class _Finder:
    """Finds the modules whose code it has, once each."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._entries = entries
        self._has_all = False
        self.is_stale = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        entry = self._entries.pop(name, None)
        if entry is None and not self._has_all and name.startswith(_OWN):
            self._has_all = True
            later = _read(_file(_LATER))
            self.is_stale |= not later
            self._entries |= later
            entry = self._entries.pop(name, None)
        if entry is None:
            return None
        file, cached, is_package, state, code = entry
        if _state(file) != state:
            self.is_stale = True
            return None
        if isinstance(code, bytes):
            code = marshal.loads(code)
        spec = ModuleSpec(name, _Loader(name, file, code), origin=file, is_package=is_package)
        spec.has_location = True
        spec.cached = cached
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.dirname(file))
        return spec


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
        if not gc.get_freeze_count():  # those of the user's would thaw as well
            gc.freeze()
            gc.unfreeze()


def use() -> None:
    """Has the modules imported from the file from now on."""
    global _is_used
    if _is_used:
        return
    _is_used = True
    entries = _read(_file(_FIRST))
    finder = _Finder(entries)
    if entries:
        sys.meta_path.insert(0, finder)
    if not sys.dont_write_bytecode:
        import atexit  # built in

        atexit.register(_keep, finder, bool(entries))


def _file(name: str) -> str:
    return os.path.splitext(cache_from_source(os.path.join(_PACKAGE, "base", f"{name}.py")))[0] + _SUFFIX


def _read(file: str) -> dict[str, Entry]:
    """What the file has; nothing if it is another interpreter's, of another place, or not there."""
    start = MAGIC_NUMBER + os.fsencode(_PACKAGE) + b"\0"
    entries: dict[str, Entry] = {}
    try:
        # It is mapped, not read: 330 new pages would take longer than what it saves. Who writes it anew
        # replaces it.
        with open(file, "rb", buffering=0) as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as content:
            if content.find(start, 0, len(start)) == 0:
                with memoryview(content) as view, view[len(start) :] as marshalled:
                    entries = marshal.loads(marshalled)
    except (OSError, EOFError, ValueError, TypeError):  # ValueError: it is empty, too
        return {}
    return entries


def _keep(finder: _Finder, is_there: bool) -> None:
    """Writes the files at the end of a process that has found one missing or out of date."""
    if is_there and not finder.is_stale:
        return
    with suppress(OSError, SyntaxError):  # not ours to write to, or sources are being changed
        with open(_NAMES, encoding="ascii") as names:
            first, _, later = names.read().partition("\n\n")
        _write(_file(_FIRST), first.split(), _entry)
        _write(_file(_LATER), later.split(), _packed)


def _write(file: str, names: list[str], entry: Callable[[str], Entry]) -> None:
    """Writes a file, in one step. It is code: whatever the umask, no other user may write it, nor read it
    who may not read the sources."""
    part = f"{file}.{os.getpid()}"
    mode = os.stat(_NAMES).st_mode & 0o644
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)  # first: most of what can fail
    try:
        with open(descriptor, "wb") as opened:
            entries = marshal.dumps({name: entry(name) for name in names})
            opened.write(MAGIC_NUMBER + os.fsencode(_PACKAGE) + b"\0" + entries)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise


def _entry(name: str) -> Entry:
    path = os.path.join(os.path.dirname(_PACKAGE), *name.split("."))
    package = os.path.join(path, "__init__.py")
    is_package = os.path.exists(package)
    file = package if is_package else f"{path}.py"
    found = os.stat(file)
    state = found.st_mtime_ns, found.st_size
    code = SourceFileLoader(name, file).get_code(name)
    assert code is not None
    return file, cache_from_source(file), is_package, state, code


def _packed(name: str) -> Entry:
    entry = _entry(name)
    return (*entry[:-1], marshal.dumps(entry[-1]))


def _state(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
