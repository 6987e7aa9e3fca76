"""What the system, or the end of the interpreter, refuses a thread for."""

from __future__ import annotations

import pytest

from jitree.base.platform.threads import thread_refusals
from jitree.errors import FailedPreconditionError, ResourceExhaustedError


def refuse(text: str) -> None:
    with thread_refusals("watching waits"):
        raise RuntimeError(text)


def test_what_a_missing_thread_is_for() -> None:
    with pytest.raises(ResourceExhaustedError, match=r"watching waits: cannot start a thread.*ulimit"):
        refuse("can't start new thread")


@pytest.mark.parametrize("what", ["create new thread at", "schedule new futures after"])
def test_the_end_of_the_interpreter_is_no_limit_on_threads(what: str) -> None:
    """The message said to raise the limit on processes."""
    with pytest.raises(FailedPreconditionError, match="watching waits: Python starts no threads"):
        refuse(f"can't {what} interpreter shutdown")
