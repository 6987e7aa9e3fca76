"""The serving example, with real clients of HTTP on the loopback."""

from __future__ import annotations

import asyncio
import gc
import http.client
import importlib
import json
import select
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from tests.exposition import Samples, samples

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SECONDS = 60
CLIENTS, REQUESTS = 16, 6
LENGTH = {"end": True, "finish_reason": "length"}


class Server:
    """The application on an event loop of another thread."""

    def __init__(self, **options: Any) -> None:
        self.application: Any = None
        self.port = 0
        self._options = options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(SECONDS)

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.application = importlib.import_module("app").Application("local-sync", **self._options)
        server = await importlib.import_module("serve").start(self.application)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await importlib.import_module("serve").serve_until(self._end, self.application, server)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def ask(self, path: str, value: Any = None, method: str = "POST") -> tuple[int, Any]:
        connection = self.connect()
        try:
            return ask(connection, path, value, method)
        finally:
            connection.close()


def ask(
    connection: http.client.HTTPConnection, path: str, value: Any = None, method: str = "POST"
) -> tuple[int, Any]:
    body = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
    connection.request(method, path, body)
    answer = connection.getresponse()
    data = answer.read()
    if answer.getheader("content-type") == "application/x-ndjson":
        return answer.status, [json.loads(line) for line in data.splitlines()]
    return answer.status, json.loads(data) if data.startswith(b"{") else data.decode()


@pytest.fixture(scope="module", autouse=True)
def path() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES / "serving"))
    yield
    for name in ("app", "serve", "engine", "metrics", "decode", "model"):
        sys.modules.pop(name, None)
    sys.path[:] = [folder for folder in sys.path if not folder.startswith(str(EXAMPLES))]


@pytest.fixture(scope="module")
def server(path: None) -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def written(text: str, letters: int) -> str:
    """What the model writes, by itself."""
    decode = importlib.import_module("decode")
    with jitree.Session("local-sync") as session:
        return "".join(letter for _, letter in decode.Decoder(session).generate([text], letters))


def test_each_client_gets_its_own_answers_also_while_the_programs_are_reloaded(server: Server) -> None:
    images = np.random.default_rng(1).random((CLIENTS, REQUESTS, 8, 8), np.float32)
    classify = jitree.load(EXAMPLES / "digits" / "digits.llvm-cpu.vmfb", device="local-sync").classify
    texts = ["hello", "yes", "no", "what?"]
    full = {text: written(text, 5) for text in texts}

    def client(number: int) -> None:
        connection = server.connect()
        for image in images[number]:
            status, answer = ask(connection, "/classify", {"image": image.tolist()})
            assert status == 200, answer
            np.testing.assert_allclose(answer["probabilities"], np.asarray(classify(image)), rtol=1e-5)
        text = texts[number % len(texts)]
        status, lines = ask(connection, "/generate", {"text": text, "letters": 5})
        assert status == 200 and lines[-1] == LENGTH
        assert "".join(line["letter"] for line in lines[:-1]) == full[text]
        connection.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        clients = [threads.submit(client, number) for number in range(CLIENTS)]
        for _ in range(2):
            assert server.ask("/reload") == (200, {"reloaded": True})
        for done in clients:
            done.result(SECONDS)


