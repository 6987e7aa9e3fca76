"""Opens NCCL and makes its communicators, one for each member of a group.

The package ``nvidia-nccl`` brings the library only, so the dozen functions are declared here, each checked;
RATIONALE.md says why not by NVIDIA's bindings. Communicators are given back where calls of NCCL may be made.

NCCL notices that another member has ended where sockets carry what they compute, not where memory of the GPUs
does. So members of a group look after each other (`Presence`), and find each other by their first broadcast.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree import errors
from jitree.base.finalizers import guard
from jitree.base.platform import open_library
from jitree.errors import CancelledError, StatusError, is_interruption, pass_interruption
from jitree.hal.groups.presence import FAILED, LEFT, NOTE_BYTES, Presence
from jitree.hal.groups.rendezvous import wait_looking

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext
    from jitree.cuda.stream import Stream

_FINAL_SECONDS: Final = 5.0
"""For which the end of a group waits for its other members."""
_NAME_SECONDS: Final = 0.2
"""In which all connections of a process that has ended are closed: NCCL's and those of the members."""
_NON_BLOCKING: Final = 0x1
"""A stream whose work is not ordered with that of others."""
_SEND: Final = "ncclSend"
_RECEIVE: Final = "ncclRecv"
_PEER: Final = 3
"""The place of the other member among the arguments of these two."""

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


def _share(library: Nccl, stream: Stream, communicator: int, address: int) -> None:
    api = stream.api
    stream.context.enter()
    own = stream.context.make("cuStreamCreate", (_NON_BLOCKING,), "cuStreamDestroy")
    try:
        library.share(communicator, address, NOTE_BYTES, int(own))
        api.synchronize_stream(own.handle)
    finally:
        own.close()


