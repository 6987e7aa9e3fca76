"""Tells readers of calls, imports, commands, transfers and allocations as they begin and end.

Each source of events (a device, the calls of a session, a function) has one word, ``readers``, which is empty
while nothing looks: that is all that its code tests. What has readers is done where Python sees it.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NoReturn, Protocol

from jitree.base.arguments import said, shown
from jitree.base.finalizers import Unique, guard
from jitree.errors import InternalError, InvalidArgumentError, StatusError, is_interruption

CALL: Final = "call"
PART: Final = "part"
"""Of a call, from one wait to the next."""
FUNCTION: Final = "function"
IMPORT: Final = "import"
DISPATCH: Final = "dispatch"
"""A command; the others, as transfers, are ``fill``, ``copy``, ``update``, ``read``, ``write`` and
``collective``."""
ALLOCATION: Final = "allocation"
NOTE: Final = "note"

BUILDING: Final = "building"
"""Topics of notes: machine code begins to be built,"""
BUILT: Final = "built"
"""it is there, built by this process or the driver,"""
FOUND: Final = "found"
"""or found in the cache or a pack;"""
MISSING: Final = "missing"
"""it is not there, and something slower takes its place;"""
SLOW: Final = "slow"
"""calls go a slow way;"""
BUILDER: Final = "builder"
"""a builder has ended early, and another one begins."""


class ObservedEvent(Unique):
    """Something that begins and ends."""

    noted: Any = None
    """What the recorder of a profile knows of it, while it goes on."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name


class CallEvent(ObservedEvent):
    """Tells of a call, a part of one, or a call by Python. The kinds are CALL of a program's function, PART,
    and FUNCTION with what it gives and gets."""

    machine: Any = None
    """What runs it, of a CALL or a PART."""
    results: Any = None
    failed = True
    """Until a FUNCTION has results."""
    fence: Any = None
    """What is reached when they are computed, of a FUNCTION that was submitted and ends before."""

    def __init__(self, kind: str, name: str, arguments: Sequence[Any], named: Any = None) -> None:
        self.kind = kind
        self.name = name
        self.arguments = arguments
        self.named: dict[str, Any] = named


class ImportCall(ObservedEvent):
    """An import that Python makes for a program."""

    def __init__(self, module: Any, number: int) -> None:
        super().__init__(IMPORT, "")
        self.module = module
        self.number = number
        """Of the import in the module, which has its name."""


class Handle(int):
    """Refers to an argument in a register of a machine."""


Place = tuple[int, int]
"""Where machine code is: the address of the machine's STATE, and of the operands of the import that is
called."""


class Allocated(ObservedEvent):
    """A program has asked for memory of a device, which holds nothing yet."""

    def __init__(self, device: Any, extent: Place, buffer: Any = None, place: Place | None = None) -> None:
        """``extent``: address and bytes. Machine code makes no buffer, of memory of the host."""
        self.kind = ALLOCATION
        self.name = "alloca"
        self.device = device
        self.extent = extent
        self.buffer = buffer
        self.place = place


class Note(ObservedEvent):
    """Tells what the process does beside calls. It builds code, finds it, goes without, or goes a slow
    way."""

    def __init__(self, topic: str, text: str, level: str, seconds: float) -> None:
        super().__init__(NOTE, text)
        self.topic = topic
        self.level = level
        """``debug``, ``info`` or ``warning``."""
        self.seconds = seconds


class EventReader:
    """Reads events; those that it does not care for go by."""

    needs_python = True
    """Whether Python has to make the calls that it reads. If not, machine code makes them as without one."""

    is_exclusive = False
    """Whether no profile may look at what it looks at."""

    reads_awaited = False
    """Whether it reads awaited and submitted calls (FUNCTION), of which a thread has several at once."""

    reads_calls = False
    """Whether it reads that calls by machine code begin (CALL), with what the program gets. Those have no
    end."""

    def submitted(self, work: Any) -> EventReader | None:
        """Tells that this thread gives a device a transfer or list. A command buffer is one, too.

        ``work``: what was submitted. Gives what reads the events of its steps, which are done one by one
        then; None: they need not be. What this raises ends the call.
        """
        return None

    def begins(self, event: Any) -> None:
        """Is told that ``event`` begins, on the thread that does it. What this raises ends it: it fails with
        that.
        """

    def ends(self, event: Any) -> None:
        """Is told that ``event`` has been done. A call has ended, however, even if a reader was not told that
        it begins.

        What this raises is raised in its place.
        """


