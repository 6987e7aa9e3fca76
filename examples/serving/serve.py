"""Runs the application with a small HTTP server: python examples/serving/serve.py --port=8000

Enough for examples and tests; `uvicorn --factory app:Application` in this folder runs it as well.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from http import HTTPStatus
from typing import Any

from app import Application

_MOST_HEADER = 1 << 16


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
        self._is_chunked = True

    async def serve(self) -> None:
        try:
            while await self._one():
                pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writer.close()

    async def _fill(self) -> bool:
        """More bytes; False at the end."""
        data = b"" if self._has_left else await self._reader.read(_MOST_HEADER)
        self._has_left = not data
        self._received += data
        return bool(data)

    async def _one(self) -> bool:
        while b"\r\n\r\n" not in self._received:
            if len(self._received) > _MOST_HEADER or not await self._fill():
                return False
        head, _, rest = bytes(self._received).partition(b"\r\n\r\n")
        self._received[:] = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, path, _ = [*first.split(" "), "", ""][:3]
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            await self._send({"type": "http.response.start", "status": 400, "headers": []})
            await self._send({"type": "http.response.body"})
            return False
        self._left = int(length)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": path.partition("?")[0], "query_string": path.partition("?")[2].encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        await self._application(scope, self._receive, self._send)
        while self._left is not None and (await self._receive())["type"] == "http.request":
            pass  # of a request that was answered before its end
        return not self._has_left and headers.get("connection", "").lower() != "close"

    async def _receive(self) -> dict[str, Any]:
        if self._left is None:  # the request has been read: what comes is that the client leaves
            while await self._fill():
                pass
            return {"type": "http.disconnect"}
        if not self._received and self._left and not await self._fill():
            return {"type": "http.disconnect"}
        body = bytes(self._received[: self._left])
        del self._received[: len(body)]
        self._left -= len(body)
        more = self._left > 0
        if not more:
            self._left = None
        return {"type": "http.request", "body": body, "more_body": more}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            self._is_chunked = b"content-length" not in headers
            if self._is_chunked:
                headers[b"transfer-encoding"] = b"chunked"
            status = HTTPStatus(message["status"])
            head = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
            head += [name + b": " + value for name, value in headers.items()]
            self._writer.write(b"\r\n".join([*head, b"", b""]))
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._is_chunked:
            body = (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self._writer.write(body)
        await self._writer.drain()


async def start(application: Any, port: int = 0) -> asyncio.Server:
    """A server on the loopback; port 0 takes one that is free."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(application, reader, writer).serve()

    return await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="local-task")
    options = parser.parse_args()
    application = Application(options.device)
    server = await start(application, options.port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ending = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    await ending.wait()
    server.close()
    await application.drain()


if __name__ == "__main__":
    asyncio.run(main())
