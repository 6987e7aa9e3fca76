"""Programs that take all they can get end in statuses, on every tier, and the session goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import jitree
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
)
from jitree.hal.groups.rendezvous import Transport, TransportProvider
from tests.assembler import Assembler
from tests.modules.hal_programs import BUFFERS, DEVICE, DEVICE_LOCAL, NULL, ROWS, USAGE, Program
from tests.security.programs import (
    CHANNEL,
    ENDLESS_END,
    ENDLESS_INIT,
    ENDLESS_KERNEL,
    OLD,
    PROGRAM,
    QUEUES,
    VMVX,
)
from tests.security.test_limits import TIERS
from tests.tools.command import jitree as command

LIMITS = jitree.Limits(memory=1 << 20, handles=2000, recursion=500, output=1 << 16, load_size=1 << 20)
BOMBS = {
    "buffers": ("hoard", (1 << 20, 1 << 10)),
    "one huge buffer": ("hoard", (1, 1 << 60)),
    "a negative size": ("hoard", (1, -1)),
    "handles": ("hoard", (10_000, 0)),
    "clones": ("clone", (0, 1 << 40)),
    "lists": ("lists", (1 << 26,)),
    "a negative list": ("lists", (-1,)),
    "growing lists": ("grow", (1 << 25,)),
    "recursion": ("down", (1 << 30,)),
    "results": ("give", ((1 << 16) + 1,)),
}


@pytest.fixture(params=TIERS)
def session(request: pytest.FixtureRequest) -> Any:
    with jitree.Session("local-sync", sandbox=True, tier=request.param, limits=LIMITS) as session:
        session.load(PROGRAM)
        yield session


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_end_in_a_status(session: jitree.Session, bomb: str) -> None:
    name, arguments = BOMBS[bomb]
    for _ in range(3):
        with pytest.raises(StatusError, match=r"RESOURCE_EXHAUSTED|OUT_OF_RANGE|INVALID_ARGUMENT"):
            session.call_direct(f"hostile.{name}", *arguments)
        assert session.call_direct("hostile.count", 10) == [10]
        assert session.call_direct("hostile.down", 400) == [400]


@pytest.mark.parametrize("tier", TIERS)
def test_lists_in_lists(tier: str, tmp_path: Path) -> None:
    """In a circle, deeper than a stack, 2**64 of them: results, and freed again."""
    limits = jitree.Limits(output=10, memory=1 << 20)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=limits) as session:
        session.load(PROGRAM)
        for _ in range(2):
            for name, arguments in (("circle", ()), ("chain", (3000,)), ("tree", (64,))):
                assert len(session[f"hostile.{name}"](*arguments)) == 2
        assert session.call_direct("hostile.count", 10) == [10]
    if tier == "fast":
        file = tmp_path / "hostile.vmfb"
        file.write_bytes(PROGRAM)
        for flags in (
            ["--function=circle"],
            ["--function=chain", "--input=100"],
            ["--function=tree", "--input=64"],
        ):
            outcome = command("run", "--sandbox", "--device=local-sync", f"--tier={tier}", str(file), *flags)
            assert outcome.code == 1 and "RESOURCE_EXHAUSTED; a result has lists" in outcome.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_endless_loops_end_with_their_instructions(tier: str) -> None:
    limits = jitree.Limits(instructions=20_000)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=limits) as session:
        with pytest.raises(ResourceExhaustedError, match="the limit on instructions"):
            session.load(ENDLESS_INIT)
        session.load(PROGRAM)
        with pytest.raises(ResourceExhaustedError, match="the limit on instructions"):
            session.call_direct("hostile.spin")
        assert session.call_direct("hostile.count", 10) == [10]


@pytest.mark.parametrize("tier", TIERS)
def test_endless_programs_end_in_time(tier: str) -> None:
    patient = jitree.Session("local-sync", sandbox=True, tier=tier, limits=jitree.Limits(instructions=20_000))
    with patient, pytest.raises(ResourceExhaustedError):  # builds what there is to build
        patient.load(ENDLESS_INIT)
    limits = jitree.Limits(time=0.05, load_time=0.1)
    session = jitree.Session("local-sync", sandbox=True, tier=tier, limits=limits)
    with session, pytest.raises(DeadlineExceededError, match=r"within 0.1 s.*('__init'|registering module)"):
        session.load(ENDLESS_INIT)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=jitree.Limits(time=0.05)) as session:
        session.load(PROGRAM)
        for _ in range(3):
            with pytest.raises(DeadlineExceededError, match=r"within 0.05 s"):
                session.call_direct("hostile.spin")
        session.load(ENDLESS_END)
    assert session.closed


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("device", ["local-sync", "local-task://?threads=2"])
def test_endless_kernels_end_in_time(device: str, tier: str) -> None:
    limits = jitree.Limits(time=0.2)
    with jitree.Session(device, sandbox=True, tier=tier) as patient:  # builds what there is to build
        patient.load(ENDLESS_KERNEL).f(np.full(4096, 2, np.int32), np.int32(2))
    with jitree.Session(device, sandbox=True, tier=tier, limits=limits) as session:
        search = session.load(ENDLESS_KERNEL).f
        for _ in range(2):
            with pytest.raises(DeadlineExceededError, match=r"within 0.2 s"):
                search(np.full(4096, 3, np.int32), np.int32(2))


def test_an_endless_end_ends_with_its_instructions() -> None:
    with jitree.Session("local-sync", sandbox=True, limits=jitree.Limits(instructions=1000)) as session:
        session.load(ENDLESS_END)
    assert session.closed


@pytest.mark.parametrize("tier", ("plain", "fast"))
@pytest.mark.parametrize("size", [1 << 20, 1 << 40, -1, -64, (1 << 63) - 1])
def test_device_memory_bombs(tier: str, size: int) -> None:
    made = Program(ROWS)
    for buffer in BUFFERS:
        placed = (0, DEVICE_LOCAL, USAGE, size, 0)
        made.call("device.queue.alloca", DEVICE, -1, NULL, NULL, *placed, to=buffer)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=LIMITS) as session:
        session.load(made.module("m"))
        for _ in range(4):
            with pytest.raises(StatusError, match=r"RESOURCE_EXHAUSTED|OUT_OF_RANGE"):
                session.call_direct("m.f", session.device, *(None,) * 5)


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("tier", ("plain", "fast"))
def test_what_the_host_keeps_for_a_program_is_memory_of_it(device: str, tier: str) -> None:
    """Commands that are recorded, operations that wait, what is said of expectations that fail."""
    with jitree.Session(device, sandbox=True, tier=tier, limits=jitree.Limits(memory=1 << 17)) as session:
        session.load(QUEUES)
        for name, few, many in (("record", 500, 3000), ("submit", 60, 300)):
            assert session.call_direct(f"queues.{name}", few) == [0]
            with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
                session.call_direct(f"queues.{name}", many)
        for _ in range(2):
            with pytest.raises(FailedPreconditionError, match="50000 expectations of the program") as caught:
                session.call_direct("queues.expect", 50_000)
            assert len(caught.value.message) < 1.1 * 2**20 and caught.value.message.endswith("others")


@pytest.mark.parametrize(("name", "few", "many"), [
    ("nest", 100, 3000), ("double", 4, 40), ("join", 20, 1500), ("layouts", 1, 100), ("executables", 60, 80),
])  # fmt: skip
@pytest.mark.parametrize("tier", ("plain", "fast"))
def test_what_old_programs_have_the_host_keep_is_memory_of_them(
    tier: str, name: str, few: int, many: int
) -> None:
    limits = jitree.Limits(memory=1 << 18, handles=10_000)
    with jitree.Session("local-sync", sandbox=True, tier=tier, limits=limits) as session:
        session.load(OLD)
        for _ in range(2):
            assert session.call_direct(f"old.{name}", few) == [0]
            with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
                session.call_direct(f"old.{name}", many)
        assert session.call_direct(f"old.{name}", few) == [0]


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_operations_that_wait_for_many_points(device: str) -> None:
    limits = jitree.Limits(memory=1 << 18, handles=10_000)
    with jitree.Session(device, sandbox=True, limits=limits) as session:
        session.load(OLD)
        assert session.call_direct("old.wait", 1) == [0]
        with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
            session.call_direct("old.wait", 10)


def test_names_and_tables_of_a_file_are_no_more_than_its_bytes() -> None:
    module = Assembler("m" * 60_000)
    for index in range(2000):
        module.function(f"f{index}" + "x" * 100, "0v_v", "return")
    data = module.build()
    with jitree.Session("local-sync", sandbox=True, limits=jitree.Limits(load_size=len(data))) as session:
        assert len(session.load(data).names) == 2000


def test_programs_open_no_files() -> None:
    """The one import that gives a file is over memory; what io_parameters reads, the host has given."""
    assert [name for name in ROWS if "file" in name] == ["ex.file.from_memory"]
    with jitree.Session("local-sync", sandbox=True, parameters={"weights": {"w": np.ones(4)}}) as session:
        assert [provider.scope for provider in session.parameter_providers] == ["weights"]


def test_programs_join_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the variables of a launcher, nor by what is installed; by a provider that the host gives."""

    class Itself(Transport):
        def exchange(self, sent: object, received: object) -> None: ...

    class Alone(TransportProvider):
        def query_default_rank_and_count(self) -> tuple[int, int]:
            return 0, 1

        def exchange_default_id(self, identifier: bytes) -> bytes:
            return identifier

        def make_transport(self) -> Transport:
            return Itself(0, 1)

    def reads(*arguments: object) -> NoReturn:
        raise AssertionError("a provider was looked for")

    monkeypatch.setattr("jitree.hal.groups.channel._default_provider", reads)
    with jitree.Session("local-sync", sandbox=True) as session:
        join = session.load(CHANNEL).join
        for _ in range(3):
            with pytest.raises(PermissionDeniedError, match="replace_channel_provider"):
                join()
        session.device.replace_channel_provider(Alone())
        assert join() == 0
        session.device.replace_channel_provider(None)
        with pytest.raises(PermissionDeniedError, match="replace_channel_provider"):
            join()