class Communicator:
    """Owns what NCCL has of one member of a group; it ends once.

    It exists before NCCL makes anything: what has an owner is not lost by an interrupt.
    """

    def __init__(self, library: Nccl, context: CudaContext) -> None:
        self._made = ctypes.c_void_p()
        self._owned = [self._made]
        self._presence: Presence | None = None
        """Of its members, where there are others."""
        self._library = library
        self._context = context
        self._lock = guard()
        self._has_ended = False
        self._asking = 0
        """The thread that asks for the failure."""

    @property
    def handle(self) -> int:
        """0: NCCL has made none, or has given it back."""
        return self._made.value or 0

    def join(
        self,
        stream: Stream,
        connect: Callable[[ctypes.c_void_p], None],
        seconds: float,
        require_members: Callable[[], object] = bool,
    ) -> bool:
        """Has ``connect`` make it, whose members know of each other; False if that makes none. Waits for all
        of them, until the call is to end, ``require_members`` raises, or one is late.

        What ``connect`` gives at once, another thread may abort.
        """

        def run() -> None:
            self._context.enter()
            try:
                connect(self._made)
            except StatusError:
                self._made.value = None
                raise
            if self._has_ended:  # nobody has waited for it
                self._give_back("ncclCommAbort")
            elif self.handle:
                self._meet(stream)

        try:
            wait_looking(run, seconds, require_members)
            self._context.enter()
        except BaseException as error:
            self.abort(str(error))  # the thread may still wait
            raise
        return bool(self.handle)

    def _meet(self, stream: Stream) -> None:
        """Connects members of a new group, where there are others. Waits for all, and for nothing else that
        the GPU does."""
        rank = self._library.query("ncclCommUserRank", self.handle)
        count = self._library.query("ncclCommCount", self.handle)
        if count == 1:
            return
        presence = Presence(rank, count)
        try:
            # A piece of the GPU's memory may still be used by earlier work.
            buffer = stream.pinned(NOTE_BYTES)
            note = buffer.host_array()
            if rank == 0:
                note[:] = np.frombuffer(presence.invite(), np.uint8)
            _share(self._library, stream, self.handle, buffer.address)
            self._require_wanted()  # an aborted broadcast looks like one that is done
            if rank != 0:
                presence.answer(note.tobytes())
            self._presence = presence  # from here on an abort ends it, and its wait
            self._require_wanted()
            if rank == 0:
                presence.await_all()
        except BaseException as error:
            presence.end(FAILED, str(error))
            raise

    def _require_wanted(self) -> None:
        if self._has_ended:
            raise CancelledError("the group was given up while its members joined")

    def begin(self, name: str, arguments: tuple[int, ...] = ()) -> None:
        """This member takes part in an operation: a call of NCCL that comes next."""
        if self._presence is None:
            return
        progress = self._presence.progress
        if name == _SEND:
            progress.sent[arguments[_PEER]] += 1
        elif name == _RECEIVE:
            progress.received[arguments[_PEER]] += 1
        else:
            progress.whole += 1

    def require_members(self) -> None:
        """Raises what happened to the group."""
        failure = self.failure()
        if failure is not None:
            raise failure

    def failure(self) -> StatusError | None:
        """What happened to the group, such as another member's end."""
        with self._lock:
            if self._has_ended:
                return None
            missing = None if self._presence is None else self._presence.failure()
            if missing is not None:
                return missing
            self._asking = get_ident()
            try:
                failure = self._library.failure_of(self.handle)
            finally:
                self._asking = 0
        return None if failure is None else self.named(failure)

    def named(self, failure: StatusError) -> StatusError:
        """Names the member that has ended in a failure that NCCL noticed first."""
        end = time.monotonic() + _NAME_SECONDS
        while self._presence is not None and time.monotonic() < end:
            missing = self._presence.failure()
            if missing is not None:
                return missing
            time.sleep(_NAME_SECONDS / 20)
        return failure

    def leave(self) -> None:
        """The other members hear that this one begins nothing more; its work is done."""
        if self._presence is not None:
            self._presence.end(LEFT)

    def abort(self, reason: str) -> None:
        """What is in progress ends at once, on the GPU too; calls of NCCL on other threads fail. The other
        members hear why."""
        try:
            if self._end() and self._presence is not None:
                self._presence.end(FAILED, reason)
        finally:
            self._give_back("ncclCommAbort")

    def release(self) -> None:
        """Its work is done. Other members take part, which may have ended: it does not wait long for them."""
        if self._asking == get_ident():  # the garbage collector runs in `failure`
            return
        try:
            if self._end():
                self.leave()
                self._give_back("ncclCommDestroy" if self._is_finalized() else "ncclCommAbort")
        except BaseException:
            self._give_back("ncclCommAbort")
            raise
        finally:
            ABANDONED.pop(self, None)

    def _give_back(self, name: str) -> None:
        """By a call of NCCL, once: functions in C, which nothing interrupts, take it from here to there."""
        if self.handle:
            self._context.enter()
            with suppress(IndexError):
                next(map(self._library.function(name), map(self._owned.pop, (-1,))))

    def _is_finalized(self) -> bool:
        is_whole = self._presence is None or self._presence.failure() is None
        try:
            return bool(self.handle) and is_whole and wait_looking(self._finalize, _FINAL_SECONDS)
        except StatusError as error:
            if is_interruption(error):
                raise
            return False
        except RuntimeError as error:  # the interpreter exits, and starts no more threads
            pass_interruption(error)
            return self._finalize()

    def _finalize(self) -> bool:
        self._context.enter()
        return self._library.attempt("ncclCommFinalize", self.handle)

    def _end(self) -> bool:
        """Whether it ends now."""
        with self._lock:
            ended, self._has_ended = self._has_ended, True
        return not ended


ABANDONED: Final[dict[Communicator, None]] = {}
"""Those of channels that nothing refers to, until they are given back: finalizers run anywhere, so they only
note them."""


def release_abandoned() -> None:
    """Gives back the communicators of channels that are no longer used; their work must be done."""
    for communicator in tuple(ABANDONED):
        communicator.release()


class Identifier(ctypes.Structure):
    """Declares ncclUniqueId, which is passed by value."""

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
    """Calls the functions of a loaded library."""

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
        """Calls NCCL to give back what is unused, and says whether that succeeded."""
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
        """Splits a communicator: ``part`` gets this part's, none for a negative color. Waits for all
        members."""
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
            return open_library(candidate)
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
