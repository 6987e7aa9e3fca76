"""Programs on a real Ray, where it is installed."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Program
from jitree.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from jitree.integrations.ray import Predictor
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, CALLS, PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
LINEAR = PROGRAMS / "parameters.vmfb"
DIGITS = ROOT / "examples" / "digits" / "digits.llvm-cpu.vmfb"
ROWS = 300


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray
    ray.shutdown()


def local(path: Path = ARITHMETIC) -> Program:
    return Program(path, device="local-sync", tier="plain")


def test_columns_become_arguments_and_results() -> None:
    ray = pytest.importorskip("ray")
    assert not ray.is_initialized()
    x = np.arange(6, dtype=np.float32)
    batch = {"id": np.arange(6), "a": x, "b": x + 1}
    predictor = Predictor(local(), "add", inputs=("a", "b"), outputs=("sum",), in_flight=2)
    for one in (predictor, pickle.loads(pickle.dumps(predictor))):
        made = one(batch)
        assert list(made) == ["id", "sum"] and made["sum"].tolist() == (2 * x + 1).tolist()
    named = Predictor(local(), "arithmetic.add")({"input1": x, "input0": x})
    assert list(named) == ["output0"] and named["output0"].tolist() == (2 * x).tolist()
    assert Predictor(local(), "twice", sizes=(4,))({"x": np.ones((5, 3), "f4")})["output0"].shape == (5, 3)


def test_what_does_not_fit() -> None:
    pytest.importorskip("ray")
    x = np.zeros(4, np.float32)
    with pytest.raises(InvalidArgumentError, match="takes 2 columns and the batch has a"):
        Predictor(local(), "add")({"a": x})
    with pytest.raises(InvalidArgumentError, match="2 names for 1 results"):
        Predictor(local(), "add", outputs=("y", "z"))({"a": x, "b": x})
    with pytest.raises(InvalidArgumentError, match="'output0' would be two columns"):
        Predictor(local(), "add", inputs=("a", "b"))({"a": x, "b": x, "output0": x})
    with pytest.raises(NotFoundError, match="0 modules export 'nothere'"):
        Predictor(local(), "nothere")({"a": x})


class Sent:
    """A request of HTTP, as Serve gives it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def json(self) -> Any:
        return json.loads(self._body)


def test_requests_of_http() -> None:
    pytest.importorskip("ray.serve")
    from jitree.integrations.ray import Replica

    async def main() -> None:
        replica = Replica(local(), "add", waiting=2, timeout=60)
        assert await replica(Sent(b'{"inputs": [1, 2]}')) == {"outputs": [3.0]}
        refused = [
            b"{",
            b"[" * 90_000,
            b"[]",
            b'{"inputs": 3}',
            b'{"inputs": [1]}',
            b'{"inputs": [[[1], 2], 1]}',
        ]
        large = await replica(Sent(b'{"inputs": [3e38, 3e38]}'))
        assert json.dumps(large) == '{"outputs": [null]}', "JSON has no infinity"
        refused += [b'{"inputs": [1e39, 1]}', b'{"inputs": [NaN, 1]}']
        refused += [b'{"inputs": [1, "x"]}', b'{"inputs": [1, 1%s]}' % (b"0" * 400), b'{"inputs": [1, {}]}']
        for body in refused:
            answer = await replica(Sent(body))
            assert answer.status_code == 400 and "INVALID_ARGUMENT" in json.loads(answer.body)["error"], body
        await replica._now.batcher.drain()
        assert (await replica(Sent(b'{"inputs": [1, 2]}'))).status_code == 503
        replica.check_health()
        local().open().close()
        with pytest.raises(FailedPreconditionError, match="has been closed"):
            replica.check_health()

    asyncio.run(main())


def test_changes_of_what_is_served(tmp_path: Path) -> None:
    """What is not given stays."""
    pytest.importorskip("ray.serve")
    from jitree.integrations.ray import Replica

    archives = [tmp_path / "old.irpa", tmp_path / "new.irpa"]
    for number, archive in enumerate(archives):
        numbers = {"w": np.full((4, 3), number, "f4"), "b": np.ones(3, "f4"), "scale": np.ones(3, "f4")}
        write(archive, plan([array_entry(name, array) for name, array in numbers.items()]))
    files = [[f"model={archive}", str(archive)] for archive in archives]
    program = Program(LINEAR, device="local-sync", tier="plain", parameters=files[0])

    async def main() -> None:
        replica = Replica(program, "linear", timeout=60)
        given: Any = {"modules": [str(LINEAR)]}, {"parameters": files[1]}, {}
        for number, config in zip((0, 1, 1), given, strict=True):
            await replica.reconfigure(config)
            assert (await replica.predict(np.ones(4, np.float32))).tolist() == [4 * number + 1] * 3
        wrong: Any
        for wrong in ({"modules": str(LINEAR)}, {"module": [str(LINEAR)]}, {"parameters": 3}):
            with pytest.raises(InvalidArgumentError, match="expected"):
                await replica.reconfigure(wrong)
        replica.check_health()

    asyncio.run(main())


