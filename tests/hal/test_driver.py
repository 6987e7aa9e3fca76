"""Registry, device URIs, parameters, queries, and what every device answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitree.base.platform.available_resources import available_processors
from jitree.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)
from jitree.hal.device import Device
from jitree.hal.driver import Driver, DriverRegistry, DriverRow, all_drivers, parse_uri
from jitree.hal.executable import Executable, ExecutableCache, ExecutableLoader, ExecutableParameters
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.task import TaskDevice
from jitree.hal.local.topology import parse_parameters
from jitree.hal.null.device import NullDriver, NullExecutable


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("local-sync", ("local-sync", "", {})),
        ("local-sync://", ("local-sync", "", {})),
        ("local-task://?threads=4", ("local-task", "", {"threads": "4"})),
        ("cuda://0", ("cuda", "0", {})),
        ("cuda://GPU-12ab?a=b&c=", ("cuda", "GPU-12ab", {"a": "b", "c": ""})),
        ("cuda://a%20b?k%3D=v%26w", ("cuda", "a b", {"k=": "v&w"})),
        ("local-task?cpu_ids=0,1;2", ("local-task", "", {"cpu_ids": "0,1;2"})),
    ],
)
def test_uris(uri: str, expected: tuple[str, str, dict[str, str]]) -> None:
    parsed = parse_uri(uri)
    assert (parsed.driver, parsed.path, parsed.parameters) == expected


@pytest.mark.parametrize("uri", ["", "://0", "cuda:0", "a/b", "local-task://?threads", "?x=1", "null://?=1"])
def test_malformed_uris(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match="URI"):
        parse_uri(uri)


def test_registry_errors(registry: DriverRegistry) -> None:
    with pytest.raises(NotFoundError, match="no driver 'vulkan' registered; there are: local-sync"):
        registry.create_device("vulkan://0")
    with pytest.raises(AlreadyExistsError):
        registry.register("null", "", lambda: registry.driver("null"))
    with pytest.raises(NotFoundError, match="has no device '9999"):
        registry.create_device(f"local-sync://{'9' * 5000}")
    registry.unregister("null")
    with pytest.raises(NotFoundError):
        registry.create_device("null")
    with pytest.raises(NotFoundError):
        registry.unregister("null")


def test_driver_that_cannot_start_says_why_each_time(registry: DriverRegistry) -> None:
    def factory() -> Driver:
        raise UnavailableError("libcuda.so.1 not found")

    registry.register("broken", "never works", factory)
    assert ("broken", "never works") in registry.enumerate()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="libcuda"):
            registry.create_device("broken")


@pytest.mark.parametrize("name", ["local-sync", "local-task", "null"])
def test_drivers(registry: DriverRegistry, name: str) -> None:
    driver = registry.driver(name)
    assert driver is registry.driver(name)
    (info,) = driver.query_available_devices()
    assert "architecture" in driver.dump_device_info(info.id)
    for device in (
        driver.create_device_by_id(Driver.DEFAULT_ID),
        driver.create_device_by_id(info.id),
        driver.create_device_by_path(""),
        driver.create_device_by_path("0"),
    ):
        with device:
            assert device.id == name and device.uri == f"{name}://"
    with pytest.raises(NotFoundError):
        driver.create_device_by_id(7)
    with pytest.raises(NotFoundError, match="there are"):
        driver.create_device_by_path("1")
    with pytest.raises(NotFoundError):
        driver.dump_device_info(3)


def test_the_registry_of_the_process() -> None:
    names = [name for name, _ in all_drivers().enumerate()]
    assert sorted(set(names)) == sorted(names) and {"local-sync", "local-task", "null", "cuda"} <= set(names)


def test_rows_are_asked_for_when_they_are_needed() -> None:
    asked = []

    def rows() -> Iterator[tuple[str, DriverRow]]:
        for name in ("first", "second", "third"):
            asked.append(name)
            yield name, (name, lambda: pytest.fail("the driver was not asked for"))

    registry = DriverRegistry(rows())
    with pytest.raises(AlreadyExistsError):
        registry.register("second", "", NullDriver)
    assert asked == ["first", "second"]
    registry.register("mine", "", NullDriver)
    assert [name for name, _ in registry.enumerate()] == ["first", "second", "third", "mine"]
    registry.unregister("first")
    with pytest.raises(NotFoundError, match="there are: second, third, mine"):
        registry.driver("first")


# Parameters.


@pytest.mark.parametrize(
    "uri",
    [
        "local-task://?thread=4",
        "local-task://?threads=x",
        "local-task://?threads=-1",
        "local-task://?threads=65",
        "local-task://?spin_us=-3",
        "local-task://?cpu_ids=a",
        "local-task://?cpu_ids=99999",
        pytest.param(f"local-task://?nodes={'9' * 5000}", id="a node of thousands of digits"),
        "local-sync://?threads=4",
        "null://?x=1",
    ],
)
def test_bad_parameters_are_named(registry: DriverRegistry, uri: str) -> None:
    with pytest.raises((InvalidArgumentError, OutOfRangeError)):
        registry.create_device(uri)


def test_parameters_of_local_task() -> None:
    assert parse_parameters({"threads": "5"}).topologies[0].worker_count == 5
    assert parse_parameters({"task_topology_group_count": "7"}).topologies[0].worker_count == 7
    assert parse_parameters({"max_group_count": "1"}).topologies[0].worker_count == 1
    assert parse_parameters({}).topologies[0].worker_count == min(64, available_processors())
    parsed = parse_parameters({"task_worker_spin_us": "7", "task_worker_local_memory": "4096"})
    assert (parsed.spin_microseconds, parsed.local_memory) == (7, 4096)
    processor = min(os.sched_getaffinity(0))
    pinned = parse_parameters({"cpu_ids": f"{processor};{processor},{processor}"}).topologies
    assert [topology.processors for topology in pinned] == [(processor,), (processor, processor)]


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("threads=1&group_count=2", "'threads' and 'group_count'"),
        ("group_count=1&threads=1", "'group_count' and 'threads'"),
        ("threads=1&task_topology_group_count=2", "'threads' and 'task_topology_group_count'"),
        ("spin_us=1&task_worker_spin_us=2", "'spin_us' and 'task_worker_spin_us'"),
    ],
)
def test_two_names_of_one_parameter_are_refused(registry: DriverRegistry, uri: str, names: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{names} are names of one parameter"):
        registry.create_device(f"local-task://?{uri}")


def test_parameters_of_the_caller_are_defaults(registry: DriverRegistry) -> None:
    with registry.create_device("local-task", parameters={"threads": "3"}) as device:
        assert device.query_i64("hal.dispatch", "concurrency") == (True, 3)
    with registry.create_device("local-task://?threads=2", parameters={"threads": "3"}) as device:
        assert device.query_i64("hal.dispatch", "concurrency") == (True, 2)


# Queries.


class FakeLoader(ExecutableLoader):
    def __init__(self, format: str, failure: StatusError | None = None) -> None:
        self.format, self.failure = format, failure

    def query_support(self, format: str) -> bool:
        return format == self.format

    def try_load(self, parameters: ExecutableParameters) -> Executable:
        if self.failure is not None:
            raise self.failure
        return NullExecutable()

    def query_i64(self, category: str, key: str) -> int | None:
        return {"avx2": 1, "avx512f": 0}.get(key) if category == "hal.cpu" else None


@pytest.mark.parametrize("name", ["local-sync", "local-task"])
def test_queries(registry: DriverRegistry, name: str) -> None:
    with registry.create_device(name, [FakeLoader("some-format")]) as device:
        assert device.query_i64("hal.device.id", name) == (True, 1)
        assert device.query_i64("hal.device.id", "local*") == (True, 1)
        assert device.query_i64("hal.device.id", "*") == (True, 1)
        assert device.query_i64("hal.device.id", "local-????") == (True, 1)
        assert device.query_i64("hal.device.id", "[l]ocal*") == (True, 0)
        assert device.query_i64("hal.device.id", "cuda") == (True, 0)
        assert device.query_i64("hal.executable.format", "some-format") == (True, 1)
        assert device.query_i64("hal.executable.format", "cuda-nvptx-fb") == (True, 0)
        assert device.query_i64("hal.device", "concurrency") == (True, 1)
        assert device.query_i64("hal.cpu", "avx2") == (True, 1)
        assert device.query_i64("hal.cpu", "avx512f") == (True, 0)
        assert device.query_i64("hal.cpu", "nonsense") == (False, 0)
        assert device.query_i64("cuda.device", "compute_capability_major") == (False, 0)
        assert device.query_i64("", "") == (False, 0)


def test_concurrency(registry: DriverRegistry) -> None:
    with registry.create_device("local-sync") as device:
        assert device.query_i64("hal.dispatch", "concurrency") == (True, 1)
    processor = min(os.sched_getaffinity(0))
    with registry.create_device(f"local-task://?cpu_ids={processor},{processor};{processor}") as device:
        assert device.query_i64("hal.device", "concurrency") == (True, 2)
        assert device.query_i64("hal.dispatch", "concurrency") == (True, 2)


def test_null_stands_for_any_device(registry: DriverRegistry) -> None:
    with registry.create_device("null") as device:
        assert device.query_i64("hal.device.id", "local*") == (True, 1)
        assert device.query_i64("hal.executable.format", "anything") == (True, 1)
        executable = device.create_executable_cache().prepare_executable(
            ExecutableParameters("anything", memoryview(b"not an executable"))
        )
        assert executable.lookup("f") == executable.lookup("f") != executable.lookup("g")


# Objects.


def test_whole_device_vtable(any_device: Device, tmp_path: Path) -> None:
    """What is not tested elsewhere: every operation of the seed system's device is there and answers."""
    assert any_device.host_allocator.allocate(0x46, 3, 8).byte_length == 8
    replacement = HeapAllocator()
    any_device.replace_device_allocator(replacement)
    assert any_device.device_allocator is replacement
    any_device.replace_channel_provider(None)
    any_device.queue_flush()
    event = any_device.create_event()
    command_buffer = any_device.create_command_buffer(0, 3)
    command_buffer.signal_event(event, 4)
    command_buffer.wait_events([event], 4, 4)
    command_buffer.reset_event(event, 4)
    command_buffer.finalize()
    assert isinstance(any_device.create_executable_cache("x"), ExecutableCache)
    any_device.trim()


