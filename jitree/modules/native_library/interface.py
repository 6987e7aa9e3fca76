"""Makes C functions that neither Python nor ctypes can make.

They count atomically, and return structures from callbacks. Others have to work at any moment, also when
Python is interrupted: mapping a buffer.

Reads the module structure and statuses of a library, and registers its ref types.

What its functions tell is checked and given in Python's types. A status is 0, or a code with an address of
more about the failure.
"""

from __future__ import annotations

import ctypes
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from jitree import errors
from jitree.base.callbacks import Callback, allocator_address, free, keep, take_kept
from jitree.base.finalizers import guard, with_lock
from jitree.base.memory import once
from jitree.base.platform import MACHINE, UNAME, Mapping, map_code
from jitree.base.platform.files import read_memory
from jitree.base.records import NamedTuple
from jitree.dispatch.session_lock import Held
from jitree.modules.native_library import layout
from jitree.modules.native_library.layout import CDependency as DependencyRecord
from jitree.vmfb.schema import Attr, Dependency, Import

_ALIGNMENT: Final = 64


class _Snippets(NamedTuple):
    add: str
    """``int32 (int32* p, int32 n)``: adds atomically (acquire, release), returns what was there."""
    name: str
    """``{i64, i64} (i64* p)``: the two words at p."""
    signature: str
    """``{i64 × 5} (i64* p)``: the five words after the first two at p."""
    map: str
    """``i64 (p, mode, i16 access, i64 offset, length, i64* out)``: writes the word at p + 104 plus offset, 0;
    or 7, PERMISSION_DENIED, if access has the bit 2 (write) and the 16 bits at p + 92 have not."""
    nothing: str
    """``i64 ()``: 0, a status without failure."""
    unimplemented: str
    """``i64 ()``: 12, the status UNIMPLEMENTED."""
    pair_at_16: str
    """``{i64, i64} (p)``: the two words at p + 16."""
    pair_at_32: str
    word_at_48: str
    checked_at_32: str
    """``i64 (p, q, i64, i64* out)``: calls the word at p + 32 with the same arguments, which writes an
    address or a code. 0; or the code and writes 0 for it; or 2, UNKNOWN, where nothing was written. What a
    callback returns that was interrupted means nothing."""
    ignored: str
    """``i64 (p, i32, q, r)``: calls the word at p with the same arguments; 0."""


_SNIPPETS: Final = {
    "x86_64": _Snippets(
        "89f0 f00fc107 c3",
        "488b07 488b5708 c3",
        "4889f8 488b4e10 48890f 488b4e18 48894f08 488b4e20 48894f10 488b4e28 48894f18 488b4e30 48894f20 c3",
        "0fb7475c f7d0 21d0 a802 7406 b807000000 c3 48034f68 498909 31c0 c3",
        "31c0 c3",
        "b80c000000 c3",
        "488b4710 488b5718 c3",
        "488b4720 488b5728 c3",
        "488b4730 c3",
        "53 4889cb 48c70100000000 ff5720 488b0b 4883f920 7204 31c0 5b c3 48c70300000000 4885c9 b802000000 "
        "480f45c1 5b c3",
        "50 ff17 31c0 59 c3",
    ),
    "aarch64": _Snippets(
        "08fc5f88 0901010b 09fc0a88 aaffff35 e003082a c0035fd6",
        "080440a9 e00308aa c0035fd6",
        "092841a9 0008c03d 0005803d 092900a9 091840f9 091100f9 c0035fd6",
        "09b84079 4900290a 69000836 e0008052 c0035fd6 e80300aa e0031faa 083540f9 0801038b a80000f9 c0035fd6",
        "e0031faa c0035fd6",
        "80018052 c0035fd6",
        "080441a9 e00308aa c0035fd6",
        "080442a9 e00308aa c0035fd6",
        "001840f9 c0035fd6",
        "fe4fbfa9 7f0000f9 f30303aa 081040f9 00013fd6 680240f9 e0031faa 1f8100f1 a2000054 1f0100f1 49008052 "
        "7f0200f9 2001889a fe4fc1a8 c0035fd6",
        "fe0f1ff8 080040f9 00013fd6 e0031faa fe0741f8 c0035fd6",
    ),
}
"""The functions, as LLVM compiles them for the generic processor of each architecture."""


class MachineCode:
    """The functions at their addresses, as long as the process lives."""

    def __init__(self, mapping: Mapping, offsets: Sequence[int]) -> None:
        self._mapping = mapping
        add, *others = (mapping.address + offset for offset in offsets)
        self.add = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32)(add)
        self.name, self.signature, self.map, self.nothing, self.unimplemented, *others = others
        self.pair_at_16, self.pair_at_32, self.word_at_48, self.checked_at_32, self.ignored = others


