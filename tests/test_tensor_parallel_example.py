"""A sharded model: one process with two devices, and two members with one each, get numpy's result."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.errors import AlreadyExistsError, IncompatibleError, NotFoundError
from tests.hal.groups.processes import SocketProvider, sockets_of

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "tensor_parallel"
SEED = 3


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("block")
    module.save(tmp_path)
    yield module
    for name in ("block", "model"):
        sys.modules.pop(name, None)


def tokens(example: Any, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((example.TOKENS, example.SIZE), np.float32)


@pytest.mark.parametrize("devices", [("local-sync", "local-sync"), ("local-task", "local-sync")])
def test_one_process_with_two_devices(example: Any, tmp_path: Path, devices: tuple[str, ...]) -> None:
    block = example.of_devices(tmp_path, devices)
    assert [device.id for device in block.session.devices] == list(devices)
    for seed in range(3):
        x = tokens(example, seed)
        np.testing.assert_allclose(np.asarray(block(x)), example.reference(x), atol=2e-6)
    sent = pickle.dumps(block)
    assert len(sent) <= 1024
    assert np.array_equal(np.asarray(pickle.loads(sent)(x)), np.asarray(block(x)))


def _member(table: list[list[Any]], rank: int, example: Any, folder: Path) -> Any:
    for other, row in enumerate(table):
        for connection in row if other != rank else ():
            if connection is not None:
                connection.close()
    block = example.of_member(folder, rank, provider=SocketProvider(rank, table[rank]))
    return np.array([np.asarray(block(tokens(example, seed))) for seed in range(3)])


def _forked(pipe: Any, *arguments: Any) -> None:
    pipe.send(_member(*arguments))


def test_two_processes_with_one_device(example: Any, tmp_path: Path) -> None:
    """Each maps its shards only. All get the same bits."""
    table, (here, there) = sockets_of(2), multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_forked, args=(there, table, 1, example, tmp_path)
    )
    process.start()
    try:
        found = _member(table, 0, example, tmp_path)
        assert here.poll(60)
        assert np.array_equal(found, here.recv())
    finally:
        process.kill()
        process.join()
    for seed in range(3):
        np.testing.assert_allclose(found[seed], example.reference(tokens(example, seed)), atol=2e-6)


def test_what_is_missing(example: Any, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleError, match="runs on 2 devices or more, give the session a list"):
        example.of_devices(tmp_path, ("local-sync",))
    paths = [f"model={example.archive(tmp_path, rank)}" for rank in range(2)]
    program = FOLDER / "devices.llvm-cpu.vmfb"
    with pytest.raises(NotFoundError, match=r"attn_norm\.weight\.shard\.1' in scope 'model'"):
        jitree.load(program, device=["local-sync"] * 2, parameters=paths[:1])
    with pytest.raises(AlreadyExistsError, match=r"rank0\.irpa"):
        jitree.load(program, device=["local-sync"] * 2, parameters=[paths[0], *paths])
    with pytest.raises(NotFoundError, match=r"nearest: 'attn_norm\.weight"):
        jitree.load(FOLDER / "members.llvm-cpu.vmfb", device="local-sync", parameters=paths[:1])