@pytest.mark.parametrize(
    ("target", "value", "status", "text"),
    [
        ("/classify", b"{", 400, "no JSON"),
        ("/classify", [], 400, "a JSON object"),
        ("/classify", {}, 400, "image: "),
        ("/classify", {"image": [[1, 2]]}, 400, "shape (1, 2)"),
        ("/classify", {"image": [[1e39] * 8] * 8}, 400, "finite numbers"),
        (
            "/classify",
            b'{"image": [[NaN, 1, 1, 1, 1, 1, 1, 1]' + b", [1, 1, 1, 1, 1, 1, 1, 1]" * 7 + b"]}",
            400,
            "finite",
        ),
        ("/classify", {"image": [[10**400] * 8] * 8}, 400, "image: "),
        ("/classify", b"[" * 50_000, 400, "no JSON"),
        ("/classify", {"image": [[0] * 8] * 8, "timeout": 10**400}, 400, "expected seconds"),
        ("/classify", {"image": [[0] * 8] * 8, "timeout": "soon"}, 400, "expected seconds"),
        ("/classify", {"image": [[0] * 8] * 8, "timeout": 0}, 504, "DEADLINE_EXCEEDED"),
        ("/generate", {"text": "HELLO"}, 400, "1 to 31 of the letters"),
        ("/generate", {"text": "a", "letters": 0}, 400, "one or more"),
        ("/generate", {"letters": 3}, 400, "expected a text"),
        ("/classify", b" " * 70_000, 400, "more than 65536 bytes"),
        ("/nowhere", {}, 404, "there is no POST /nowhere"),
    ],
)
def test_requests_that_are_refused(server: Server, target: str, value: Any, status: int, text: str) -> None:
    given, answer = server.ask(target, value)
    assert given == status and text in answer["error"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health\r\n\r\n", 400),
        (b"GET  HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET /health HTTP/2.0\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nName : value\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST /classify HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * (1 << 17), 431),
        (b"POST /classify HTTP/1.1\r\nContent-Length: 99999999999999999\r\n\r\n" + b" " * 70_000, 400),
    ],
    ids=lambda value: str(value[:40]) if isinstance(value, bytes) else str(value),
)
def test_what_is_no_request_is_refused_and_ends_the_connection(
    server: Server, request_: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(request_)
        answer = b""
        with suppress(ConnectionResetError):  # it has not read all
            while data := client.recv(1 << 16):
                answer += data
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert server.ask("/health", method="GET") == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("target", "value"),
    [("/classify", {"image": np.zeros((8, 8)).tolist()}), ("/generate", {"text": "hello", "letters": 2})],
)
def test_requests_leave_no_circles_of_garbage(server: Server, target: str, value: Any) -> None:
    """To find them Python holds up all requests: it took a tenth of the server's time."""
    requests = 30
    with closing(server.connect()) as connection:
        for _ in range(3):
            ask(connection, target, value)
        gc.collect()
        gc.disable()
        try:
            for _ in range(requests):
                assert ask(connection, target, value)[0] == 200
            assert gc.collect() < requests
        finally:
            gc.enable()


def test_an_answer_to_head_has_no_body(server: Server) -> None:
    """The client took it for the answer to its next request."""
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"HEAD /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
    first, second, body = answer.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 404 ") and b"content-length: 37" in first
    assert second.startswith(b"HTTP/1.1 200 ") and body == b'{"status": "ok"}'


def test_a_client_that_waits_before_it_sends_its_body(server: Server) -> None:
    body = b'{"image": 3}'
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        head = b"POST /classify HTTP/1.1\r\nConnection: x, Close\r\nExpect: 100-continue\r\n"
        client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body))
        assert client.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b'got shape ()"}')


def test_an_old_client_gets_its_answer_without_chunks(server: Server) -> None:
    body = json.dumps({"text": "yes", "letters": 2}).encode()
    with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
        client.sendall(b"POST /generate HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
    head, _, lines = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and json.loads(lines.splitlines()[-1]) == LENGTH


def test_a_client_that_stops_in_the_middle_of_a_request_is_left(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("serve"), "SECONDS", 0.01)
    for begun in (b"", b"POST /classify HTT", b"POST /classify HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", server.port), SECONDS) as client:
            client.sendall(begun)
            assert client.recv(1) == b""


