"""Where an object of the caller is asked what it has, code of its class may run, and a signal's handler in
that. What the handler raises goes through, also AttributeError, which such questions take for a no."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.api.calls.native.acceptance import Producers
from jitree.api.calls.storage_arguments import storage_of
from jitree.api.calls.tensor_packing import as_array
from jitree.api.custom_types import _aliased
from jitree.base import dlpack
from jitree.compare import peers
from jitree.compare.sides import _array as compared
from jitree.compat.iree_runtime.vm import VmModule
from jitree.cuda.interop import CudaExchange
from jitree.errors import attribute_of, has_attribute
from jitree.loaders.system_library import _address
from jitree.params.provider import _as_array, state_of
from jitree.vmfb import archive
from tests.api.programs import ARITHMETIC

Asked = Callable[[Any], object]
late = AttributeError("too late")


@pytest.fixture
def alarm() -> Iterator[Callable[[], None]]:
    def expire(number: int, frame: FrameType | None) -> None:
        raise late

    before = signal.signal(signal.SIGALRM, expire)
    yield lambda: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def lacking(name: str, alarm: Callable[[], None]) -> Any:
    """A class without attributes, with code for the question, as its objects have; the alarm comes at one of
    them."""

    class Lacking(type):
        def __getattr__(self, asked: str) -> Any:
            if asked == name:
                alarm()
            raise AttributeError(asked)

    return Lacking("Lacking", (), {"__getattr__": Lacking.__getattr__})


ASKED: dict[str, tuple[str, Asked]] = {
    "a value": ("x", lambda value: attribute_of(value, "x")),
    "whether there is one": ("x", lambda value: has_attribute(value, "x")),
    "an argument": ("__dlpack__", as_array),
    "an argument of the device": ("__cuda_array_interface__", as_array),
    "an argument of numpy": ("__array__", as_array),
    "storage": ("__dlpack__", lambda value: storage_of(("output0",), value, None)),  # type: ignore[arg-type]
    "a device": ("__dlpack_device__", dlpack.device_kind),
    "what is not computed": ("is_neg", dlpack.has_elements),
    "what is negative": ("is_neg", dlpack.require_elements),
    "a file": ("name", archive.name_of),
    "whether it is a file": ("read", archive.content),
    "parameters": ("detach", _as_array),
    "parameters of numpy": ("__array__", _as_array),
    "a state": ("state_dict", state_of),
    "a hint": ("__value__", _aliased),
    "results": ("detach", compared),
    "a model": ("run", peers.is_onnx),
    "a module": ("export_names", VmModule),
    "a function of a plugin": ("address", lambda value: _address("f", value)),
    "an array": ("__array__", as_array),
    "a class that machine code may know": ("__dlpack__", lambda value: Producers().learn(value)),
    "an array of a GPU": (
        "__cuda_array_interface__",
        lambda value: CudaExchange.is_importable(None, value),  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_what_is_asked(what: str, alarm: Callable[[], None]) -> None:
    name, ask = ASKED[what]
    with pytest.raises(AttributeError) as caught:
        ask(lacking(name, alarm)())
    assert caught.value is late


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("name", ["__dlpack__", "__cuda_array_interface__", "__array__"])
def test_the_argument_of_a_call(name: str, device: str, alarm: Callable[[], None]) -> None:
    with Session(device) as session:
        add = session.load(ARITHMETIC).add
        with pytest.raises(AttributeError) as caught:
            add(lacking(name, alarm)(), np.ones(4, np.float32))
        assert caught.value is late