@once
def machine_code() -> MachineCode:
    """INCOMPATIBLE on other architectures than x86-64 and AArch64."""
    snippets = _SNIPPETS.get(MACHINE)
    if snippets is None:
        raise errors.IncompatibleError(f"C modules are not supported on {UNAME}; write the module in Python")
    code, offsets = bytearray(), []
    for text in snippets:
        code.extend(bytes(-len(code) % _ALIGNMENT))
        offsets.append(len(code))
        code.extend(bytes.fromhex(text))
    return MachineCode(map_code(bytes(code)), offsets)


_LONGEST_MESSAGE: Final = 1 << 16
_MOST_PAYLOADS: Final = 64
_NO_MESSAGE: Final = "the library gave no message"

_OPTIONAL: Final = {
    "destroy", "enumerate_dependencies", "get_module_attr", "get_function_attr", "alloc_state", "free_state",
    "fork_state", "resolve_import", "notify", "resume_call",
}  # fmt: skip
"""Functions that a module without need for them may leave null."""
_MOST_FUNCTIONS: Final = 1 << 16
_MOST_ATTRIBUTES: Final = 256


def take_status(status: int) -> errors.StatusError | None:
    """What a status means; None for success. Its storage is freed."""
    if status == 0:
        return None
    message, blocks = _read(status & ~layout.CODE_MASK)
    for block in blocks:
        free(block)
    return errors.status_error(status & layout.CODE_MASK, message)


def code_of(error: BaseException) -> int:
    """The status to return to C for an exception; it has no storage, which every library knows to free."""
    return int(error.code) if isinstance(error, errors.StatusError) else int(errors.StatusCode.UNKNOWN)


def _read(address: int) -> tuple[str, list[int]]:
    """The message, and the blocks that the status consists of.

    Libraries can be built without parts of the storage, so what is not what it should be is not believed.
    """
    storage = layout.StatusStorage()
    if not address or not _copy(address, storage):
        return _NO_MESSAGE, []
    blocks, texts, place = [address], [_text(storage.message)], storage.payloads
    while place and len(blocks) <= _MOST_PAYLOADS and place not in blocks:
        payload = layout.StatusPayload()
        if not _copy(place, payload) or payload.type != layout.PAYLOAD_MESSAGE:
            break
        blocks.append(place)
        texts.append(_text(payload.message))
        place = payload.next
    return "; ".join(filter(None, texts)) or _NO_MESSAGE, blocks


def _text(string: layout.String) -> str:
    if not string.data or string.size > _LONGEST_MESSAGE:
        return ""
    data = read_memory(string.data, string.size)
    return "" if data is None else data.decode("utf-8", "backslashreplace")


def _copy(address: int, structure: ctypes.Structure) -> bool:
    data = read_memory(address, ctypes.sizeof(structure))
    if data is None:
        return False
    ctypes.memmove(ctypes.addressof(structure), data, len(data))
    return True


class ExportedFunction(NamedTuple):
    name: str
    cconv: str
    attrs: dict[str, str]


class ModuleInterface:
    """Owns one reference to a C module. It is given back when the object goes; ``library`` stays open as
    long."""

    def __init__(self, address: int, library: object) -> None:
        """FAILED_PRECONDITION for what is no module structure."""
        self.address = address
        self.library = library
        if address % 8 or read_memory(address, ctypes.sizeof(layout.CModule)) is None:
            raise errors.FailedPreconditionError(
                f"{address:#x}, where the library's module should be, is no memory"
            )
        self._module = layout.CModule.from_address(address)
        self.self = self._module.self
        self._functions: dict[str, Any] = {}
        for name, function_type in layout.FUNCTIONS.items():
            function = getattr(self._module, name)
            if function and read_memory(function, 1) is not None:
                self._functions[name] = function_type(function)
            elif function or name not in _OPTIONAL:
                raise errors.FailedPreconditionError(
                    f"the library's module has no function '{name}'; it was built for another interface "
                    "than that of the releases 20241104 to 3.13; build it against one of these"
                )
        signature = self._functions["signature"](self.self)
        self.version: int = signature.version
        self._counts = signature
        if max(signature.imports, signature.exports) > _MOST_FUNCTIONS:
            raise errors.FailedPreconditionError("the signature of the library's module makes no sense")
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
        with errors.error_context(f"asking the library for function {ordinal}"):
            self.call("get_function", linkage, ordinal, function, name, cconv)
        return function.linkage, text(name), text(cconv)

    def _attributes(self, ordinal: int) -> Iterator[tuple[str, str]]:
        for index in range(_MOST_ATTRIBUTES if "get_function_attr" in self else 0):
            pair = layout.Pair()
            status = self.begin("get_function_attr", layout.LINKAGE_EXPORT, ordinal, index, pair)
            if status & layout.CODE_MASK != errors.StatusCode.OK:  # how the end of the list is told
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
            return int(errors.StatusCode.UNKNOWN)

        if "enumerate_dependencies" in self:
            callback = Callback(note, 2, failed, int(errors.StatusCode.UNKNOWN))
            self.call("enumerate_dependencies", ctypes.cast(callback.address, layout.DEPENDENCY), None)
        return found


