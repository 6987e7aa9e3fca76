"""Arrays of libraries with DLPack's functions in C, on a CUDA device."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.base import dlpack
from jitree.base.dlpack_names import VERSIONED_NAME
from jitree.cuda import interop
from tests.api import producers
from tests.cuda.fake import FakeDriver
from tests.cuda.test_exchange import Producer


def _give(value: Any, out: int) -> int:
    """A tensor that is given back by its deleter, as a capsule's is."""
    capsule = value.array.__dlpack__(stream=-1, max_version=(1, 0))
    address = dlpack.pointer(id(capsule), VERSIONED_NAME)
    ctypes.c_void_p.from_address(out).value = address
    interop._set_name(id(capsule), interop._USED_VERSIONED)
    value.given += 1
    return 0


def _tell_stream(kind: int, number: int, out: int) -> int:
    ctypes.c_void_p.from_address(out).value = CProducer.stream
    return 0


class CProducer(Producer):
    """With DLPack's functions in C."""

    stream: int | None = 2
    given = 0
    requires_grad = False


_GIVE, _TELL = dlpack._Take(_give), dlpack._StreamOf(_tell_stream)
INTERFACE = producers.interface(None)
INTERFACE.managed_of_object, INTERFACE.current_work_stream = map(producers.address_of, (_GIVE, _TELL))
setattr(CProducer, dlpack.EXCHANGE_ATTRIBUTE, producers.capsule(INTERFACE))


def test_functions_in_c_order_after_the_stream_of_the_library(fake: FakeDriver, session: Session) -> None:
    array = session.to_device(np.arange(6, dtype=np.float32))
    producer = CProducer(array)
    for stream, expected in ((2, 2), (None, 1)):
        CProducer.stream = stream
        fake.calls.clear()
        taken = session.to_device(producer)
        assert [int(arguments[1]) for name, arguments in fake.calls if name == "cuEventRecord"] == [expected]
        assert taken.buffer_view.buffer.address == array.buffer_view.buffer.address
        assert np.array_equal(np.asarray(taken), np.arange(6, dtype=np.float32))
    assert producer.given == 2 and not producer.options
    producer.requires_grad = True
    session.to_device(producer)
    assert producer.given == 2 and producer.options


def test_what_functions_in_c_give_is_given_back(session: Session) -> None:
    exported = len(interop._exported)
    taken = session.to_device(CProducer(session.to_device(np.zeros(4, np.float32))))
    assert len(interop._exported) == exported + 1
    del taken
    gc.collect()
    device: Any = session.device
    device.trim()
    assert len(interop._exported) == exported


def test_a_tensor_of_another_version_is_given_back(session: Session) -> None:
    exported = len(interop._exported)
    array = session.to_device(np.zeros(4, np.float32))
    capsule = array.__dlpack__(max_version=(1, 0))
    record = dlpack.Versioned.from_address(dlpack.pointer(id(capsule), VERSIONED_NAME))
    interop._set_name(id(capsule), interop._USED_VERSIONED)
    record.major = 2
    with pytest.raises(ValueError, match=r"version 2\.0"):
        interop.Taken(record)
    gc.collect()
    assert len(interop._exported) == exported


@pytest.mark.parametrize("claim", [{"rank": -1}, {"rank": 1 << 30}, {"shape": None}])
def test_a_tensor_of_sizes_that_no_array_has_is_given_back(session: Session, claim: dict[str, Any]) -> None:
    exported = len(interop._exported)
    capsule = session.to_device(np.zeros(4, np.float32)).__dlpack__(max_version=(1, 0))
    record = dlpack.Versioned.from_address(dlpack.pointer(id(capsule), VERSIONED_NAME))
    interop._set_name(id(capsule), interop._USED_VERSIONED)
    for name, value in claim.items():
        setattr(record.tensor, name, value)
    with pytest.raises(BufferError, match="dimensions of the sizes that it states"):
        interop.Taken(record)
    gc.collect()
    assert len(interop._exported) == exported
