"""Listing of drivers, devices and workers."""

from __future__ import annotations

import pytest

from jitree.errors import StatusError, UnavailableError
from jitree.hal.driver import DriverRegistry
from jitree.hal.local.drivers import DRIVERS
from jitree.tools import devices


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert devices.main(flags) == 0
    return capsys.readouterr().out


def test_drivers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--list_drivers").splitlines()
    assert lines[:3] == [lines[0], "# Available HAL drivers", lines[0]]
    assert lines[4] == ""
    names = [line[:18] for line in lines[5:]]
    assert names == sorted(names, key=str.strip)
    assert {"            cuda: ", "      local-sync: ", "      local-task: "} <= set(names)


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"local-sync://", "local-task://"} <= set(printed(capsys, "--list_devices").split())
    assert printed(capsys, "--list_devices=local-task") == "local-task://\n"
    with pytest.raises(StatusError, match="NOT_FOUND; no driver 'nope' registered"):
        devices.main(["--list_devices=nope"])


def test_device_details(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dump_devices=local-task")
    assert "# Enumerated devices for driver 'local-task'\n" in text
    assert "# --device=local-task://\n#   default\n" in text


def test_topologies_follow_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dump_task_topologies", "--task_topology_group_count=3")
    assert "# topology[0]: 3 worker groups, numa node: any\n" in text and "# group[2]: '" in text
    assert "affinity: (unspecified)" in text
    text = printed(capsys, "--dump_task_topologies", "--task_topology_cpu_ids=0", "--task_topology_cpu_ids=0")
    assert (
        "# topology[1]: 1 worker groups" in text and "affinity: group=0, id=0, smt=0\n#  caches: l1d=" in text
    )


def test_without_flags_drivers_and_devices_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert "# Available HAL drivers" in text and "\nlocal-sync://\n" in text


def test_a_driver_that_cannot_start_is_named_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise UnavailableError("libbroken.so is missing")

    registry = DriverRegistry(DRIVERS.items())
    registry.register("broken", "never starts", broken)  # type: ignore[arg-type]
    assert "local-sync://\n" in devices.list_devices(registry, "")
    assert "# broken: unavailable: UNAVAILABLE; libbroken.so is missing" in capsys.readouterr().err
