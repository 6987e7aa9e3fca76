"""One program under torchrun, mpirun and Ray, and in groups that torch has made already: the same sums, and
what the others get when a member is killed."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.hal.groups.members import data_of, opened, take_part

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 30
"""In which every other member has its error, at the latest."""


def launched(command: list[str], folder: Path, *arguments: object) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    member = ["-m", "tests.hal.groups.members", str(folder), *map(str, arguments)]
    process = subprocess.Popen([*command, *member], cwd=ROOT, env=environment, start_new_session=True)
    try:
        ended = process.wait(100)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
    assert arguments or ended == 0


def by_torchrun(folder: Path, *arguments: object) -> None:
    pytest.importorskip("torch")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    launched(run, folder, *arguments)


def by_mpirun(folder: Path, *arguments: object) -> None:
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=60).stdout
    flags: tuple[str, ...] = ()
    if "Open MPI" in version:
        flags = ("--allow-run-as-root", "--oversubscribe", "--enable-recovery")
    elif arguments:
        pytest.skip("this mpirun ends the whole job with a member")
    launched(["mpirun", *flags, "-n", "2", sys.executable], folder, *arguments)


def by_ray(folder: Path, *arguments: int) -> None:
    """Members are tasks, and find each other by Ray's store of keys."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("torch")
    from jitree.hal.groups.rendezvous import StoreProvider
    from jitree.integrations.ray import RayStore

    def member(rank: int) -> None:
        provider = StoreProvider(RayStore(str(folder), 60), rank, 2)
        take_part(folder, next(iter(arguments), None), provider)

    if not ray.is_initialized():
        paths = {"env_vars": {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=paths)
    task = ray.remote(num_cpus=1, max_retries=0)(member)
    for made in [task.remote(rank) for rank in range(2)]:
        try:
            ray.get(made, timeout=100)
        except ray.exceptions.WorkerCrashedError:
            assert arguments


@pytest.fixture(scope="module", autouse=True)
def ray_that_ends() -> Iterator[None]:
    yield
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


LAUNCHERS = [by_torchrun, by_mpirun, by_ray]


@pytest.mark.parametrize("launch", LAUNCHERS)
def test_members_get_the_same_sum(launch: Callable[..., None], tmp_path: Path) -> None:
    launch(tmp_path)
    for rank in range(2):
        assert np.array_equal(np.load(tmp_path / f"{rank}.npy"), data_of(0) + data_of(1))


@pytest.mark.parametrize("launch", LAUNCHERS)
def test_a_member_that_is_killed(launch: Callable[..., None], tmp_path: Path) -> None:
    launch(tmp_path, 1)
    status, seconds, text = (tmp_path / "0.txt").read_text().split(" ", 2)
    assert status in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and "member 0 of 2 of a channel" in text
    assert float(seconds) < SECONDS


# -- groups of torch.distributed -----------------------------------------------------------------------


def borrowing(rank: int, folder: Path, killed: int | None) -> None:
    """A process of a program that uses torch.distributed itself, with three of them in all."""
    import torch
    import torch.distributed as distributed

    from jitree.hal.groups.channel import TorchProvider

    store = distributed.FileStore(str(folder / "store"), 3)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=3)
    pair = distributed.new_group([2, 0])
    everybody, all_functions = opened()  # the group that torch has made
    assert everybody == rank
    total = torch.from_numpy(data_of(rank))
    made = np.asarray(all_functions.all_reduce(data_of(rank)))
    distributed.all_reduce(total)  # torch goes on with the same group
    assert np.array_equal(made, data_of(0) + data_of(1) + data_of(2))
    np.testing.assert_allclose(total.numpy(), made, rtol=1e-5, atol=1e-6)
    if rank != 1:
        take_part(folder, killed, TorchProvider(pair, timeout=20))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Starts the three, and waits for them."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    started: list[Any] = []

    def run(folder: Path, killed: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        started[:] = [context.Process(target=borrowing, args=(rank, folder, killed)) for rank in range(3)]
        for process in started:
            process.start()
        for process in started:
            process.join(100)

    yield run
    for process in started:
        process.kill()
        process.join()


def test_a_group_of_torch_is_used_as_it_is(processes: Callable[..., None], tmp_path: Path) -> None:
    """Also a part of it: members of the channel are the ranks of that group."""
    processes(tmp_path, None)
    for rank in range(2):
        assert np.array_equal(np.load(tmp_path / f"{rank}.npy"), data_of(0) + data_of(1))


def test_a_member_of_such_a_group_that_is_killed(processes: Callable[..., None], tmp_path: Path) -> None:
    processes(tmp_path, 1)
    status, seconds, _ = (tmp_path / "0.txt").read_text().split(" ", 2)
    assert status == "UNAVAILABLE" and float(seconds) < SECONDS
