"""The NCCL library: the calls that channels make, by ctypes, each checked.

The package ``nvidia-nccl`` brings the library only, so the dozen functions are declared here; RATIONALE.md
says why not by NVIDIA's bindings.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any, Final

from jitree import errors

IDENTIFIER_SIZE: Final = 128
"""Bytes of what the members of a group share to find each other."""
_MINIMUM_VERSION: Final = 21800
"""2.18: the first that splits."""
_SONAME: Final = "libnccl.so.2"
_INSTALL: Final = "pip install 'jitree[cuda]'"
_IN_PROGRESS: Final = 7
_BYTES: Final = 0
"""ncclInt8."""
_ERRORS: Final = {
    1: errors.InternalError,  # a CUDA call failed
    2: errors.InternalError,  # a system call failed
    3: errors.InternalError,
    4: errors.InvalidArgumentError,
    5: errors.InvalidArgumentError,  # invalid usage
    6: errors.UnavailableError,  # the other side ended
}


class Identifier(ctypes.Structure):
    """ncclUniqueId; passed by value."""

    _fields_ = (("bytes", ctypes.c_char * IDENTIFIER_SIZE),)


_POINTER: Final = ctypes.c_void_p
_COUNT: Final = ctypes.c_size_t
_INT: Final = ctypes.c_int
_FUNCTIONS: Final = {
    "ncclGetVersion": (_POINTER,),
    "ncclGetUniqueId": (_POINTER,),
    "ncclCommInitRank": (_POINTER, _INT, Identifier, _INT),
    "ncclCommSplit": (_POINTER, _INT, _INT, _POINTER, _POINTER),
    "ncclCommFinalize": (_POINTER,),
    "ncclCommDestroy": (_POINTER,),
    "ncclCommAbort": (_POINTER,),
    "ncclCommCount": (_POINTER, _POINTER),
    "ncclCommUserRank": (_POINTER, _POINTER),
    "ncclCommGetAsyncError": (_POINTER, _POINTER),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    # send, receive, count, type, (reduction,) (root,) communicator, stream
    "ncclAllReduce": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclReduce": (_POINTER, _POINTER, _COUNT, _INT, _INT, _INT, _POINTER, _POINTER),
    "ncclReduceScatter": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_POINTER, _POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _COUNT, _INT, _POINTER, _POINTER),
    # buffer, count, type, peer, communicator, stream
    "ncclSend": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _COUNT, _INT, _INT, _POINTER, _POINTER),
}
"""Arguments; every function returns an int."""


class Nccl:
    """The functions of a loaded library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """UNAVAILABLE for a library that is too old."""
        self._functions = {}
        for name, arguments in _FUNCTIONS.items():
            try:
                function = getattr(library, name)
            except AttributeError as error:
                errors.pass_interruption(error)
                raise errors.UnavailableError(
                    f"the NCCL library has no function {name}; channels need 2.18 or newer: {_INSTALL}"
                ) from error
            function.argtypes = arguments
            function.restype = _INT
            self._functions[name] = function
        self._explain = library.ncclGetErrorString
        self._explain.restype = ctypes.c_char_p
        self._last = library.ncclGetLastError
        self._last.restype = ctypes.c_char_p
        self._last.argtypes = (_POINTER,)
        version = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.addressof(version))
        self.version = version.value
        """Such as 22809 for 2.28.9."""
        if self.version < _MINIMUM_VERSION:
            raise errors.UnavailableError(
                f"NCCL {self.version // 10000}.{self.version // 100 % 100} was found; channels need 2.18 or "
                f"newer: {_INSTALL}"
            )

    def call(self, name: str, *arguments: object) -> None:
        """One call. Raises what NCCL says, and the last warning it has noted."""
        result = self._functions[name](*arguments)
        if result not in (0, _IN_PROGRESS):
            raise self._failure(name, result)

    def function(self, name: str) -> Any:
        """The function in C."""
        return self._functions[name]

    def attempt(self, name: str, *arguments: object) -> bool:
        """A call about whose failure nothing can be done: giving back what is no longer used. Whether it
        succeeded."""
        return bool(self._functions[name](*arguments) == 0)

    def new_identifier(self) -> bytes:
        """IDENTIFIER_SIZE bytes for one new group."""
        identifier = Identifier()
        self.call("ncclGetUniqueId", ctypes.addressof(identifier))
        return ctypes.string_at(ctypes.addressof(identifier), IDENTIFIER_SIZE)

    def join(self, made: ctypes.c_void_p, count: int, identifier: bytes, rank: int) -> None:
        """Waits for all members of a group; the device of this one is current. ``made`` gets its communicator
        at once: another thread may abort it."""
        value = Identifier.from_buffer_copy(identifier)
        self.call("ncclCommInitRank", ctypes.addressof(made), count, value, rank)

    def split(self, part: ctypes.c_void_p, communicator: int, color: int, key: int) -> None:
        """Waits for all members; ``part`` gets the communicator of the part, none for a negative color."""
        self.call("ncclCommSplit", communicator, max(color, -1), key, ctypes.addressof(part), None)

    def share(self, communicator: int, address: int, size: int, stream: int) -> None:
        """Bytes of member 0 at all members, once the stream has got there."""
        self.call("ncclBroadcast", address, address, size, _BYTES, 0, communicator, stream)

    def query(self, name: str, communicator: int) -> int:
        """ncclCommCount, ncclCommUserRank or ncclCommGetAsyncError."""
        value = ctypes.c_int()
        self.call(name, communicator, ctypes.addressof(value))
        return value.value

    def failure_of(self, communicator: int) -> errors.StatusError | None:
        """What happened to a communicator without our doing, such as another member's end."""
        result = self.query("ncclCommGetAsyncError", communicator)
        return None if result in (0, _IN_PROGRESS) else self._failure("a collective", result)

    def _failure(self, name: str, result: int) -> errors.StatusError:
        explanation = (self._explain(result) or b"").decode(errors="backslashreplace")
        last = (self._last(None) or b"").decode(errors="backslashreplace").strip()
        detail = f"; {last}" if last else ""
        return _ERRORS.get(result, errors.InternalError)(f"{name} of NCCL failed: {explanation}{detail}")


@cache
def library() -> Nccl:
    """The library, loaded when it is first asked for. UNAVAILABLE when it is missing or too old."""
    return Nccl(_open())


def _open() -> ctypes.CDLL:
    failure: OSError | None = None
    for candidate in (*map(str, _packaged()), _SONAME):
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            errors.pass_interruption(error)
            failure = failure or error
    raise errors.UnavailableError(
        f"channels need the NCCL library, which cannot be loaded ({failure}); install it with {_INSTALL}"
    )


def _packaged() -> list[Path]:
    """Where the package ``nvidia-nccl-cu…`` puts the library."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return []
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return [path for folder in folders if (path := Path(folder, "lib", _SONAME)).exists()]
