"""Serves an editor by the Debug Adapter Protocol. Messages are JSON, with their lengths in front.

The main thread runs the program and waits while it is stopped; another thread reads and answers requests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial, partialmethod
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final

from jitree import errors
from jitree.base.finalizers import guard
from jitree.debug.breakpoints import names_in
from jitree.debug.debugger import Debugger, FrontEnd, Stopped, describe_dispatch
from jitree.debug.frames import assign, evaluate
from jitree.debug.shell import source_of
from jitree.debug.stepper import CONTINUE, FINISH, NEXT, QUIT, STEP, Way

if TYPE_CHECKING:
    from io import RawIOBase

    from jitree.debug.breakpoints import Breakpoint
    from jitree.debug.code import FunctionCode
    from jitree.debug.frames import Frame

_LENGTH: Final = b"content-length:"
_MOST: Final = 64 << 20
"""Bytes of a message; a longer one is none."""
_THREAD: Final = 1
_CAPABILITIES: Final = (
    "ConfigurationDoneRequest FunctionBreakpoints ConditionalBreakpoints EvaluateForHovers SetVariable "
    "TerminateRequest"
)

Body = dict[str, Any]


class Adapter(FrontEnd):
    """The server of one editor."""

    def __init__(self, read: IO[bytes] | RawIOBase, write: IO[bytes]) -> None:
        """``read`` has no buffer: a thread may wait in it when the process ends."""
        self._thread = threading.Thread(target=self._serve, name="debug adapter", daemon=True)
        self._read, self._write = read, write
        self._writing = guard()
        self._sequence = 0
        self._launches: SimpleQueue[Body | None] = SimpleQueue()
        self._configured = threading.Event()
        self._ways: SimpleQueue[Way] = SimpleQueue()
        self._debugger: Debugger | None = None
        self._stopped: Stopped | None = None
        self._listings: list[FunctionCode] = []
        """Functions whose listings the editor has been told of; their place and 1 is their number."""
        self._of_sources: dict[object, list[int]] = {}
        """Numbers of the breakpoints of each source."""
        self._stops_on_entry = True
        self._has_left = self._is_ending = False

    # -- the main thread -------------------------------------------------------------------------------

    def launched(self) -> Body | None:
        """Waits for what the editor wants to be debugged; None: it has left."""
        self._thread.start()
        return self._launches.get()

    def attach(self, debugger: Debugger) -> None:
        self._debugger = debugger
        if not self._stops_on_entry:
            debugger.stepper.way = Way(CONTINUE)
        self._event("initialized")
        self._configured.wait()

    def ask(self, stopped: Stopped) -> Way:
        if self._is_ending:
            return Way(QUIT)
        self._stopped = stopped
        reason, kind = stopped.stop.reason, "entry" if self._stops_on_entry else "step"
        self._stops_on_entry = False
        if stopped.stop.error is not None:
            kind = "exception"
        elif reason.startswith(("breakpoint", "watch")):
            kind = "breakpoint"
        elif reason == "interrupted":
            kind = "pause"
        body = {"reason": kind, "threadId": _THREAD, "allThreadsStopped": True, "text": reason}
        if stopped.dispatch is not None:
            self.tell("\n".join(describe_dispatch(stopped.dispatch)))
        self._event("stopped", body)
        return self._ways.get()

    def tell(self, text: str) -> None:
        self._event("output", {"category": "console", "output": f"{text}\n"})

    @contextmanager
    def redirected(self) -> Iterator[None]:
        """What is printed in a ``with`` block goes to the editor; then the program is over."""
        code = 1
        try:
            with redirect_stdout(_Output(self)):
                yield
            code = 0
        except errors.StatusError as error:
            if not self._is_ending:
                self._event("output", {"category": "stderr", "output": f"{error}\n"})
        finally:
            self._event("terminated")
            self._event("exited", {"exitCode": code})
            self._thread.join()  # the editor says that it has seen this, or is gone

    # -- messages --------------------------------------------------------------------------------------

    def _event(self, name: str, body: Body | None = None) -> None:
        self._send({"type": "event", "event": name, "body": body or {}})

    def _send(self, message: Body) -> None:
        with self._writing:
            self._sequence += 1
            data = json.dumps({"seq": self._sequence, **message}).encode()
            try:
                self._write.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
                self._write.flush()
            except (OSError, ValueError) as error:  # the editor has gone; the reader notices too
                errors.pass_interruption(error)
                self._has_left = True

    def _message(self) -> Body | None:
        """Reads a request. None at the end; UNAVAILABLE for what is no message."""
        length = b""
        while (line := self._read.readline(1 << 12)).strip():
            if line.lower().startswith(_LENGTH):
                length = line[len(_LENGTH) :].strip()
        if not line:
            return None
        if not length.isdigit() or int(length) > _MOST:
            raise errors.UnavailableError(
                "a message of the Debug Adapter Protocol begins with Content-Length"
            )
        data = b""
        while len(data) < int(length) and (part := self._read.read(int(length) - len(data))):
            data += part
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            errors.pass_interruption(error)
            raise errors.UnavailableError(f"a message of the editor is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise errors.UnavailableError("a message of the editor is no object")
        return found

    def _serve(self) -> None:
        try:
            while not self._has_left and (request := self._message()) is not None:
                self._answer(request)
        except errors.StatusError as error:
            self.tell(f"the debugger ends: {error}")
        finally:  # else the program waits for ever
            self._leave()

    def _answer(self, request: Body) -> None:
        name = str(request.get("command"))
        arguments = request.get("arguments") or {}
        response: Body = {"type": "response", "request_seq": request.get("seq", 0), "command": name}
        after = None
        try:
            handler = getattr(self, f"_on_{name}", None)
            if handler is None:
                raise errors.NotFoundError(f"the request '{name}' is not known")
            found = handler(arguments)
            after = found if callable(found) else None
            response |= {"success": True, "body": found if isinstance(found, dict) else {}}
        except errors.StatusError as error:
            response |= _refused(error.message)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            errors.pass_interruption(error)
            response |= _refused(f"the arguments of '{name}' are no such: {error!r}")
        self._send(response)
        if after is not None:
            after()

    def _leave(self) -> None:
        """Ends the program: the editor has gone."""
        self._has_left = True
        self._end()

    def _end(self) -> None:
        self._is_ending = True
        self._launches.put(None)
        self._configured.set()
        if self._debugger is not None:
            self._debugger.stepper.is_interrupted = True
        self._ways.put(Way(QUIT))

    # -- requests: the beginning and the end -----------------------------------------------------------

    def _on_initialize(self, arguments: Body) -> Body:
        return {f"supports{name}": True for name in _CAPABILITIES.split()}

    def _on_launch(self, arguments: Body) -> None:
        self._stops_on_entry = bool(arguments.get("stopOnEntry", True))
        self._launches.put(arguments)

    def _on_configurationDone(self, arguments: Body) -> Callable[[], None]:
        return self._configured.set

    def _on_disconnect(self, arguments: Body) -> Callable[[], None]:
        return self._leave

    def _on_terminate(self, arguments: Body) -> Callable[[], None]:
        return self._end  # the editor disconnects when it has been told of the end

    def _on_threads(self, arguments: Body) -> Body:
        return {"threads": [{"id": _THREAD, "name": "program"}]}

    # -- requests: breakpoints -------------------------------------------------------------------------

    def _require_debugger(self) -> Debugger:
        if self._debugger is None:
            raise errors.InvalidArgumentError("nothing is launched yet")
        return self._debugger

    def _on_setBreakpoints(self, arguments: Body) -> Body:
        source, lines = arguments["source"], arguments.get("breakpoints") or []
        number, breakpoints = source.get("sourceReference"), self._require_debugger().breakpoints
        if number:
            code = self._listings[number - 1]
            places, add = list(code.lines), partial(breakpoints.add_at, code)
            return self._replaced(
                number, lines, lambda row: add(places[row["line"] - 1], row.get("condition", ""))
            )
        path = source["path"]
        return self._replaced(path, lines, lambda row: breakpoints.add(_place(f"{path}:{row['line']}", row)))

    def _on_setFunctionBreakpoints(self, arguments: Body) -> Body:
        add = self._require_debugger().breakpoints.add
        rows = arguments["breakpoints"]
        return self._replaced("functions", rows, lambda row: add(_place(row["name"], row)))

    def _on_setExceptionBreakpoints(self, arguments: Body) -> None: ...

    def _replaced(self, key: object, rows: Sequence[Body], add: Callable[[Body], Breakpoint]) -> Body:
        """Puts breakpoints in place of those of a source; says of each whether there is such a place."""
        breakpoints = self._require_debugger().breakpoints
        for number in self._of_sources.pop(key, []):
            breakpoints.remove(number)
        found: list[Body] = []
        numbers = self._of_sources[key] = []
        for row in rows:
            try:
                item = add(row)
                numbers.append(item.number)
                found.append({"verified": True, "id": item.number})
            except errors.StatusError as error:
                found.append({"verified": False, "message": error.message})
        return {"breakpoints": found}

    # -- requests: looking -----------------------------------------------------------------------------

    def _require_stopped(self) -> Stopped:
        if self._stopped is None:
            raise errors.InvalidArgumentError("the program is running")
        return self._stopped

    def _frame(self, arguments: Body, name: str = "frameId") -> Frame:
        number, frames = int(arguments[name]), self._require_stopped().frames
        if not 0 < number <= len(frames):
            raise errors.NotFoundError(f"there is no frame {number}")
        return frames[number - 1]

    def _on_stackTrace(self, arguments: Body) -> Body:
        frames, first = self._require_stopped().frames, int(arguments.get("startFrame") or 0)
        asked = list(enumerate(frames, 1))[first : first + int(arguments.get("levels") or len(frames))]
        return {"stackFrames": [self._shown(*row) for row in asked], "totalFrames": len(frames)}

    def _shown(self, number: int, frame: Frame) -> Body:
        body = {"id": number, "name": f"{frame.code.full_name}+{frame.offset:X}", "column": 1}
        try:
            path, line = source_of(frame)
            return body | {"line": line, "source": {"name": path.name, "path": str(path.resolve())}}
        except errors.NotFoundError:
            code = frame.code
        if code not in self._listings:
            self._listings.append(code)
        line = list(code.lines).index(frame.offset) + 1
        reference = self._listings.index(code) + 1
        source = {"name": f"{code.full_name}.vm", "sourceReference": reference}
        return body | {"line": line, "source": source}

    def _on_source(self, arguments: Body) -> Body:
        code = self._listings[arguments["sourceReference"] - 1]
        return {"content": "".join(f"{offset:08X} {text}\n" for offset, text in code.lines.items())}

    def _on_scopes(self, arguments: Body) -> Body:
        self._frame(arguments)
        scope = {"name": "Registers", "variablesReference": arguments["frameId"], "expensive": False}
        return {"scopes": [scope]}

    def _on_variables(self, arguments: Body) -> Body:
        frame = self._frame(arguments, "variablesReference")
        lines = self._require_debugger().show.registers(frame)
        pairs = (line.partition(" = ") for line in lines)
        rows = [{"name": name, "value": value, "variablesReference": 0} for name, _, value in pairs]
        return {"variables": rows}

    def _on_setVariable(self, arguments: Body) -> Body:
        frame, show = self._frame(arguments, "variablesReference"), self._require_debugger().show
        text = assign(
            frame, arguments["name"], arguments["value"], lambda text: evaluate(text, frame, {}, show), show
        )
        return {"value": text.partition(" = ")[2]}

    def _on_evaluate(self, arguments: Body) -> Body:
        frame = self._frame(arguments) if arguments.get("frameId") else None
        show, dispatch = self._require_debugger().show, self._stopped and self._stopped.dispatch
        value = evaluate(arguments["expression"], frame, names_in(dispatch), show)
        return {"result": show.text(value), "variablesReference": 0}

    # -- requests: going on ----------------------------------------------------------------------------

    def _go(self, kind: str, arguments: Body) -> Callable[[], None]:
        way = self._require_stopped().way(kind)
        self._stopped = None
        return lambda: self._ways.put(way)

    _on_continue, _on_next = partialmethod(_go, CONTINUE), partialmethod(_go, NEXT)
    _on_stepIn, _on_stepOut = partialmethod(_go, STEP), partialmethod(_go, FINISH)

    def _on_pause(self, arguments: Body) -> None:
        self._require_debugger().stepper.is_interrupted = True


class _Output:
    """What programs print, as events."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def write(self, text: str) -> int:
        self._adapter._event("output", {"category": "stdout", "output": text})
        return len(text)

    def flush(self) -> None: ...


def _refused(text: str) -> Body:
    return {"success": False, "message": text, "body": {"error": {"id": 1, "format": text}}}


def _place(text: str, row: Body) -> str:
    condition = row.get("condition")
    return f"{text} if {condition}" if condition else text