def test_nothing_shows_that_was_in_memory() -> None:
    secret = np.full(1 << 14, 0x5A, np.uint8)
    for options in ({"sandbox": True}, {"zero_memory": True}):
        with jitree.Session("local-task", **options) as session:  # type: ignore[arg-type]
            for _ in range(4):
                array = session.empty((1 << 14,), np.uint8)
                assert not np.asarray(array).any()
                array[0:] = secret
                del array


def test_host_modules_are_called_with_anything() -> None:
    got: list[int] = []

    class Given(HostModule):
        name = "given"

        def exports(self) -> list[HostExport]:
            return [HostExport("take", "0i_v", lambda state, number: got.append(number))]

    module = Assembler("m").import_function("given.take", "0i_v")
    module.function("f", "0i_v", "call @given.take [%i0]\nreturn")
    with jitree.Session("local-sync", sandbox=True) as session:
        session.load(Given(), module.build())
        session.call_direct("m.f", -(1 << 31))
    assert got == [-(1 << 31)]


def test_kernels_have_the_memory_that_is_left() -> None:
    with jitree.Session("local-sync", sandbox=True, limits=jitree.Limits(memory=8000)) as session:
        classify = session.load(VMVX).classify
        with pytest.raises(ResourceExhaustedError, match="of 8000 bytes are in use"):
            classify(np.ones((8, 8), np.float32))
