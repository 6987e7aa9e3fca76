"""Objects that own something are not copied, not even by pickle; they can be shown at any time."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Call, Session, VmBuffer, VmList, donate
from jitree.errors import UnimplementedError
from jitree.hal.fence import Fence
from jitree.integrations.batching import Batcher
from tests.api.programs import ARITHMETIC

X = np.arange(4, dtype=np.float32)


def owners(session: Session) -> dict[str, Any]:
    module = session.load(ARITHMETIC)
    array = module.add(X, X)
    return {
        "session": session, "module": module, "function": module.add, "call": Call(module.add),
        "context": session.context, "VM function": module.add.vm_function, "instance": session.instance,
        "device": session.device, "allocator": session.device_allocator, "view": array.buffer_view,
        "buffer": array.buffer_view.buffer, "allocation": array.buffer_view.buffer.allocation,
        "donation": donate(array),
        "fence": Fence.create(session.device), "semaphore": session.device.create_semaphore(0),
        "VM buffer": VmBuffer.alias(b"abc"), "list": VmList("i32", 2), "deadline": session.deadline(1),
        "batches": Batcher(module.add), "explanation": session.explain(module.scale),
        "taps": session.tap("*"),
    }  # fmt: skip


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda way: way.__name__)
def test_owners_are_not_copied(way: Callable[[Any], object]) -> None:
    session = Session("local-sync", tier="plain")
    for name, owner in owners(session).items():
        if way is pickle.dumps and name in ("session", "module", "function"):
            continue  # which pickle as what made them
        can = "d: .* can be pickled" if name in ("session", "module", "function") else "d or pickled: "
        with pytest.raises(UnimplementedError, match=f"cannot be copie{can}.*") as refusal:
            way(owner)
        assert "use the same object" in str(refusal.value)
    with pytest.raises(UnimplementedError):
        copy.deepcopy({"model": session})
    module = session.modules["arithmetic"]
    assert np.array_equal(module.add(X, X), 2 * X) and not session.closed


def test_copies_of_arrays_are_their_own() -> None:
    array = Session("local-sync", tier="plain").to_device(X)
    for made in (copy.copy(array), copy.deepcopy(array), pickle.loads(pickle.dumps(array))):
        assert type(made) is type(array) and np.array_equal(made, X)
        made[0] = 5
    assert np.array_equal(array, X)


def test_everything_can_be_shown_when_the_session_is_closed() -> None:
    session = Session("local-sync", tier="plain")
    shown = owners(session)
    array = shown["module"].add(X, X)
    session.close()
    for value in (*shown.values(), array):
        assert repr(value) and str(value)
    text = repr(shown["module"])
    assert text.startswith("<jitree.Module arithmetic of ") and "add" in text and "has been closed" in text
    assert dir(shown["module"]) and "add" in shown["module"] and list(shown["module"])
    with pytest.raises(jitree.StatusError, match="the session has been closed"):
        assert shown["module"].signatures
