"""An ASGI application: digits in batches, texts as streams. It needs jitree alone; any ASGI server runs it.

POST /classify {"image": 8x8 numbers}             {"digit": 7, "probabilities": [...]}
POST /generate {"text": "hello", "letters": 12, "stop": ["."]}
                                                  a line for each letter, then {"end": true} and why
POST /reload                                      opens the programs anew; no request fails for it
GET  /metrics                                     counters and a histogram, as Prometheus reads them
GET  /health                                      {"status": "ok"}, or with 503 {"status": "draining"}
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engine import Asked, DecoderEngine
from metrics import CONTENT_TYPE, Metrics, header, sample, text_of

import jitree
from jitree.errors import DeadlineExceededError, InvalidArgumentError, StatusError, UnavailableError
from jitree.integrations.batching import Batcher, PaddedFunction
from jitree.integrations.ray import http_status
from jitree.integrations.streams import Streams

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
DIGITS = Path(__file__).parent.parent / "digits" / "digits.llvm-cpu.vmfb"
MOST_BYTES = 1 << 16
MOST_SECONDS = 3600
CLIENT_LEFT = 499
"""In metrics, as other servers count it; HTTP has no status that nobody is sent."""


class Models:
    """What one loading of the programs has; the next one gets what comes then."""

    def __init__(self, device: str, waiting: int, timeout: float) -> None:
        self.sessions = [jitree.Session(device), jitree.Session(device)]
        classify = PaddedFunction(self.sessions[0].load(DIGITS).classify)
        # The digits take less time than a batch does to get to another thread and back: it waits for more.
        self.batcher = Batcher(classify, size=64, delay=0.002, waiting=waiting, timeout=timeout)
        self.streams = Streams(DecoderEngine(self.sessions[1]), waiting=waiting, timeout=timeout)

    async def warm(self) -> None:
        """What first calls do beyond others, such as importing, is done for no request. Nor is it counted as
        one."""
        queues = self.batcher, self.streams
        counts = [queue.metrics for queue in queues]
        for queue in queues:
            queue.metrics = dict(queue.metrics)
        await self.batcher(np.zeros((8, 8), np.float32))
        async with self.streams(Asked("a", 2)) as stream:
            async for _ in stream:
                pass
        for queue, count in zip(queues, counts, strict=True):
            queue.metrics = count

    def take_the_place_of(self, old: Models) -> None:
        """Counters of a process go up only."""
        self.batcher.count_on(old.batcher)
        self.streams.count_on(old.streams)

    async def drain(self) -> None:
        """Answers what was accepted, and closes the sessions."""
        await asyncio.gather(self.batcher.drain(), self.streams.drain())
        for session in self.sessions:
            await asyncio.to_thread(session.close)


class Application:
    """``await application(scope, receive, send)``, as ASGI has it."""

    def __init__(self, device: str = "local-task", waiting: int = 1024, timeout: float = 30.0) -> None:
        self._options = device, waiting, timeout
        self._models = Models(*self._options)
        self._reloading = asyncio.Lock()
        self._draining: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._measured = Metrics()
        self._answering = 0
        """Requests that came before draining and whose clients do not have all of the answer."""
        self._is_answered = asyncio.Event()
        self._routes = {
            ("POST", "/classify"): self._classify, ("POST", "/generate"): self._generate,
            ("POST", "/reload"): self._reload, ("GET", "/metrics"): self._metrics,
            ("GET", "/health"): self._health,
        }  # fmt: skip

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def warm(self) -> None:
        await self._models.warm()

    async def drain(self) -> None:
        """Returns when all requests are answered and the answers sent; more are refused with 503."""
        self._is_draining = True
        await self._models.drain()
        while self._answering:
            self._is_answered.clear()
            await self._is_answered.wait()
        await asyncio.gather(*self._draining)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self.drain()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One request. When its client leaves, what is done for it ends."""
        begun, reply, client = time.monotonic(), Reply(send), Client(receive)
        try:
            body = await client.body()
            async with self._counted(), client:
                await self._route(scope, body, reply)
        except ConnectionError:
            client.has_left = True
        except Exception as error:
            await reply.fail(error)
        self._measured.left += client.has_left
        path = scope["path"] if (scope["method"], scope["path"]) in self._routes else "other"
        self._measured.answered(path, reply.status or CLIENT_LEFT, time.monotonic() - begun)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        is_waited_for = not self._is_draining
        self._answering += is_waited_for
        try:
            yield
        finally:
            self._answering -= is_waited_for
            self._is_answered.set()

    async def _route(self, scope: dict[str, Any], body: bytes, reply: Reply) -> None:
        handler = self._routes.get((scope["method"], scope["path"]))
        if handler is None:
            await reply.json({"error": f"there is no {scope['method']} {scope['path']}"}, 404)
            return
        await handler(body, reply)

    async def _classify(self, body: bytes, reply: Reply) -> None:
        request = _parsed(body)
        try:
            with np.errstate(over="ignore"):
                image = np.asarray(request.get("image"), np.float32)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"image: {error}") from None
        if image.shape != (8, 8):
            raise InvalidArgumentError(f"image: expected 8x8 numbers but got shape {image.shape}")
        if not np.isfinite(image).all():
            raise InvalidArgumentError("image: expected finite numbers of binary32")
        probabilities = await self._models.batcher(image, timeout=_timeout(request))
        await reply.json({"digit": int(probabilities.argmax()), "probabilities": probabilities.tolist()})

    async def _generate(self, body: bytes, reply: Reply) -> None:
        request = _parsed(body)
        asked, timeout = _asked(request), _timeout(request)
        reason = ""
        try:
            reason = await self._write(asked, timeout, reply)
            await reply.part({"end": True, "finish_reason": reason}, is_last=True)
        except BaseException as error:
            reason = _cut_by(error)
            raise
        finally:
            if reply.status:
                self._measured.endings[reason] += 1

    async def _write(self, asked: Asked, timeout: float | None, reply: Reply) -> str:
        """Sends letters as they come; why they end."""
        reason = ""
        async with self._models.streams(asked, timeout=timeout) as stream:
            async for part in stream:
                reason = part.finish_reason
                for letter in part.letters:
                    await reply.part({"letter": letter})
        return reason

    async def _reload(self, body: bytes, reply: Reply) -> None:
        async with self._reloading:
            self._require_going_on()
            new, old = await asyncio.to_thread(Models, *self._options), self._models
            try:
                await new.warm()
                self._require_going_on()
            except BaseException:
                await new.drain()
                raise
            new.take_the_place_of(old)
            self._models = new
            draining = asyncio.create_task(old.drain())
            self._draining.add(draining)
            draining.add_done_callback(self._draining.discard)
        await reply.json({"reloaded": True})

    def _require_going_on(self) -> None:
        """UNAVAILABLE while draining: new programs would take requests again."""
        if self._is_draining:
            raise UnavailableError("no programs are opened any more; the server is being drained")

    async def _metrics(self, body: bytes, reply: Reply) -> None:
        lines = list(self._measured.lines())
        for name, queue in (("batch", self._models.batcher), ("stream", self._models.streams)):
            for key, value in queue.metrics.items():
                lines += header(f"{name}_{key}_total", "counter", f"{key} of the {name} queue")
                lines.append(sample(f"{name}_{key}_total", (), value))
            lines += header(f"{name}_waiting", "gauge", f"requests of the {name} queue that have not begun")
            lines.append(sample(f"{name}_waiting", (), queue.waiting))
        await reply.whole(text_of(lines), CONTENT_TYPE)

    async def _health(self, body: bytes, reply: Reply) -> None:
        """What shares out requests asks, and gives none to a server that is draining."""
        status, word = (503, "draining") if self._is_draining else (200, "ok")
        await reply.json({"status": word}, status)


