"""Functions of other modules as C code in a library calls them: through a module structure made here."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

from jitree.errors import InvalidArgumentError, StatusCode
from jitree.modules.native_library.layout import (
    FUNCTIONS,
    LINKAGE_EXPORT,
    Call,
    Function,
    Module,
    Signature,
    Span,
    String,
)
from jitree.modules.native_library.machine_code import machine_code
from jitree.modules.native_library.packing import pack_results, size_of, unpack_arguments
from jitree.modules.native_library.status import code_of

if TYPE_CHECKING:
    from jitree.dispatch.function import Function as VmFunction
    from jitree.modules.native_library.state import LibraryState


class HostModule:
    """One module of the context, for one library."""

    def __init__(self, name: str, version: int, state: LibraryState) -> None:
        self.name = name
        self.functions: list[VmFunction] = []
        self._state = weakref.ref(state)
        self._text = ctypes.create_string_buffer(name.encode())
        self._identity = (ctypes.c_size_t * 7)(ctypes.addressof(self._text), len(name))
        """What the snippets for name and signature read."""
        self._signature = Signature.from_buffer(self._identity, ctypes.sizeof(String))
        self._signature.version = version
        code = machine_code()
        self._callbacks: dict[str, Any] = {
            "destroy": FUNCTIONS["destroy"](_stay),
            "get_function": FUNCTIONS["get_function"](self._get_function),
            "begin_call": FUNCTIONS["begin_call"](self._begin_call),
        }
        self._module = Module(ctypes.addressof(self._identity), 1, name=code.name, signature=code.signature)
        for field, function in self._callbacks.items():
            setattr(self._module, field, ctypes.cast(function, ctypes.c_void_p))
        self._texts: list[tuple[String, String, object]] = []

    def add(self, function: VmFunction) -> Function:
        """The C function by which code in the library calls ``function``."""
        self.functions.append(function)
        self._signature.exports = len(self.functions)
        texts = [ctypes.create_string_buffer(text.encode()) for text in (function.name, function.cconv)]
        name, cconv = (String(ctypes.addressof(text), len(text) - 1) for text in texts)
        self._texts.append((name, cconv, texts))
        return Function(ctypes.addressof(self._module), LINKAGE_EXPORT, len(self.functions) - 1)

    def convention(self, function: Function) -> String:
        """The calling convention of an added function."""
        convention: String = self._texts[function.ordinal][1]
        return convention

    def _get_function(
        self, _: int, linkage: int, ordinal: int, function: Any, name: Any, convention: Any
    ) -> int:
        if linkage != LINKAGE_EXPORT or ordinal >= len(self._texts):
            return int(StatusCode.NOT_FOUND)
        if function:
            function[0] = Function(ctypes.addressof(self._module), LINKAGE_EXPORT, ordinal)
        if name:
            name[0] = self._texts[ordinal][0]
        if convention:
            convention[0] = self._texts[ordinal][1]
        return 0

    def _begin_call(self, _: int, stack: int, call: Call) -> int:
        state = self._state()
        if state is None:
            return int(StatusCode.FAILED_PRECONDITION)
        try:
            self._call(state, call)
            return 0
        except BaseException as error:  # C code gets the code, the caller of the C code the exception
            state.failure = error
            return code_of(error)

    def _call(self, state: LibraryState, call: Call) -> None:
        if call.function.ordinal >= len(self.functions):
            raise InvalidArgumentError(f"module '{self.name}' has no function {call.function.ordinal}")
        function = self.functions[call.function.ordinal]
        arguments = unpack_arguments(function.convention, view(call.arguments), state.borrow)
        results = state.invoke(function, arguments)
        expected = size_of(function.convention.results)
        if call.results.size != expected:
            raise InvalidArgumentError(
                f"'{function.full_name}' was called with room for {call.results.size} bytes of "
                f"results; it has {expected}"
            )
        packed = pack_results(function.convention.results, results, state.references.give)
        ctypes.memmove(call.results.data, packed, expected)


def view(span: Span) -> memoryview:
    """The bytes of a span."""
    if not span.size:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * span.size).from_address(span.data)).cast("B")


def _stay(_: int) -> None:
    """The library may retain and release the module; it goes with the state of the library's module."""
