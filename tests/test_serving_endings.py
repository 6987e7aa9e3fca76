"""How answers of the serving example end: why texts are cut, and a server that is told to end."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.test_serving_example import (
    EXAMPLES,
    LENGTH,
    SECONDS,
    Server,
    ask,
    metrics_of,
    path,
    wait_for,
    written,
)

__all__ = ["path"]
IMAGE = {"image": [[0] * 8] * 8}


@pytest.fixture(scope="module")
def server(path: None) -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def ended(server: Server, reason: str) -> float:
    """How many texts have ended for a reason."""
    return metrics_of(server).get(("texts_total", (("finish_reason", reason),)), 0)


def letters_of(lines: list[dict[str, str]]) -> str:
    return "".join(line["letter"] for line in lines if "letter" in line)


def test_a_text_ends_with_all_letters_or_before_a_stop(server: Server) -> None:
    """What may be the beginning of a stop is not sent until it is known to be none."""
    full = written("hello", 12)
    stop = full[4:7]
    before = {reason: ended(server, reason) for reason in ("length", "stop")}
    for wanted, expected, reason in (
        ([], full, "length"),
        ([stop], full[: full.index(stop)], "stop"),
        (stop[0], full[: full.index(stop[0])], "stop"),
        ([full[-1] + "#", "##"], full, "length"),
        ([full[5:8], stop], full[: full.index(stop)], "stop"),
    ):
        status, lines = server.ask("/generate", {"text": "hello", "letters": 12, "stop": wanted})
        assert status == 200 and lines[-1] == {"end": True, "finish_reason": reason}
        assert letters_of(lines) == expected
    assert ended(server, "length") == before["length"] + 2
    assert ended(server, "stop") == before["stop"] + 3
    # slots of texts that were stopped are free again
    assert not any(server.application._models.streams._engine._decoder.slots)


@pytest.mark.parametrize("stop", [3, [3], {"a": 1}, [""], ["a"] * 5])
def test_stops_that_are_refused(server: Server, stop: Any) -> None:
    status, answer = server.ask("/generate", {"text": "hello", "stop": stop})
    assert status == 400 and "stop: expected" in answer["error"]


class Held:
    """An engine that makes so many steps and then waits."""

    def __init__(self, server: Server, steps: int) -> None:
        self._engine = server.application._models.streams._engine
        self._step = self._engine.step
        self._steps = steps
        self.may = threading.Event()

    def __enter__(self) -> Held:
        self._engine.step = self.step
        return self

    def step(self) -> Any:
        self._steps -= 1
        if self._steps < 0:
            self.end()
        return self._step()

    def end(self) -> None:
        assert self.may.wait(SECONDS)

    def __exit__(self, *error: object) -> None:
        self.may.set()
        self._engine.step = self._step


class Failing(Held):
    """… and then fails."""

    def end(self) -> None:
        raise ZeroDivisionError("no step")


def test_a_text_that_is_cut_by_its_deadline(server: Server) -> None:
    """One step reads a letter of the request, the second writes one; there is no third in time."""
    before = ended(server, "deadline")
    with Held(server, 2):
        status, lines = server.ask("/generate", {"text": "ab", "letters": 9, "timeout": 2.0})
    assert status == 200 and letters_of(lines) == written("ab", 1)
    assert lines[-1]["finish_reason"] == "deadline" and "DEADLINE_EXCEEDED" in lines[-1]["error"]
    assert ended(server, "deadline") == before + 1


def test_a_text_whose_engine_fails(server: Server) -> None:
    """Also with an error that has no status."""
    before = ended(server, "error")
    with Failing(server, 2):
        status, lines = server.ask("/generate", {"text": "ab", "letters": 9})
    assert status == 200 and len(lines) == 2
    assert lines[-1] == {"error": "ZeroDivisionError: no step", "finish_reason": "error"}
    assert ended(server, "error") == before + 1


def test_a_text_whose_client_leaves(server: Server) -> None:
    before = ended(server, "client_gone")
    with Held(server, 2):
        client = socket.create_connection(("127.0.0.1", server.port), SECONDS)
        body = json.dumps({"text": "ab", "letters": 9}).encode()
        client.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(1)
        client.close()
        wait_for(lambda: ended(server, "client_gone") == before + 1)


def test_no_text_has_ended_that_was_not_begun(server: Server) -> None:
    before = {key: value for key, value in metrics_of(server).items() if key[0] == "texts_total"}
    for request in ({"text": "HELLO"}, {"text": "a", "letters": 0}, {"text": "a", "timeout": 0}):
        status, answer = server.ask("/generate", request)
        assert status in (400, 504) and "finish_reason" not in answer
    assert before == {key: value for key, value in metrics_of(server).items() if key[0] == "texts_total"}


def test_programs_are_not_opened_anew_while_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload gave a server that was draining a queue that took requests."""
    server = Server()
    application = server.application
    may, opened = threading.Event(), threading.Event()
    app: Any = importlib.import_module("app")

    class Slow(app.Models):  # type: ignore[misc]
        def __init__(self, *options: Any) -> None:
            opened.set()
            assert may.wait(SECONDS)
            super().__init__(*options)

    monkeypatch.setattr(app, "Models", Slow)
    try:
        with ThreadPoolExecutor(1) as threads:
            reload = threads.submit(server.ask, "/reload")
            assert opened.wait(SECONDS)
            draining = asyncio.run_coroutine_threadsafe(application.drain(), server.loop)
            wait_for(lambda: application._is_draining)
            assert server.ask("/health", method="GET") == (503, {"status": "draining"})
            may.set()
            status, answer = reload.result(SECONDS)
            assert status == 503 and "drained" in answer["error"]
            draining.result(SECONDS)
        assert server.ask("/classify", IMAGE)[0] == 503
        assert server.ask("/reload")[0] == 503
        assert server.ask("/health", method="GET") == (503, {"status": "draining"})
    finally:
        server.close()


