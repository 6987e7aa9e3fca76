"""The module structure that a library made: what its functions tell, checked and in Python's types."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, Final

from jitree.base.callbacks import Callback, keep, take_kept
from jitree.base.records import NamedTuple
from jitree.errors import FailedPreconditionError, StatusCode, error_context
from jitree.modules.native_library import layout
from jitree.modules.native_library.layout import CDependency as DependencyRecord
from jitree.modules.native_library.machine_code import machine_code
from jitree.modules.native_library.status import read_memory, take_status
from jitree.vmfb.schema import Attr, Dependency, Import

_OPTIONAL: Final = {
    "destroy", "enumerate_dependencies", "get_module_attr", "get_function_attr", "alloc_state", "free_state",
    "fork_state", "resolve_import", "notify", "resume_call",
}  # fmt: skip
"""Functions that a module without need for them may leave null."""
_MOST_FUNCTIONS: Final = 1 << 16
_MOST_ATTRIBUTES: Final = 256


class ExportedFunction(NamedTuple):
    name: str
    cconv: str
    attrs: dict[str, str]


class ModuleInterface:
    """One reference to a C module, given back when the object goes; ``library`` stays open as long."""

    def __init__(self, address: int, library: object) -> None:
        """FAILED_PRECONDITION for what is no module structure."""
        self.address = address
        self.library = library
        if address % 8 or read_memory(address, ctypes.sizeof(layout.CModule)) is None:
            raise FailedPreconditionError(f"{address:#x}, where the library's module should be, is no memory")
        self._module = layout.CModule.from_address(address)
        self.self = self._module.self
        self._functions: dict[str, Any] = {}
        for name, function_type in layout.FUNCTIONS.items():
            function = getattr(self._module, name)
            if function and read_memory(function, 1) is not None:
                self._functions[name] = function_type(function)
            elif function or name not in _OPTIONAL:
                raise FailedPreconditionError(
                    f"the library's module has no function '{name}'; it was built for another interface "
                    "than that of the releases 20241104 to 3.13; build it against one of these"
                )
        signature = self._functions["signature"](self.self)
        self.version: int = signature.version
        self._counts = signature
        if max(signature.imports, signature.exports) > _MOST_FUNCTIONS:
            raise FailedPreconditionError("the signature of the library's module makes no sense")
        self.name = text(self._functions["name"](self.self))

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a status; raises what it failed with."""
        status = take_status(self.begin(name, *arguments))
        error = take_kept() or status
        if error is not None:
            raise error

    def begin(self, name: str, *arguments: Any) -> int:
        """As :meth:`call`, with the status as it is."""
        status: int = self._functions[name](self.self, *arguments)
        return status

    def free_state(self, state: int | None) -> None:
        if "free_state" in self:
            self._functions["free_state"](self.self, state)

    def release(self) -> None:
        """Gives the reference back, once."""
        if machine_code().add(self.address + layout.CModule.count.offset, -1) == 1 and "destroy" in self:
            self._functions["destroy"](self.self)

    # -- what it consists of -----------------------------------------------------------------------------

    def exports(self) -> list[ExportedFunction]:
        found = []
        for ordinal in range(self._counts.exports):
            _, name, cconv = self._function(layout.LINKAGE_EXPORT, ordinal)
            found.append(ExportedFunction(name, cconv or "0v_v", dict(self._attributes(ordinal))))
        return found

    def imports(self) -> list[Import]:
        found = []
        for ordinal in range(self._counts.imports):
            linkage, name, cconv = self._function(layout.LINKAGE_IMPORT, ordinal)
            found.append(Import(name, cconv or None, {}, linkage == layout.LINKAGE_IMPORT_OPTIONAL))
        return found

    def _function(self, linkage: int, ordinal: int) -> tuple[int, str, str]:
        function, name, cconv = layout.CFunction(), layout.String(), layout.String()
        with error_context(f"asking the library for function {ordinal}"):
            self.call("get_function", linkage, ordinal, function, name, cconv)
        return function.linkage, text(name), text(cconv)

    def _attributes(self, ordinal: int) -> Iterator[tuple[str, str]]:
        for index in range(_MOST_ATTRIBUTES if "get_function_attr" in self else 0):
            pair = layout.Pair()
            status = self.begin("get_function_attr", layout.LINKAGE_EXPORT, ordinal, index, pair)
            if status & layout.CODE_MASK != StatusCode.OK:  # how the end of the list is told
                take_status(status)
                return
            yield text(pair.key), text(pair.value)

    def attributes(self) -> list[Attr]:
        found = []
        for index in range(
            min(self._counts.attributes, _MOST_ATTRIBUTES) if "get_module_attr" in self else 0
        ):
            pair = layout.Pair()
            self.call("get_module_attr", index, pair)
            found.append(Attr(text(pair.key), text(pair.value)))
        return found

    def dependencies(self) -> list[Dependency]:
        found: list[Dependency] = []

        def note(_: int, address: int) -> int:
            item = DependencyRecord.from_address(address)
            required = not item.flags & layout.DEPENDENCY_OPTIONAL
            found.append(Dependency(text(item.name), item.minimum_version, required))
            return 0

        def failed(error: BaseException, *_: int) -> int:
            keep(error)
            return int(StatusCode.UNKNOWN)

        if "enumerate_dependencies" in self:
            callback = Callback(note, 2, failed, int(StatusCode.UNKNOWN))
            self.call("enumerate_dependencies", ctypes.cast(callback.address, layout.DEPENDENCY), None)
        return found


def text(string: layout.String) -> str:
    """FAILED_PRECONDITION where there is no text."""
    if not string.size:
        return ""
    data = read_memory(string.data or 0, string.size)
    if data is None:
        raise FailedPreconditionError("the library gave a text that is not in memory")
    return data.decode("utf-8", "backslashreplace")
