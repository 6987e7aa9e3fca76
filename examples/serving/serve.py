"""Runs the application with a small HTTP server: python examples/serving/serve.py --port=8000

Enough for examples and tests; `uvicorn --factory app:Application` in this folder runs it as well.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
from contextlib import nullcontext, suppress
from http import HTTPStatus
from typing import Any

from app import Application

MOST_HEADER = 1 << 16
MOST_REST = 1 << 20
"""Bytes of a request that are read though it has been answered; with more to come the connection ends."""
SECONDS = 60.0
"""For which a client may neither send what it has begun nor take what it is sent."""


class Refused(Exception):
    """What came is no request; the argument is the status of the answer."""


class Head:
    """The first line and the headers of a request."""

    def __init__(self, data: bytes) -> None:
        """Refused for what HTTP/1.1 does not have, or this server."""
        first, *lines = data.decode("latin-1").split("\r\n")
        method, target, version = [*first.split(" "), "", ""][:3]
        if version not in ("HTTP/1.0", "HTTP/1.1") or not method or not target or first.count(" ") != 2:
            raise Refused(HTTPStatus.BAD_REQUEST)
        self.headers: list[tuple[bytes, bytes]] = []
        known: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            name = name.lower()
            if not colon or not name or name.strip() != name or (name == "content-length" and name in known):
                raise Refused(HTTPStatus.BAD_REQUEST)
            known[name] = value.strip()
            self.headers.append((name.encode("latin-1"), known[name].encode("latin-1")))
        if "transfer-encoding" in known:
            raise Refused(HTTPStatus.NOT_IMPLEMENTED)
        length = known.get("content-length", "0")
        if not length.isdecimal() or not length.isascii() or len(length) > 18:
            raise Refused(HTTPStatus.BAD_REQUEST)
        self.length = int(length)
        self.is_new = version == "HTTP/1.1"
        wishes = [wish.strip() for wish in known.get("connection", "").lower().split(",")]
        self.keeps = self.is_new and "close" not in wishes
        self.waits = self.is_new and known.get("expect", "").lower() == "100-continue"
        """For a sign before it sends its body."""
        path, _, query = target.partition("?")
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": version[5:], "method": method,
            "path": path, "query_string": query.encode("latin-1"), "headers": self.headers,
        }  # fmt: skip


class Connection:
    """One client: requests one after the other (HTTP/1.1 with Content-Length)."""

    def __init__(self, application: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._application = application
        self._reader = reader
        self._writer = writer
        self._received = bytearray()
        self._has_left = False
        self._left: int | None = 0
        """Bytes of the request that have not been given to the application; None: it has all."""
        self._answer = b""
        """What of the answer waits for its first part."""
        self._may_chunk = True
        self._is_chunked = True
        self._waits = False
        """For the sign that it may go on."""
        self._is_bare = False
        """Whether the answer has no body: a client would take it for the next answer."""

    async def serve(self) -> None:
        try:
            while await self._one():
                pass
        except Refused as refusal:
            await self._refuse(refusal.args[0])
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writer.close()

    async def _fill(self, seconds: float | None = None) -> bool:
        """More bytes; False at the end, also of a client from which none come in time, or that has not taken
        all of its answer when it leaves."""
        if self._has_left:
            return False
        try:
            async with nullcontext() if seconds is None else asyncio.timeout(seconds):
                data = await self._reader.read(MOST_HEADER)
        except (TimeoutError, ConnectionError):
            data = b""
        self._has_left = not data
        self._received += data
        return bool(data)

    async def _one(self) -> bool:
        """One request; whether there may be another."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > MOST_HEADER:
                raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            if not await self._fill(SECONDS):
                return False
        head = Head(bytes(self._received[:end]))
        del self._received[: end + 4]
        self._left, self._may_chunk = head.length, head.is_new
        self._waits, self._is_bare = head.waits, head.scope["method"] == "HEAD"
        await self._application(head.scope, self._receive, self._send)
        if self._waits and self._left:  # what comes may be the body, or the next request
            return False
        while self._left is not None:  # of a request that was answered before its end
            if self._left > MOST_REST or (await self._receive())["type"] != "http.request":
                return False
        return head.keeps and not self._has_left

    async def _refuse(self, status: HTTPStatus) -> None:
        await self._send({
            "type": "http.response.start", "status": status,
            "headers": [(b"content-length", b"0"), (b"connection", b"close")],
        })  # fmt: skip
        with suppress(ConnectionError):
            await self._send({"type": "http.response.body"})

    async def _receive(self) -> dict[str, Any]:
        if self._left is None:  # the request has been read: what comes is that the client leaves
            while len(self._received) <= MOST_HEADER:
                if not await self._fill():
                    return {"type": "http.disconnect"}
            await asyncio.get_running_loop().create_future()  # it sends its next requests already
        if self._waits and self._left and not self._received:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._waits = False
        if not self._received and self._left and not await self._fill(SECONDS):
            return {"type": "http.disconnect"}
        body = bytes(self._received[: self._left])
        del self._received[: len(body)]
        self._left = (self._left or 0) - len(body)
        more = self._left > 0
        if not more:
            self._left = None
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: dict[str, Any]) -> None:
        """ConnectionError for a client that takes nothing for too long."""
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            self._is_chunked = b"content-length" not in headers and self._may_chunk
            if self._is_chunked:
                headers[b"transfer-encoding"] = b"chunked"
            status = HTTPStatus(message["status"])
            head = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
            head += [name + b": " + value for name, value in headers.items()]
            self._answer = b"\r\n".join([*head, b"", b""])
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._is_bare:
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self._writer.write(self._answer + body)
        self._answer = b""
        waits = self._writer.transport.get_write_buffer_size()
        try:
            async with asyncio.timeout(SECONDS) if waits else nullcontext():
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise ConnectionAbortedError("the client takes nothing") from None


def keep_garbage() -> None:
    """Python looks for circles of garbage among all objects that are there, which holds up all requests. So
    it leaves out what is there now, which lasts as long as the server, and looks less often: requests leave
    none."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def start(application: Any, port: int = 0) -> asyncio.Server:
    """A server on the loopback; port 0 takes one that is free."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(application, reader, writer).serve()

    return await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024)


async def serve_until(ending: asyncio.Event, application: Any, server: asyncio.Server) -> None:
    """While it is drained the server takes connections, so that who asks for its health is told."""
    await ending.wait()
    await application.drain()
    server.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="local-task")
    options = parser.parse_args()
    application = Application(options.device)
    await application.warm()
    server = await start(application, options.port)
    keep_garbage()
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ending = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await serve_until(ending, application, server)


if __name__ == "__main__":
    asyncio.run(main())
