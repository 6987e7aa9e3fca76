"""Lets C code call functions of other modules, through a module structure made here.

Values in the buffers of a call are in the order of the calling convention, aligned to 4 bytes. A span is its
number of tuples (i32) and then the tuples; a ref is two words, pointer and type.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from jitree.base.callbacks import Callback, keep
from jitree.base.platform import MACHINE
from jitree.errors import InternalError, InvalidArgumentError, StatusCode
from jitree.modules.native_library import layout
from jitree.modules.native_library.interface import code_of, destructor, machine_code
from jitree.vmfb.cconv import CallingConvention, Span

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction as VmFunction
    from jitree.modules.native_library.references import References

_FORMATS: Final = {"i": "i", "I": "q", "f": "f", "F": "d", "r": "QQ"}

Give = Callable[[object], tuple[int, int]]
Take = Callable[[int, int], object]

if TYPE_CHECKING:

    class LibraryCaller(Protocol):
        """The state of the library's module, from which C code calls."""

        references: References
        failure: BaseException | None

        def borrow(self, pointer: int, type_word: int) -> object: ...
        def invoke(self, function: VmFunction, arguments: Sequence[object]) -> list[Any]: ...


_ON_STACK: Final = MACHINE == "x86_64"


def size_of(characters: str) -> int:
    return struct.calcsize("<" + "".join(_FORMATS[character] for character in characters))