def text(string: layout.String) -> str:
    """FAILED_PRECONDITION where there is no text."""
    if not string.size:
        return ""
    data = read_memory(string.data or 0, string.size)
    if data is None:
        raise errors.FailedPreconditionError("the library gave a text that is not in memory")
    return data.decode("utf-8", "backslashreplace")


_CAPACITY: Final = 1024
_PLAUSIBLE_NAME: Final = 256


class TypeInstance:
    """The C object. It outlives all libraries that were given it.

    A library takes its types out of the table when its module ends, which is where a garbage collector runs:
    in any thread, also in the one that reads the table. Modules that end meanwhile are kept until it is read.
    """

    def __init__(self) -> None:
        self.creating = guard()
        """Held while a library creates a module, which puts types in."""
        self._reading = allocate_lock()
        self._due: deque[Callable[[], object]] = deque()
        size = ctypes.sizeof(layout.RegisteredType)
        self._block = ctypes.create_string_buffer(ctypes.sizeof(layout.CInstance) + _CAPACITY * size)
        self._instance = layout.CInstance.from_buffer(self._block)
        self._instance.count = 1  # never released: the destructor in the library must not run
        self._instance.allocator = layout.CAllocator(None, allocator_address())
        self._instance.capacity = _CAPACITY
        self._types = (layout.RegisteredType * _CAPACITY).from_buffer(
            self._block, ctypes.sizeof(layout.CInstance)
        )
        self._kept: list[object] = []

    @property
    def address(self) -> int:
        return ctypes.addressof(self._block)

    def add(self, name: str, destroy: Callable[[int], None]) -> int:
        """Registers a type of the runtime; gives what the refs of it have as type."""
        text = ctypes.create_string_buffer(name.encode())
        function = destructor(destroy)
        block = ctypes.create_string_buffer(ctypes.sizeof(layout.Descriptor) + 8)
        address = ctypes.addressof(block) + 7 & -8
        descriptor = layout.Descriptor.from_address(address)
        descriptor.destroy = function.address
        descriptor.name = layout.String(ctypes.addressof(text), len(name))
        self._kept += (text, function, block)
        entry = self._types[self._instance.type_count]
        entry.descriptor, entry.count = address, 1
        self._instance.type_count += 1
        return address

    def names(self) -> list[str]:
        """Names of all registered types. FAILED_PRECONDITION if a library has left nonsense."""
        try:
            with self.creating, Held(self._reading):
                return [type_name(address) for address in self._descriptors()]
        finally:
            self._end_due()

    def end(self, release: Callable[[], object]) -> None:
        """Calls ``release``, the end of a library's module; while the table is read, after that."""
        self._due.append(release)
        self._end_due()

    def _end_due(self) -> None:
        while self._due and with_lock(self._reading, self._end_first) is not None:
            pass

    def _end_first(self) -> bool:
        if self._due:
            self._due.popleft()()
        return True

    def _descriptors(self) -> list[int]:
        if self._instance.mutex or self._instance.type_count > _CAPACITY:
            raise _other_layout()
        found = [entry.descriptor or 0 for entry in self._types[: self._instance.type_count]]
        if not all(found) or any(address % 8 for address in found):
            raise _other_layout()
        return found


def destructor(destroy: Callable[..., None], count: int = 1) -> Callback:
    """A C function for the end of an object.

    What it is interrupted in is done all the same.
    """

    def end(*arguments: int) -> int:
        destroy(*arguments)
        return 0

    def failed(error: BaseException, *arguments: int) -> int:
        keep(error)
        return end(*arguments) if errors.is_interruption(error) else 0

    return Callback(end, count, failed, 0)


def type_name(address: int) -> str:
    """The name of the type with the descriptor at ``address``."""
    if not address or read_memory(address, ctypes.sizeof(layout.Descriptor)) is None:
        raise _other_layout()
    name = layout.Descriptor.from_address(address).name
    data = read_memory(name.data or 0, name.size) if 0 < name.size <= _PLAUSIBLE_NAME else None
    if data is None:
        raise _other_layout()
    return data.decode("utf-8", "backslashreplace")


def _other_layout() -> errors.FailedPreconditionError:
    return errors.FailedPreconditionError(
        "the library does not keep to the layout of the VM instance of releases 2023 to 3.13, where types "
        "are registered; build it against one of these releases"
    )
