"""Makes C functions of Python functions.

They have failed until Python says that they have not.

ctypes has no way to pass on what a callback raises: it prints that, and the caller gets whatever is in a
register. And Ctrl-C comes where code in Python begins, in front of any ``try`` that a callback has. So
machine code is called instead of ctypes: it puts the arguments and the failure into a record, has Python
called with the address of that, and returns what it says then. On the main thread, which alone is interrupted
by signals, a generator is called: it begins inside of its ``try``.

The memory allocator that libraries of users are given: the C library's.
"""

from __future__ import annotations

import ctypes
import os
from _thread import get_ident, get_native_id
from array import array
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final

from jitree.base.memory import once
from jitree.base.platform import C_LIBRARY, MACHINE, Mapping, map_code
from jitree.base.platform.threads import thread_pointer
from jitree.errors import AFTER_OVERFLOW, PermissionDeniedError, StatusCode

_ARGUMENTS: Final = 6
_CALLBACK, _RESULT, _STACK, _RECORD_WORDS = 6, 7, 8, 9
"""Words of a record after those of the arguments in registers; STACK is where the others are."""
_LEVELS: Final = 16
"""Callbacks inside each other on the main thread; deeper ones are called as on any other."""
_FIRST: Final = 4
_RECORDS: Final = _FIRST + _LEVELS
"""Words of the table after the main thread's pointer, how deep it is, the number of levels, and the function
of ctypes for other threads: those for the levels, and the records that these have in hand."""

_MACHINE_CODE: Final = {
    # mov r10, DESCRIPTOR; then, as LLVM compiles it:
    # record = arguments, d.callback, d.failure, the caller's stack; t = d.table
    # if (t.main == thread && t.level < t.levels) { i = t.level++; t.records[i] = &record;
    #     t.callbacks[i](&record); t.level = i } else t.other(&record)
    # return record.result
    "x86_64": (
        "49ba", """
        4156534883ec4848893c244889742408488954241048894c24184c894424204c894c2428498b42084889442430498b4210
        4889442438488d4424604889442440498b1a488b0364483b04250000000075284c8b73084c3b7310731e498d4601488943
        084889e74a89bcf3a000000042ff54f3204c897308eb064889e7ff5318488b4424384883c4485b415ec3
        """,
    ),
    # ldr x15, DESCRIPTOR; b after it
    "aarch64": (
        "4f00005803000014", """
        ffc301d1e8a540a9f44f06a9f30140f9e00700a9e20f01a9e82703a9e8c30191e41702a9e82300f9680240f9fe2b00f949
        d03bd51f0109ebc101005474a240a99f0208eb6201005488060091690e148be0030091680600f9e80300912a1140f92851
        00f940013fd6740600f904000014680e40f9e003009100013fd6e01f40f9f44f46a9fe2b40f9ffc30191c0035fd6
        """,
    ),
}  # fmt: skip
"""Before and after the address of the DESCRIPTOR (table, callback, failure)."""

_SERVE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_record_at: Final = (ctypes.c_int64 * _RECORD_WORDS).from_address
_callback_of: Final[Callable[[int], Any]] = ctypes.py_object.from_address
_PLAIN: Final = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * _ARGUMENTS)

_kept: Final[dict[int, BaseException]] = {}
"""What each thread is to raise when its callback has returned, by thread."""


def keep(error: BaseException) -> None:
    """Keeps an error that C code has no place for, until :func:`take_kept` is called."""
    _kept[get_ident()] = error


def take_kept() -> BaseException | None:
    """What is to be raised when C code has returned."""
    return _kept.pop(get_ident(), None) if _kept else None


class Callback:
    """Makes a C function of up to six integers. ``address`` is valid as long as the object. For a ``count``
    of seven the last argument is where those on the stack are (x86-64).

    The C function gives what ``function`` gives for ``count`` arguments; if that raises anything, what
    ``failed`` gives for the error and the arguments; and ``failure`` if that was not possible either.
    """

    def __init__(
        self, function: Callable[..., int], count: int, failed: Callable[..., int], failure: int
    ) -> None:
        self.function = function
        self._count = count
        self.in_registers = min(count, _ARGUMENTS)
        self.end = _STACK + (count > _ARGUMENTS)
        """Of what a record has of those on the stack."""
        self.failed = failed
        self.failure = failure
        mapping = self._machine_code()
        if mapping is None:
            plain = _PLAIN(self._attempt)
            self._code: object = plain
            self.address: int = ctypes.cast(plain, ctypes.c_void_p).value or 0
            return
        self._code = mapping
        self.address = mapping.address

    def _machine_code(self) -> Mapping | None:
        """None where the processor has none here, or the system allows none."""
        code = _MACHINE_CODE.get(MACHINE)
        if code is None:
            return None
        with suppress(PermissionDeniedError):  # of the table, too, which may need some
            self._descriptor = array("q", (_table().address, id(self), self.failure))
            place = self._descriptor.buffer_info()[0].to_bytes(8, "little")
            return map_code(bytes.fromhex(code[0]) + place + bytes.fromhex(code[1]))
        return None

    def _attempt(self, *arguments: int) -> int:
        try:
            return self.function(*arguments[: self._count])
        except BaseException as error:
            return self.failed(error, *arguments[: self._count])


def _call(address: int) -> None:
    """Calls the function of a record with the arguments there."""
    callback, record = _callback_of(address + 8 * _CALLBACK).value, _record_at(address)
    record[_RESULT] = callback.function(*record[: callback.in_registers], *record[_STACK : callback.end])