def _flat(convention: CallingConvention, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(character, value) of everything in the buffer; the count of a span as ``i``."""
    for item, value in zip(convention.arguments, values, strict=True):
        if not isinstance(item, Span):
            yield item, value
            continue
        yield "i", len(value)
        for row in value:
            yield from zip(item.characters, (row,) if len(item.characters) == 1 else row, strict=True)


def pack_arguments(convention: CallingConvention, values: Sequence[Any], give: Give) -> bytes:
    """The arguments of a call; the counts that ``give`` makes are the buffer's then."""
    return _pack(list(_flat(convention, values)), give)


def pack_results(characters: str, values: Sequence[Any], give: Give) -> bytes:
    return _pack(list(zip(characters, values, strict=True)), give)


def _pack(items: list[tuple[str, Any]], give: Give) -> bytes:
    words: list[Any] = []
    for character, value in items:
        if character == "r":
            words += give(value)
        else:
            words.append(value)
    return struct.pack("<" + "".join(_FORMATS[character] for character, _ in items), *words)


def unpack_values(characters: str, data: memoryview, take: Take) -> list[Any]:
    """Values of plain characters. INTERNAL if the buffer has another size."""
    if len(data) != size_of(characters):
        raise InternalError(f"a call with {len(data)} bytes where '{characters}' has {size_of(characters)}")
    words = iter(struct.unpack("<" + "".join(_FORMATS[character] for character in characters), data))
    return [take(next(words), next(words)) if character == "r" else next(words) for character in characters]


def take_values(characters: str, data: memoryview, take: Take, release: Take) -> list[Any]:
    """As :func:`unpack_values`; where ``take`` fails, which then has given its count back, the counts of the
    refs after it go back, too."""
    taken = 0

    def counted(pointer: int, type_word: int) -> object:
        nonlocal taken
        taken += 1
        return take(pointer, type_word)

    def left(pointer: int, type_word: int) -> object:
        nonlocal taken
        taken -= 1
        return release(pointer, type_word) if taken < 0 else None

    try:
        return unpack_values(characters, data, counted)
    except BaseException:
        unpack_values(characters, data, left)
        raise


def unpack_arguments(convention: CallingConvention, data: memoryview, take: Take) -> list[Any]:
    """The arguments of a call from C.

    INTERNAL if the buffer is too short or too long.
    """
    values: list[Any] = []
    position = 0

    def read(characters: str) -> list[Any]:
        nonlocal position
        end = position + size_of(characters)
        part, position = data[position:end], end
        return unpack_values(characters, part, take)

    for item in convention.arguments:
        if not isinstance(item, Span):
            values += read(item)
            continue
        count = read("i")[0]
        if not 0 <= count * max(size_of(item.characters), 1) <= len(data):
            raise InternalError(f"a span of {count} tuples in a call with {len(data)} bytes")
        rows = [read(item.characters) for _ in range(count)]
        values.append([row[0] if len(row) == 1 else tuple(row) for row in rows])
    if position != len(data):
        raise InternalError(f"a call with {len(data)} bytes where '{convention.text}' has {position}")
    return values


def refs_of(convention: CallingConvention, data: memoryview) -> Iterator[tuple[int, int]]:
    """The refs among packed arguments, as they are now."""
    found: list[tuple[int, int]] = []

    def note(pointer: int, type_word: int) -> None:
        found.append((pointer, type_word))

    unpack_arguments(convention, data, note)
    return iter(found)


class ProxyModule:
    """One module of the context, for one library."""

    def __init__(self, name: str, version: int, state: LibraryCaller) -> None:
        self.name = name
        self.functions: list[VmFunction] = []
        self._state = weakref.ref(state)
        self._text = ctypes.create_string_buffer(name.encode())
        self._identity = (ctypes.c_size_t * 7)(ctypes.addressof(self._text), len(name))
        """What the snippets for name and signature read."""
        self._signature = layout.CSignature.from_buffer(self._identity, ctypes.sizeof(layout.String))
        self._signature.version = version
        code = machine_code()
        unknown = int(StatusCode.UNKNOWN)
        self._callbacks = {
            "destroy": destructor(_stay),
            "get_function": Callback(self._get_function, 6, self._fail, unknown),
            "begin_call": Callback(self._begin_call, 7, self._fail, unknown),
        }
        self._module = layout.CModule(
            ctypes.addressof(self._identity), 1, name=code.name, signature=code.signature
        )
        for field, function in self._callbacks.items():
            setattr(self._module, field, function.address)
        self._texts: list[tuple[layout.String, layout.String, object]] = []

    def add(self, function: VmFunction) -> layout.CFunction:
        """The C function by which code in the library calls ``function``."""
        self.functions.append(function)
        self._signature.exports = len(self.functions)
        texts = [ctypes.create_string_buffer(text.encode()) for text in (function.name, function.cconv)]
        name, cconv = (layout.String(ctypes.addressof(text), len(text) - 1) for text in texts)
        self._texts.append((name, cconv, texts))
        return layout.CFunction(
            ctypes.addressof(self._module), layout.LINKAGE_EXPORT, len(self.functions) - 1
        )

    def convention(self, function: layout.CFunction) -> layout.String:
        """The calling convention of an added function."""
        convention: layout.String = self._texts[function.ordinal][1]
        return convention

    def _get_function(
        self, _: int, linkage: int, ordinal: int, function: int, name: int, convention: int
    ) -> int:
        if linkage & 0xFFFFFFFF != layout.LINKAGE_EXPORT or not 0 <= ordinal < len(self._texts):
            return int(StatusCode.NOT_FOUND)
        own = layout.CFunction(ctypes.addressof(self._module), layout.LINKAGE_EXPORT, ordinal)
        for place, value in zip((function, name, convention), (own, *self._texts[ordinal][:2]), strict=True):
            if place:
                ctypes.memmove(place, ctypes.addressof(value), ctypes.sizeof(value))
        return 0

    def _begin_call(self, _: int, stack: int, third: int, *others: int) -> int:
        state = self._state()
        if state is None:
            return int(StatusCode.FAILED_PRECONDITION)
        # A large structure is passed on the stack on x86-64, by its address elsewhere.
        self._call(state, layout.CCall.from_address(others[-1] if _ON_STACK else third))
        return 0

    def _fail(self, error: BaseException, *_: int) -> int:
        """C code gets the code, the caller of the C code the exception."""
        state = self._state()
        if state is None:
            keep(error)
        else:
            state.failure = error
        return code_of(error)

    def _call(self, state: LibraryCaller, call: layout.CCall) -> None:
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


def view(span: layout.CSpan) -> memoryview:
    """The bytes of a span."""
    if not span.size:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * span.size).from_address(span.data)).cast("B")


def _stay(_: int) -> None:
    """The library may retain and release the module; it goes with the state of the library's module."""
