"""An ASGI application: digits in batches, texts as streams. It needs jitree alone; any ASGI server runs it.

POST /classify {"image": 8x8 numbers}             {"digit": 7, "probabilities": [...]}
POST /generate {"text": "hello", "letters": 12}   a line for each letter, then {"end": true}
POST /reload                                      opens the programs anew; no request fails for it
GET  /metrics  GET /health
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engine import DecoderEngine

import jitree
from jitree.errors import DeadlineExceededError, InvalidArgumentError, StatusError
from jitree.integrations.batching import Batcher, PaddedFunction
from jitree.integrations.statuses import http_status
from jitree.integrations.streams import Streams

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]
DIGITS = Path(__file__).parent.parent / "digits" / "digits.llvm-cpu.vmfb"
MOST_BYTES = 1 << 16
MOST_SECONDS = 3600


class Models:
    """What one loading of the programs has; the next one gets what comes then."""

    def __init__(self, device: str, waiting: int, timeout: float) -> None:
        self.sessions = [jitree.Session(device), jitree.Session(device)]
        classify = PaddedFunction(self.sessions[0].load(DIGITS).classify)
        # The digits take less time than a batch does to get to another thread and back: it waits for more.
        self.batcher = Batcher(classify, size=64, delay=0.002, waiting=waiting, timeout=timeout)
        self.streams = Streams(DecoderEngine(self.sessions[1]), waiting=waiting, timeout=timeout)

    async def warm(self) -> None:
        """What first calls do beyond others, such as importing, is done for no request."""
        await self.batcher(np.zeros((8, 8), np.float32))
        async with self.streams(("a", 2)) as stream:
            async for _ in stream:
                pass

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
        self._answered: Counter[int] = Counter()
        self._seconds = 0.0
        self._left = 0
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
        await self._models.drain()
        await asyncio.gather(*self._draining)
        while self._answering:
            self._is_answered.clear()
            await self._is_answered.wait()

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
        except StatusError as error:
            await reply.fail({"error": str(error)}, http_status(error))
        except ConnectionError:
            client.has_left = True
        except Exception as error:
            await reply.fail({"error": f"{type(error).__name__}: {error}"}, 500)
        self._left += client.has_left
        self._answered[reply.status] += 1
        self._seconds += time.monotonic() - begun

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        is_waited_for = not self._models.batcher.draining
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
        text, letters = request.get("text"), request.get("letters", 12)
        if not isinstance(text, str) or type(letters) is not int:
            raise InvalidArgumentError("expected a text, and letters as an integer")
        async with self._models.streams((text, letters), timeout=_timeout(request)) as stream:
            async for letter in stream:
                await reply.part({"letter": letter})
        await reply.part({"end": True}, is_last=True)

    async def _reload(self, body: bytes, reply: Reply) -> None:
        async with self._reloading:
            new, old = await asyncio.to_thread(Models, *self._options), self._models
            await new.warm()
            self._models = new
            draining = asyncio.create_task(old.drain())
            self._draining.add(draining)
            draining.add_done_callback(self._draining.discard)
        await reply.json({"reloaded": True})

    async def _metrics(self, body: bytes, reply: Reply) -> None:
        lines = [f'http_responses{{status="{status}"}} {count}' for status, count in self._answered.items()]
        lines += [f"http_seconds_total {self._seconds:.6f}", f"http_clients_left {self._left}"]
        for name, queue in (("batch", self._models.batcher), ("stream", self._models.streams)):
            lines += [f"{name}_{key} {value}" for key, value in queue.metrics.items()]
            lines.append(f"{name}_waiting {queue.waiting}")
        await reply.whole("\n".join([*lines, ""]).encode(), b"text/plain; version=0.0.4")

    async def _health(self, body: bytes, reply: Reply) -> None:
        is_draining = self._models.batcher.draining
        await reply.json({"draining": is_draining}, 503 if is_draining else 200)


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

    async def fail(self, value: object, status: int) -> None:
        """Also in the middle of an answer, whose last line it is then."""
        if self.status:
            await self.part(value, is_last=True)
        else:
            await self.json(value, status)

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


def _timeout(request: dict[str, Any]) -> float | None:
    seconds = request.get("timeout")
    if seconds is not None and (type(seconds) not in (int, float) or not seconds < MOST_SECONDS):
        raise InvalidArgumentError(f"timeout: expected seconds, less than {MOST_SECONDS}")
    if seconds is not None and seconds <= 0:
        raise DeadlineExceededError("the request had no time left")
    return seconds