async def told(readers: Sequence[EventReader], call: CallEvent, work: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits the work of a call, and tells readers when it begins and ends."""
    try:
        for reader in readers:
            reader.begins(call)
        call.results, call.failed = await work(), False
        return call.results
    finally:  # also when its task is cancelled
        for reader in readers:
            reader.ends(call)


class NoteSource:
    """The one source of notes."""

    readers: tuple[EventReader, ...] = ()

    def readers_changed(self) -> None:
        """Only Python tells of them."""


process: Final = NoteSource()

_changing: Final = guard()
"""Forgotten readers leave wherever the garbage collector runs."""


class Source(Protocol):
    """What events come from."""

    readers: tuple[EventReader, ...]

    def readers_changed(self) -> None:
        """Machine code, which tells readers nothing, does nothing while there are any."""


def listen(source: Source, reader: EventReader) -> None:
    """From now on a reader is told of all events. Others go on being told."""
    if not isinstance(reader, EventReader):
        raise InvalidArgumentError(f"listen: {shown(reader)} reads no events")
    _replace(source, lambda readers: (*readers, reader))


def stop_listening(source: Source, reader: EventReader) -> None:
    """Takes :func:`listen` back."""
    _replace(source, lambda readers: tuple(other for other in readers if other is not reader))


def _replace(source: Source, change: Callable[[tuple[EventReader, ...]], tuple[EventReader, ...]]) -> None:
    with _changing:
        before: tuple[EventReader, ...] | None = None
        while before is not source.readers:  # else another one has stopped while this was made
            before = source.readers
            after = change(before)
        source.readers = after
        source.readers_changed()


class _ThisReader(_local):
    is_reading = False


_this_thread = _ThisReader()


def is_reading() -> bool:
    """Whether a reader runs on this thread: what it submits itself is not told."""
    return _this_thread.is_reading


class telling:
    """Tells readers that a call begins, and that it ends."""

    __slots__ = ("_event", "_readers")

    def __init__(self, readers: Sequence[EventReader], event: ObservedEvent) -> None:
        self._readers = readers
        self._event = event

    def __enter__(self) -> None:
        try:
            for reader in self._readers:
                reader.begins(self._event)
        except BaseException:  # Ctrl-C may come in the middle
            self.__exit__()
            raise

    def __exit__(self, *exception: object) -> None:
        for reader in self._readers:
            reader.ends(self._event)


def perform(event: ObservedEvent, readers: Sequence[EventReader], work: Callable[[], object]) -> None:
    """Does a step of a device and tells its readers."""
    tell(event, [reader.begins for reader in readers])
    work()
    tell(event, [reader.ends for reader in readers])


def tell(step: ObservedEvent, hear: Iterable[Callable[[Any], object]]) -> None:
    """Tells readers of a step of a device. What they submit themselves is not told."""
    this, outer = _this_thread, _this_thread.is_reading
    try:
        this.is_reading = True
        for one in hear:
            one(step)
    except Exception as error:
        if isinstance(error, StatusError) or is_interruption(error):
            raise
        _fail(step, error)
    finally:
        this.is_reading = outer


def _fail(event: ObservedEvent, error: Exception) -> NoReturn:
    """Raises what a reader has raised of an event. Fences carry statuses only: anything else goes with one to
    the call that waits."""
    from jitree.base.folding import fold_tracebacks

    failure = InternalError(f"what looks at {event.name} failed: {said(error)}")
    fold_tracebacks(error)
    failure.raised, failure.raised_at = error, error.__traceback__
    raise failure from error


class unobserved:
    """What this thread submits inside is not told."""

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        self._outer, _this_thread.is_reading = _this_thread.is_reading, True

    def __exit__(self, *exception: object) -> None:
        _this_thread.is_reading = self._outer
