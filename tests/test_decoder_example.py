"""The decoder: right letters, a cache that stays where it is, clear errors."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.errors import OutOfRangeError, UnavailableError

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "decoder"
TEXTS = ["hello", "one, two", "a b c", "yes", "no", "what?", "a" * 31]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("decode", "model", "program"):
        sys.modules.pop(name, None)


@pytest.fixture(params=["local-sync", "local-task", "cuda"])
def decoder(request: pytest.FixtureRequest) -> Iterator[Any]:
    try:
        session = jitree.Session(request.param)
    except UnavailableError as error:
        pytest.skip(str(error))
    with session:
        yield importlib.import_module("decode").Decoder(session)


def test_requests_that_share_steps_get_the_letters_of_the_model(decoder: Any) -> None:
    model = importlib.import_module("model")
    written = list(TEXTS)
    order = []
    for number, letter in decoder.generate(TEXTS, 3):
        written[number] += letter
        order.append(number)
    assert order != sorted(order), "they are written at the same time"
    assert sorted(decoder.free) == list(range(1, model.PAGES)), "pages come back"
    weights = model.weights()
    for text, full in zip(TEXTS, written, strict=True):
        assert len(full) == min(len(text) + 3, model.LENGTH)
        for end in range(len(text), len(full)):
            scores = model.reference(weights, model.encode(full[:end]))
            assert full[end] == model.LETTERS[int(scores.argmax())], (text, full, end)


def test_the_cache_stays_where_it_is(decoder: Any) -> None:
    place = decoder.cache.buffer_view.buffer.address
    with decoder.step.session.explain(decoder.step) as explanation:
        list(decoder.generate(["one", "two"], 3))
        cache = explanation.arguments[-1]
        assert explanation.updated == (cache.name,) and explanation.results[1].lies_in == cache.name
        assert explanation.copied < cache.bytes > explanation.allocated
        assert decoder.cache.buffer_view.buffer.address == place


def test_a_place_outside_of_the_cache(decoder: Any) -> None:
    numbers = np.zeros(4, np.int32)
    before = np.array(decoder.cache)
    for _ in range(4):
        with pytest.raises(OutOfRangeError):
            decoder.step(numbers, numbers, decoder.rows, 0, 0, 0, 136, *decoder.weights, out=decoder.cache)
    assert np.array_equal(decoder.cache, before)


def test_the_source_is_what_the_program_is_made_of() -> None:
    program = importlib.import_module("program")
    assert program.Program().step() in (FOLDER / "decoder.mlir").read_text()


def test_the_command_streams_its_output() -> None:
    done = run("yes", "no", "--letters=2", "--device=local-sync", "--explain")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:4]] == ["1", "0", "1", "0"]
    assert "updated in place" in done.stdout and "0 were new to the pool" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["HELLO"], "'HELLO': expected 1 to 31 of the letters"), (["a" * 32], "expected 1 to 31"), ([""], "''")],
)
def test_texts_that_it_cannot_write_on(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1 and text in done.stderr and "Traceback" not in done.stderr


def test_a_device_that_there_is_not() -> None:
    done = run("yes", "--device=toaster")
    assert done.returncode == 1 and "NOT_FOUND" in done.stderr and done.stderr.count("\n") == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "decode.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