def test_a_program_that_is_served_again_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not closed for a time in which another one was served."""
    pytest.importorskip("ray.serve")
    from jitree.integrations.ray import Replica

    async def main() -> None:
        replica = Replica(local(), "add", timeout=60)
        load, ended = Replica._load, threading.Event()

        def slow(self: Replica, program: Program) -> Any:
            loaded = load(self, program)
            if program == local():
                ended.wait(0.2)  # for which the first one could be closed
            return loaded

        monkeypatch.setattr(Replica, "_load", slow)
        for path in (ASYNCHRONOUS, ARITHMETIC):
            await replica.reconfigure({"modules": [str(path)]})
        replica.check_health()

    asyncio.run(main())


def test_counts_survive_another_program() -> None:
    pytest.importorskip("ray.serve")
    from jitree.integrations.ray import Replica

    async def main() -> None:
        replica = Replica(local(), "add", timeout=60)
        counts = replica._now.batcher.metrics
        counts["answered"] = 5
        await replica.reconfigure({"modules": [str(ARITHMETIC)]})
        await replica.reconfigure({"modules": [str(ASYNCHRONOUS)]})
        assert (await replica.metrics())["answered"] == 5

    asyncio.run(main())


class KilledOnce:
    """As a predictor, in a process that is killed the first time that it sees a row."""

    def __init__(self, program: Program, mark: str) -> None:
        self._predictor = Predictor(program, "add", inputs=("a", "b"), outputs=("sum",))
        self._mark = mark

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if ROWS // 2 in batch["id"]:
            try:
                os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._predictor(batch)


def columns(batch: dict[str, Any]) -> dict[str, Any]:
    x = batch["id"].astype(np.float32)
    return {"id": batch["id"], "a": x, "b": x + 1}


def test_a_killed_actor_is_replaced_and_each_row_is_there_once(ray: Any, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    made = (
        ray.data.range(ROWS, override_num_blocks=6)
        .map_batches(columns)
        .map_batches(
            KilledOnce,
            fn_constructor_args=(local(), str(mark)),
            compute=ray.data.ActorPoolStrategy(size=1),
            batch_size=50,
        )
        .take_all()
    )
    assert mark.exists()
    assert sorted(row["id"] for row in made) == list(range(ROWS))
    assert all(row["sum"] == 2 * row["id"] + 1 for row in made)


def test_threads_and_devices_are_those_that_ray_gives(ray: Any) -> None:
    def device(program: Program) -> Any:
        from jitree.integrations.ray import placed

        return placed(program).device

    task = ray.remote(num_cpus=2)(device)
    made = ray.get([task.remote(Program(ARITHMETIC)), task.remote(local())])
    assert made == ["local-task://?threads=2", "local-sync"]


def test_members_find_each_other_by_the_store_of_ray(ray: Any) -> None:
    from jitree.errors import DeadlineExceededError
    from jitree.hal.groups.rendezvous import StoreProvider
    from jitree.integrations.ray import RayStore

    def member(rank: int) -> bytes:
        return StoreProvider(RayStore("job", 60), rank, 2).exchange_default_id(b"id of %d" % rank)

    task = ray.remote(num_cpus=1)(member)
    assert ray.get([task.remote(rank) for rank in range(2)]) == [b"id of 0"] * 2
    with pytest.raises(DeadlineExceededError, match="member 1 of 2 has not come"):
        StoreProvider(RayStore("other", 0.01), 0, 2).exchange_default_id(b"")


def test_a_deployment(ray: Any) -> None:
    from ray import serve

    from jitree.integrations.ray import Replica

    application = serve.deployment(Replica).bind(local(), "add", waiting=100, timeout=60)
    handle = serve.run(application, route_prefix=None)
    try:
        x = np.float32
        answers = [handle.predict.remote(x(number), x(1)) for number in range(20)]
        assert [answer.result(timeout_s=60) for answer in answers] == [number + 1 for number in range(20)]
        metrics = handle.metrics.remote().result(timeout_s=60)
        assert metrics["answered"] == 20 and metrics["batches"] <= 20
        handle.reconfigure.remote({"modules": [str(ARITHMETIC)]}).result(timeout_s=60)
        assert handle.predict.remote(x(1), x(2)).result(timeout_s=60) == 3
        with pytest.raises(Exception, match=r"no function 'add'|0 modules export"):
            handle.reconfigure.remote({"modules": [str(CALLS)]}).result(timeout_s=60)
        assert handle.predict.remote(x(2), x(2)).result(timeout_s=60) == 4, "goes on with what it had"
        handle.check_health.remote().result(timeout_s=60)
    finally:
        serve.shutdown()