class Client:
    """Who asks. A block with it ends when the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self.has_left = False
        self._receive = receive
        self._working: asyncio.Task[Any] | None = None

    async def body(self) -> bytes:
        """INVALID_ARGUMENT for more than is taken, ConnectionError of a client that leaves."""
        body, more = b"", True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ConnectionAbortedError("the client left before its request was complete")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MOST_BYTES:
                raise InvalidArgumentError(f"the request has more than {MOST_BYTES} bytes")
        return body

    async def __aenter__(self) -> None:
        self._working = asyncio.current_task()
        self._leaving: asyncio.Task[None] | None = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        if self._working is not None:
            self._working.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        leaving, self._leaving = self._leaving, None  # else it and its error are a circle of garbage
        assert leaving is not None
        leaving.cancel()
        try:
            await asyncio.wait((leaving,))
        except asyncio.CancelledError:
            if not self.has_left:
                raise
        if not self.has_left or self._working is None:
            return False
        self._working.uncancel()
        return kind is None or issubclass(kind, asyncio.CancelledError)


class Reply:
    """What a request is answered with."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """0: nothing has been sent."""

    async def whole(self, body: bytes, kind: bytes = b"application/json", status: int = 200) -> None:
        await self._start(kind, status, [(b"content-length", str(len(body)).encode())])
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, value: object, status: int = 200) -> None:
        await self.whole(json.dumps(value).encode(), status=status)

    async def part(self, value: object, is_last: bool = False) -> None:
        """A line of an answer of many."""
        if not self.status:
            await self._start(b"application/x-ndjson", 200, [])
        body = json.dumps(value).encode() + b"\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def fail(self, error: Exception) -> None:
        """Also in the middle of an answer, whose last line it is then, and says why it is cut."""
        if isinstance(error, StatusError):
            text, status = str(error), http_status(error)
        else:
            text, status = f"{type(error).__name__}: {error}", 500
        if self.status:
            await self.part({"error": text, "finish_reason": _cut_by(error)}, is_last=True)
        else:
            await self.json({"error": text}, status)

    async def _start(self, kind: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers = [(b"content-type", kind), *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request is no JSON: {error}") from None
    if not isinstance(request, dict):
        raise InvalidArgumentError("expected a JSON object")
    return request


def _cut_by(error: BaseException) -> str:
    """The finish reason of a text that does not end by itself; OpenAI's API has no names for these."""
    if isinstance(error, DeadlineExceededError):
        return "deadline"
    is_left = isinstance(error, asyncio.CancelledError | ConnectionError)
    return "client_gone" if is_left else "error"


def _asked(request: dict[str, Any]) -> Asked:
    text, letters, stops = request.get("text"), request.get("letters", 12), request.get("stop") or []
    if not isinstance(text, str) or type(letters) is not int:
        raise InvalidArgumentError("expected a text, and letters as an integer")
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidArgumentError("stop: expected a text or a list of texts")
    return Asked(text, letters, tuple(stops))


def _timeout(request: dict[str, Any]) -> float | None:
    seconds = request.get("timeout")
    if seconds is not None and (type(seconds) not in (int, float) or not seconds < MOST_SECONDS):
        raise InvalidArgumentError(f"timeout: expected seconds, less than {MOST_SECONDS}")
    if seconds is not None and seconds <= 0:
        raise DeadlineExceededError("the request had no time left")
    return seconds
