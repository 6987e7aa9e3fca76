"""Programs for several devices: whose memory arrays are in."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Program, Session
from jitree.errors import InvalidArgumentError
from jitree.hal.device import Device
from tests.api.direct import X, direct, needs_machine_code
from tests.api.programs import PROGRAMS
from tests.assembler import Assembler

PROGRAM = PROGRAMS / "two_devices.vmfb"
CHOICES = (("local-sync", "local-sync"), ("local-task://?threads=2", "local-sync"))


@pytest.fixture(params=CHOICES, ids="+".join)
def module(request: pytest.FixtureRequest) -> Any:
    return jitree.Session(request.param, tier="fast").load(PROGRAM)


def require_homes(module: Any) -> None:
    devices = module.both.session.devices
    first, second = module.both(X, X + 1)
    assert first.device is devices[0] and second.device is devices[1]
    assert np.array_equal(first, 2 * X) and np.array_equal(second, 2 * X + 2)
    moved = module.moved(X)
    assert moved.device is devices[1] and np.array_equal(moved, 2 * X)
    assert module.moved(moved).device is devices[1]


def test_an_array_names_the_device_that_its_memory_is_of(module: Any) -> None:
    require_homes(module)


@needs_machine_code
def test_so_do_arrays_of_calls_by_machine_code(module: Any) -> None:
    direct(module.both, X, X)
    direct(module.moved, X)
    require_homes(module)
    assert module.both.is_direct and module.moved.is_direct


def test_an_array_of_another_device_is_copied_to_the_first(module: Any) -> None:
    session, moved = module.both.session, module.moved(X)
    here = session.to_device(moved)
    assert here.device is session.device and here is not moved
    assert session.to_device(here) is here and np.array_equal(here, moved)


def test_memory_of_a_device_outside_of_the_session_is_of_its_first() -> None:
    other = jitree.Session("local-sync")
    with jitree.Session(CHOICES[0]) as session:
        echo = session.load(PROGRAMS / "echo.vmfb").e1_f32
        array = echo(other.to_device(X))
        assert array.device is session.device and np.array_equal(array, X)


def test_memory_keeps_no_device() -> None:
    session = jitree.Session(CHOICES[0])
    moved = session.load(PROGRAM).moved(X).buffer_view
    session.close()
    del session
    assert moved.buffer.allocation.device() is None


def test_functions_in_python_get_arrays_with_their_devices() -> None:
    seen: list[Device] = []
    custom = jitree.CustomModule("host")

    @custom.export
    def look(array: jitree.Array) -> jitree.Array:
        seen.append(array.device)
        return array

    body = "[%r1] = call @host.look [%r0]\nreturn [%r1]"
    program = Assembler("m").import_function("host.look", "0r_r").function("f", "0r_r", body).build()
    with jitree.Session(CHOICES[0]) as session:
        moved = session.load(PROGRAM).moved(X)
        session.load(program, custom)
        assert session["m.f"](moved).device is session.devices[1]
        assert seen == [session.devices[1]]


def test_a_mapping_is_a_list_with_names() -> None:
    names = {"first": "local-sync", "second": "local-task"}
    program = Program(PROGRAM, device=names)
    assert program == Program(PROGRAM, device=list(names.values()))
    with Session(device=names) as session:
        assert [device.id for device in session.devices] == list(names.values())
        session.load(PROGRAM)
        assert [device.id for device in pickle.loads(pickle.dumps(session)).devices] == list(names.values())
    with pytest.raises(InvalidArgumentError, match="URI"):
        Session(device={"first": 3})  # type: ignore[dict-item]
