"""Programs that update an argument where it lies, without a declaration of that, on a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jitree import Module, Session
from tests.cuda.test_exchange import Foreign, Producer

UPDATE = Path(__file__).parent.parent / "data" / "cuda" / "update.vmfb"
Y = np.full(4, -1, np.float32)
ROUNDS = range(6)
"""The slow path, recordings and machine code."""

pytestmark = pytest.mark.usefixtures("machine_code")


@pytest.fixture
def module(session: Session) -> Module:
    return session.load(UPDATE)


def test_the_host_sees_what_is_written(session: Session, module: Module) -> None:
    for _ in ROUNDS:
        array = session.to_device(np.zeros(64, np.float32))
        assert not np.asarray(array).any()
        result = module.update(array, Y)
        assert np.asarray(array)[0] == np.asarray(result)[0] == -1


def test_the_host_sees_it_in_the_same_array(session: Session, module: Module) -> None:
    array = session.to_device(np.zeros(64, np.float32))
    for number in ROUNDS:
        module.update(array, np.full(4, number, np.float32))
        assert np.asarray(array)[:5].tolist() == [number] * 4 + [0]


def test_arrays_that_are_for_reading_alone_are_copied(session: Session, module: Module) -> None:
    for _ in ROUNDS:
        array = session.to_device(np.zeros(64, np.float32))
        kept = session.to_device(Foreign(array, data=(array.buffer_view.buffer.address, True)))
        assert np.asarray(module.update(Producer(kept), session.to_device(Y)))[0] == -1
        array._elements = None
        assert not np.asarray(array).any()