SERVER = """
import asyncio, sys, time
from pathlib import Path
sys.path.insert(0, {folder!r})
import engine, serve

step = engine.DecoderEngine.step

def held(self):
    while Path({hold!r}).exists():
        time.sleep(0.01)
    return step(self)

engine.DecoderEngine.step = held
sys.argv = ["serve.py", "--port=0", "--device=local-sync"]
asyncio.run(serve.main())
"""


def test_a_process_that_is_told_to_end_finishes_what_it_has_begun(tmp_path: Path) -> None:
    """Clients that connect while it drains are refused, and told so by /health; they were not let in."""
    hold = tmp_path / "hold"
    script = SERVER.format(folder=str(EXAMPLES / "serving"), hold=str(hold))
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
        ) as process,
        ThreadPoolExecutor(1) as threads,
    ):
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])

            def asked(path: str, value: Any = None, method: str = "POST") -> tuple[int, Any]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
                try:
                    return ask(connection, path, value, method)
                finally:
                    connection.close()

            assert asked("/health", method="GET") == (200, {"status": "ok"})
            hold.touch()
            begun = threads.submit(asked, "/generate", {"text": "hello", "letters": 3})
            wait_for(lambda: "stream_accepted_total 1\n" in asked("/metrics", method="GET")[1])
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: asked("/health", method="GET")[0] != 200)
            assert asked("/health", method="GET") == (503, {"status": "draining"})
            for path, value in (("/generate", {"text": "no"}), ("/classify", IMAGE), ("/reload", None)):
                status, answer = asked(path, value)
                assert status == 503 and "drained" in answer["error"]
            assert process.poll() is None and not begun.done()
            hold.unlink()
            status, lines = begun.result(SECONDS)
            assert status == 200 and lines[-1] == LENGTH and letters_of(lines) == written("hello", 3)
            assert process.wait(SECONDS) == 0
        finally:
            hold.unlink(missing_ok=True)
            process.kill()
