"""Objects in circles whose ``__del__`` uses a session: whatever the garbage collector finalizes first, a call
gives its result or a status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jitree import Session

_EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"
_PROGRAMS = Path(__file__).parents[1] / "data" / "programs"

_SCRIPT = """
import gc, sys
import numpy as np
import jitree
from jitree.errors import StatusError

tier, device, *paths = sys.argv[1:]
X = np.arange(4, dtype=np.float32)
outcomes = []

class User:
    def __del__(self, StatusError=StatusError, write=sys.stderr.write, isinstance=isinstance, str=str):
        for use in self.uses:
            try:
                outcome = "right" if use() else "wrong"
            except StatusError:
                outcome = "status"
            except BaseException as error:
                outcome = f"{type(error).__name__}: {error}"
            if outcome not in ("right", "status"):
                write(f"{self.age}: {outcome}\\n")
            self.outcomes.append(outcome)

def uses(session, name, arguments, kept):
    function = session[name]
    right = np.asarray(function(*arguments)).tobytes()
    view = np.asarray(kept)
    return (
        lambda: np.asarray(function(*arguments)).tobytes() == right,
        lambda: bytes(view) == right,
        lambda: np.asarray(function(*arguments)).tobytes() == right and bytes(view) == right,
        lambda: kept.buffer_view.shape is not None and kept.to_host().tobytes() == right,
        lambda: np.asarray(function.submit(*arguments)).tobytes() == right,
        lambda: session.to_device(X).to_host().tobytes() == X.tobytes(),
    )

def circle(path):
    users = [User()]
    session = jitree.Session(device, tier=tier)
    users.append(User())
    module = session.load(path)
    users.append(User())
    name = next(iter(module.names))
    tensors = [item.tensor for item in module[name].arguments]
    arguments = [np.ones([size or 4 for size in item.shape], item.element_type.dtype) for item in tensors]
    for count in (1, 1, 1, 10):
        for _ in range(count):
            kept = module[name](*arguments)
        users.append(User())
    for age, user in enumerate(users):
        user.uses = uses(session, module[name].full_name, arguments, kept)
        user.age, user.outcomes, user.others = age, outcomes, users

for path in paths:
    circle(path)
    gc.collect()
    assert len(outcomes) == 7 * 6, len(outcomes)
    outcomes.clear()
for path in paths:  # those that are left at exit
    circle(path)
"""
_PATHS = tuple(
    str(path)
    for path in (
        _EXAMPLE / "digits.llvm-cpu.vmfb", _EXAMPLE / "digits.vmvx.vmfb", _PROGRAMS / "library.vmfb",
        _PROGRAMS / "asynchronous.vmfb",
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("tier", "device"), [("plain", "local-sync"), ("fast", "local-sync"), ("fast", "local-task")]
)
def test_calls_in_finalizers_and_at_exit(tier: str, device: str) -> None:
    paths = [path for path in _PATHS if tier != "plain" or ".vmvx." not in path]  # takes half a minute there
    program = [sys.executable, "-c", _SCRIPT, tier, device, *paths]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_session_that_the_collector_has_ended_can_be_shown() -> None:
    session = Session("local-sync")
    session.end()
    assert session.closed and repr(session) == "<jitree.Session on ; closed>"


_AT_EXIT = """
import sys
import numpy as np
import jitree
from jitree.errors import FailedPreconditionError

session = jitree.Session(sys.argv[1])
module = session.load(sys.argv[2])
number = session.context.lookup(f"{module.name}.{sys.argv[3]}")
X = np.ones((8, 8), np.float32)
for _ in range(int(sys.argv[4])):
    module[next(iter(module.names))](X)

class Last:
    def __init__(self):
        self.itself = self

    def __del__(self, refused=FailedPreconditionError, names=tuple(module.names), write=sys.stdout.write):
        for use in (lambda: module[names[0]](X), lambda: session.context.invoke(number, [])):
            try:
                use()
            except refused:
                write("refused ")

last = Last()
"""


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("calls", ["1", "8"])
def test_what_was_not_needed_before_exit(device: str, calls: str) -> None:
    """What a call needs is imported at its first use, so a call at exit can find that it cannot be."""
    program = [sys.executable, "-c", _AT_EXIT, device, _PATHS[0], "__init", calls]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout in ("refused refused ", "refused ")