def test_channels_need_a_group(host_memory_device: Device) -> None:
    with pytest.raises((UnimplementedError, FailedPreconditionError), match="channel"):
        host_memory_device.create_channel(-1, None, None, -1, -1)


def test_closed_device_refuses_work(any_device: Device) -> None:
    any_device.close()
    any_device.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        any_device.queue_barrier(-1, None, None)


def test_local_task_is_given_up_without_closing(registry: DriverRegistry) -> None:
    device = registry.create_device("local-task://?threads=2")
    assert isinstance(device, TaskDevice)
    assert device.topologies[0].worker_count == 2


def test_executable_cache_order() -> None:
    parameters = ExecutableParameters("x", memoryview(b""))
    first_cause = FakeLoader("x", NotFoundError("symbol 'query' is missing"))
    second_cause = FakeLoader("x", NotFoundError("another"))
    working, other = FakeLoader("x"), FakeLoader("y")
    cache = ExecutableCache("", [other, first_cause, working])
    assert cache.can_prepare_format("x") and not cache.can_prepare_format("z")
    assert isinstance(cache.prepare_executable(parameters), NullExecutable)
    with pytest.raises(NotFoundError, match="symbol 'query' is missing"):
        ExecutableCache("", [first_cause, second_cause]).prepare_executable(parameters)
    with pytest.raises(NotFoundError, match="format 'x'"):
        ExecutableCache("", [other]).prepare_executable(parameters)
    broken = FakeLoader("x", FailedPreconditionError("damaged"))
    with pytest.raises(FailedPreconditionError, match="damaged"):
        ExecutableCache("", [broken, working]).prepare_executable(parameters)


@pytest.mark.parametrize("query", ["threads=1&threads=2", "threads=1&threads=1", "threads=1&thre%61ds=2"])
def test_a_parameter_is_given_once(query: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'threads' is given twice"):
        parse_uri(f"local-task://?{query}")
