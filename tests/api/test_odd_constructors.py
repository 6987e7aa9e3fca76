"""Whatever public constructors and methods are given that is no argument is refused with a status."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from jitree import Instance, Session, VmBuffer, VmList
from jitree.errors import StatusError
from jitree.hal.heap import HeapAllocator
from tests.api.programs import ARITHMETIC
from tests.base.rows import each_row

ODD = [
    None, 1.5, "text", b"\xff", float("nan"), object(), [], {}, (1, 2), np.zeros((2, 0)), np.array(["a"]), 1j,
    -(1 << 63),
]  # fmt: skip


def some(odd: Any) -> Any:
    """Not what means that there is no argument."""
    return 1 if odd is None or (isinstance(odd, dict) and not odd) else odd


@cache
def _session() -> Session:
    session = Session("local-sync")
    session.load(ARITHMETIC)
    return session


CALLS: dict[str, Callable[[Any], object]] = {
    "VmBuffer": VmBuffer,
    "VmBuffer alignment": lambda odd: VmBuffer(8, odd),
    "VmList": VmList,
    "VmList capacity": lambda odd: VmList("i32", odd),
    "VmList.reserve": lambda odd: VmList("i32").reserve(odd),
    "VmList.resize": lambda odd: VmList("i32").resize(odd),
    "VmList[]": lambda odd: VmList("i32", 2)[odd],
    "VmList[] =": lambda odd: VmList("i32", 2).__setitem__(odd, 1),
    "VmList.tag": lambda odd: VmList("i32", 2).tag(odd),
    "allocate": lambda odd: HeapAllocator().allocate(0, 0, odd),
    "allocate, aligned": lambda odd: HeapAllocator().allocate(0, 0, 8, alignment=odd),
    "allocate, memory type": lambda odd: HeapAllocator().allocate(odd, 0, -1),
    "Instance": Instance,
    "Instance, loaders": lambda odd: Instance(None, (odd,)),
    "create_device": lambda odd: Instance.default().create_device(odd),
    "create_device, parameters": lambda odd: Instance.default().create_device("local-sync", some(odd)),
    "driver": lambda odd: Instance.default().driver(odd),
    "Session": lambda odd: Session(some(odd)),
    "DriverRegistry.driver": lambda odd: Instance.default().driver_registry.driver(odd),
    "DriverRegistry.unregister": lambda odd: Instance.default().driver_registry.unregister(odd),
    "RefTypes.lookup": lambda odd: Instance.default().ref_types.lookup(odd),
    "RefTypes.register": lambda odd: Instance.default().ref_types.register(odd, odd),
    "Context.invoke": lambda odd: _session().context.invoke(odd),
    "Context.invoke, arguments": lambda odd: _session().context.invoke(
        _session().lookup("arithmetic.add").vm_function, odd
    ),
    "Context.register": lambda odd: _session().context.register([odd]),
    "to": lambda odd: _session().lookup("arithmetic.add").to(odd),
    "import_file": lambda odd: _session().device.import_file(0, 1, cast("Any", [odd])),
    "import_file, access": lambda odd: _session().device.import_file(0, odd, b""),
    "import_file, offset": lambda odd: _session().device.import_file(0, 1, b"", odd),
    "create_semaphore": lambda odd: _session().device.create_semaphore(
        cast("Any", str(odd) if type(odd) is int else odd)
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_are_no_arguments(call: str) -> None:
    def check(odd: Any) -> None:
        if call == "Instance" and odd is None:
            return
        with pytest.raises(StatusError):
            CALLS[call](odd)

    each_row({f"{type(odd).__name__}{place}": odd for place, odd in enumerate(ODD)}, check)


@pytest.mark.parametrize("odd", [None, 5, "text", np.zeros((4, 4))[:, 1], [1, 2]])
def test_what_has_no_bytes(odd: Any) -> None:
    with pytest.raises(StatusError, match="source: expected an object with the buffer protocol"):
        VmBuffer.alias(odd)


def test_numbers_beyond_64_bits() -> None:
    with pytest.raises(StatusError, match="value: expected an integer of 64 bits"):
        VmList("i64").append(1 << 70)