def _fail(address: int, error: BaseException) -> None:
    """Returns a failure."""
    callback, record = _callback_of(address + 8 * _CALLBACK).value, _record_at(address)
    record[_RESULT] = callback.failure
    arguments = *record[: callback.in_registers], *record[_STACK : callback.end]
    record[_RESULT] = callback.failed(error, *arguments)


def _serve(address: int) -> None:
    try:
        _call(address)
    except BaseException as error:
        _fail(address, error)


class _Table:
    """What the machine code of all callbacks shares; it lasts as long as the process."""

    def __init__(self) -> None:
        self._words = array("q", bytes(8 * (_RECORDS + _LEVELS)))
        self.address: int = self._words.buffer_info()[0]
        self._kept: list[object] = []
        """Functions of ctypes, also those that were replaced: machine code may have read their address."""
        self._publish(_FIRST - 1, _serve)
        self._servers = [self._new_server(level) for level in range(_LEVELS)]
        self._words[2] = _LEVELS
        self._tell_main_thread()
        os.register_at_fork(after_in_child=self._tell_main_thread)

    def _tell_main_thread(self) -> None:
        """A pointer that only the main thread has."""
        main = get_ident()
        if get_native_id() != os.getpid():  # this is not the main thread
            import threading  # 2 ms

            main = threading.main_thread().ident or 0
        self._words[0] = thread_pointer(main) if MACHINE in _MACHINE_CODE else 0
        self._words[1] = 0 if get_ident() != main else self._words[1]

    def _publish(self, place: int, serve: Callable[[int], None]) -> None:
        function = _SERVE(serve)
        self._kept.append(function)
        self._words[place] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def _new_server(self, level: int) -> Any:
        server = self._server(level)
        next(server)
        self._publish(_FIRST + level, server.send)
        return server

    def revive(self) -> None:
        """Replaces servers that have ended."""
        for level, server in enumerate(self._servers):
            if server.gi_frame is None:
                self._servers[level] = self._new_server(level)

    def _server(self, level: int) -> Generator[None, int, None]:
        """Makes one call after the other. An error between calls fails the one in hand."""
        failure: BaseException | None = None
        while True:
            try:
                while True:
                    try:
                        if failure is not None:
                            _fail(self._words[_RECORDS + level], failure)
                            failure = None
                        while True:
                            _call((yield))
                    except GeneratorExit as error:
                        if error.__traceback__.tb_next is None and not error.__dict__:  # type: ignore[union-attr]
                            # Closed as it waits; another raises it in a function, or marks it to raise it
                            # later. A call here would have Python look for signals.
                            return
                        failure = error
                    except KeyboardInterrupt as error:
                        failure = error
                    except BaseException as error:  # nothing is called here: there may be no stack for it
                        failure = error if failure is None else None  # what cannot fail has failed anyway
            except BaseException as error:  # a second one, where the loop begins again
                failure = error


@once
def _table() -> _Table:
    return _Table()


def revive() -> None:
    """Makes callbacks work again after one has failed: Python ends a generator that it enters where its stack
    of calls is full. Code that makes an error of a callback's failure calls this."""
    _table().revive()


AFTER_OVERFLOW.append(revive)


_MALLOC, _CALLOC, _REALLOC, _FREE = range(4)

for _name, _arguments in (
    ("malloc", [ctypes.c_size_t]),
    ("calloc", [ctypes.c_size_t, ctypes.c_size_t]),
    ("realloc", [ctypes.c_void_p, ctypes.c_size_t]),
    ("free", [ctypes.c_void_p]),
):
    _function = getattr(C_LIBRARY, _name)
    _function.restype = ctypes.c_void_p
    _function.argtypes = _arguments


def allocate(size: int) -> int:
    """Zeroed bytes of the C library. MemoryError if there is no room."""
    address: int | None = C_LIBRARY.calloc(1, size)
    if address is None:
        raise MemoryError(f"{size} bytes")
    return address


def free(address: int) -> None:
    """Frees a block that the C library allocated."""
    C_LIBRARY.free(address)


def _control(_: int, command: int, parameters: int, place: int) -> int:
    """Reads or writes the size at ``parameters`` and the block's address at ``place``."""
    block = ctypes.c_void_p.from_address(place)
    command &= 0xFFFFFFFF
    if command == _FREE:
        C_LIBRARY.free(block.value)
        block.value = None
        return int(StatusCode.OK)
    if command not in (_MALLOC, _CALLOC, _REALLOC):
        return int(StatusCode.UNIMPLEMENTED)
    size = ctypes.c_size_t.from_address(parameters).value
    if command == _MALLOC:
        address = C_LIBRARY.malloc(size)
    elif command == _CALLOC:
        address = C_LIBRARY.calloc(1, size)
    else:
        address = C_LIBRARY.realloc(block.value, size)
    if address is None:
        return int(StatusCode.RESOURCE_EXHAUSTED)
    block.value = address
    return int(StatusCode.OK)


def _failed(error: BaseException, *_: int) -> int:
    keep(error)
    return int(StatusCode.RESOURCE_EXHAUSTED)


@once
def _callback() -> Callback:
    return Callback(_control, 4, _failed, int(StatusCode.RESOURCE_EXHAUSTED))


def allocator_address() -> int:
    """The address of the allocator's control function; valid as long as the process."""
    return _callback().address