def test_a_client_that_takes_nothing_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps no more for it than the kernel does."""
    serve = importlib.import_module("serve")
    monkeypatch.setattr(serve, "SECONDS", 0.01)
    ended = threading.Event()

    async def talk(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
        finally:
            ended.set()

    starting = asyncio.run_coroutine_threadsafe(serve.start(talk), server.loop)
    other = starting.result(SECONDS)
    with socket.create_connection(other.sockets[0].getsockname(), SECONDS) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ended.wait(SECONDS)
    server.loop.call_soon_threadsafe(other.close)


def test_a_client_that_sends_ahead_is_read_no_further(server: Server) -> None:
    """While its first request is answered, what it sends stays with the kernel."""
    serve = importlib.import_module("serve")
    may = asyncio.Event()
    connections: list[Any] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        connections.append(receive.__self__)
        await receive()
        leaving = asyncio.create_task(receive())
        await may.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    starting = asyncio.run_coroutine_threadsafe(serve.start(wait), server.loop)
    other = starting.result(SECONDS)
    with socket.create_connection(other.sockets[0].getsockname(), SECONDS) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.setblocking(False)
        sent = 0
        while True:  # until neither the server nor the kernel takes more
            try:
                sent += client.send(b"x" * (1 << 16))
            except BlockingIOError:
                if sent and not select.select((), (client,), (), 0.2)[1]:
                    break
        assert len(connections[0]._received) <= 3 * serve.MOST_HEADER < sent
        server.loop.call_soon_threadsafe(may.set)
    server.loop.call_soon_threadsafe(other.close)


def test_a_client_that_leaves_gives_its_slot_to_others(server: Server) -> None:
    before = server.application._measured.left
    streams = server.application._models.streams
    engine = streams._engine
    may = threading.Event()
    step, engine.step = engine.step, lambda: may.wait(SECONDS) and step()
    try:
        client = socket.create_connection(("127.0.0.1", server.port), SECONDS)
        body = json.dumps({"text": "hello", "letters": 20}).encode()
        client.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(
            lambda: streams.metrics["accepted"] > streams.metrics["answered"] + streams.metrics["failed"]
        )
        client.close()
        wait_for(lambda: server.application._measured.left == before + 1)
    finally:
        may.set()
        engine.step = step
    assert server.ask("/generate", {"text": "yes", "letters": 2})[1][-1] == LENGTH
    wait_for(lambda: not any(engine._decoder.slots))
    assert len(engine._decoder.free) == importlib.import_module("model").PAGES - 1


def metrics_of(server: Server) -> Samples:
    status, text = server.ask("/metrics", method="GET")
    assert status == 200
    return samples(text)


def wait_for(condition: Any) -> None:
    """The test runner ends a test that waits for ever."""
    while not condition():
        threading.Event().wait(0.005)


def test_metrics_and_health(server: Server) -> None:
    """Those of Prometheus' text format; the counts are of requests alone."""
    before = metrics_of(server)
    for _ in range(2):
        server.ask("/classify", {"image": [[0] * 8] * 8})
    server.ask('/nowhere/at"all')
    now = metrics_of(server)
    added = {sample: value - before.get(sample, 0) for sample, value in now.items()}
    assert added["http_requests_total", (("path", "/classify"), ("status", "200"))] == 2
    assert added["http_requests_total", (("path", "other"), ("status", "404"))] == 1
    assert added["batch_accepted_total", ()] == added["batch_answered_total", ()] == 2
    assert added["http_request_duration_seconds_count", (("path", "/classify"),)] == 2
    assert now["http_request_duration_seconds_sum", (("path", "/classify"),)] > 0
    assert server.ask("/health", method="GET") == (200, {"status": "ok"})


def test_counters_survive_a_reload(server: Server) -> None:
    server.ask("/classify", {"image": [[0] * 8] * 8})
    server.ask("/generate", {"text": "yes", "letters": 2})
    before = metrics_of(server)
    assert server.ask("/reload")[0] == 200
    added = {sample: value - before.get(sample, 0) for sample, value in metrics_of(server).items()}
    changed = {name for (name, _), value in added.items() if value}
    assert all(name.startswith("http_request") for name in changed), changed
    assert before["batch_answered_total", ()] > 0 < before["stream_answered_total", ()]


def test_too_many_and_draining() -> None:
    server = Server(waiting=1)
    batcher = server.application._models.batcher
    may, begun = threading.Event(), threading.Event()
    function = batcher._function

    def slowly(*rows: Any) -> Any:
        begun.set()
        assert may.wait(SECONDS)
        return function(*rows)

    batcher._function = slowly
    image = {"image": [[0] * 8] * 8}
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(server.ask, "/classify", image)
        assert begun.wait(SECONDS)
        second = threads.submit(server.ask, "/classify", image)
        wait_for(lambda: batcher.waiting == 1)
        assert server.ask("/classify", image)[0] == 429
        draining = asyncio.run_coroutine_threadsafe(server.application.drain(), server.loop)
        wait_for(lambda: batcher.draining)
        assert server.ask("/classify", image)[0] == 503
        assert server.ask("/health", method="GET") == (503, {"status": "draining"})
        may.set()
        assert first.result(SECONDS)[0] == second.result(SECONDS)[0] == 200
        draining.result(SECONDS)
    server.close()


def test_draining_waits_until_answers_are_sent() -> None:
    """The process ended while a client was being sent its answer."""

    async def main() -> None:
        application = importlib.import_module("app").Application("local-sync")
        messages = [{"type": "http.request", "body": json.dumps({"image": [[0] * 8] * 8}).encode()}]
        sending, may = asyncio.Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else await asyncio.Future()

        async def send(message: dict[str, Any]) -> None:
            sending.set()
            await may.wait()

        scope = {"type": "http", "method": "POST", "path": "/classify"}
        request = asyncio.create_task(application(scope, receive, send))
        await sending.wait()
        draining = asyncio.create_task(application.drain())
        done, _ = await asyncio.wait((draining,), timeout=0.2)  # more than the sessions take to close
        assert not done
        may.set()
        await asyncio.gather(request, draining)

    asyncio.run(main())


def test_other_servers_run_the_application() -> None:
    """The messages of a life, as ASGI states them."""
    sent: list[dict[str, Any]] = []

    async def live() -> None:
        events = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> dict[str, Any]:
            return {"type": next(events)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        application = importlib.import_module("app").Application("local-sync")
        await application({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
