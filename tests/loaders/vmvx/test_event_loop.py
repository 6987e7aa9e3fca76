"""Kernels that Python interprets take seconds: they leave an event loop its turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from jitree import HostExport, HostModule
from jitree.api.executables import LateLoader
from jitree.api.sandbox import Charging
from jitree.codegen import image
from jitree.codegen.image import Image, Recipe
from jitree.dispatch.engine import Engine
from jitree.dispatch.fast import LOOP
from jitree.dispatch.plain.counting import CountingEngine
from jitree.hal.device import Device
from jitree.hal.driver import DriverRegistry, declared_drivers
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.hal.fence import Fence
from jitree.hal.heap import HeapAllocator
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.loaders.vmvx.loader import FORMAT, VmvxLoader
from jitree.modules.vmvx import VmvxModule
from tests.assembler import Assembler
from tests.hal.helpers import TIMEOUT, finish, record

KERNELS: Final = (
    Assembler("kernels")
    .import_function("loop.meet", "0i_i")
    .function("f", ENTRY_CONVENTION, "%i0 = call @loop.meet [%i0]\nreturn []", attrs={"binding_count": "0"})
    .build()
)


class Loop(HostModule):
    """What a kernel calls to wait for a turn of the event loop."""

    name = "loop"

    def __init__(self) -> None:
        super().__init__()
        self.has_turned = threading.Event()
        self.met: list[bool] = []

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("meet", "0i_i", self._meet)]

    def _meet(self, state: object, value: int) -> int:
        self.met.append(self.has_turned.wait(TIMEOUT / 4))
        return value


def alone(loader: ExecutableLoader) -> ExecutableLoader:
    return loader


def late(loader: ExecutableLoader) -> ExecutableLoader:
    return LateLoader("vmvx-", lambda: loader)


def charging(loader: ExecutableLoader) -> ExecutableLoader:
    return Charging(late(loader), HeapAllocator(), list, int)


@contextmanager
def device_of(uri: str, loader: ExecutableLoader) -> Iterator[Device]:
    registry = DriverRegistry((name, row) for name, row in declared_drivers() if name != "cuda")
    with registry.create_device(uri, (loader,)) as device:
        yield device


def submit(device: Device) -> Fence:
    """The kernel once."""
    parameters = ExecutableParameters(FORMAT, memoryview(KERNELS))
    executable = device.create_executable_cache().prepare_executable(parameters)
    commands = record(device)
    commands.dispatch(executable, 0, (1, 1, 1), [], [])
    commands.finalize()
    done = Fence.create(device)
    device.queue_execute(-1, None, done, commands, ())
    return done


async def dispatch(device: Device, loop: Loop) -> None:
    """The kernel once, beside another turn of the loop."""
    asyncio.get_running_loop().call_soon(loop.has_turned.set)
    await submit(device)


@pytest.mark.parametrize("wrapped", [alone, late, charging])
@pytest.mark.parametrize("uri", ["local-sync", "local-task://?threads=1"])
def test_the_loop_has_its_turns(uri: str, wrapped: Callable[[ExecutableLoader], ExecutableLoader]) -> None:
    """On ``local-task`` also where a kernel that has never run has little to work on."""
    loop = Loop()
    loader = wrapped(VmvxLoader((VmvxModule(), loop), "plain"))
    with device_of(uri, loader) as device:
        asyncio.run(dispatch(device, loop))
    assert loop.met == [True]


@pytest.mark.parametrize("tier", ["auto", CountingEngine(1000)], ids=["no machine code yet", "limited"])
def test_other_kernels_that_python_interprets(tier: str | Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    get = image.get
    loop = Loop()

    def absent(recipe: Recipe) -> Image | None:
        return None if recipe is LOOP else get(recipe)

    monkeypatch.setattr(image, "get", absent)
    with device_of("local-sync", VmvxLoader((VmvxModule(), loop), tier)) as device:
        asyncio.run(dispatch(device, loop))
    assert loop.met == [True]


@pytest.mark.parametrize("tier", ["fast", "native"])
def test_machine_code_is_no_such_thing(tier: str) -> None:
    assert not VmvxLoader((VmvxModule(),), tier).runs_in_python


def test_a_wait_that_blocks_the_loop_ends() -> None:
    """It is the loop's own thread that waits for the kernel."""
    loop = Loop()
    loop.has_turned.set()

    async def main(device: Device) -> None:
        finish(submit(device))

    with device_of("local-sync", VmvxLoader((VmvxModule(), loop), "plain")) as device:
        asyncio.run(main(device))
    assert loop.met == [True]
