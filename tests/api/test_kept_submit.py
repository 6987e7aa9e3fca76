"""Asynchronous functions whose ``submit`` was looked up before machine code made their calls: in a process of
its own, where no other test has had machine code loaded."""

from __future__ import annotations

import subprocess
import sys

from tests.api.programs import ASYNCHRONOUS

PROGRAM = """
import sys
import numpy as np
import jitree
from jitree.api.asynchronous import AsynchronousFunction

x = np.arange(64, dtype=np.float32)
with jitree.Session("local-sync", tier="fast") as session:
    add = session.load(sys.argv[1]).add
    submit = add.submit
    for _ in range(500):
        submit(x, x)
        if add.is_direct:
            break
    assert add.is_direct and type(submit).__name__ == "method"
    slow, asked = AsynchronousFunction.submit_slowly, []
    AsynchronousFunction.submit_slowly = lambda *given: asked.append(given) or slow(*given)
    assert np.array_equal(submit(x, x), x + x) and not asked
    try:
        submit(x)
    except jitree.errors.InvalidArgumentError as error:
        assert "expected 2 arguments but passed 1" in str(error), error
    else:
        raise AssertionError("an argument is missing")
    assert add.submit.__doc__ == submit.__doc__ and add.submit.__name__ == "submit"
print("done")
"""


def test_callers_that_keep_the_method_have_machine_code() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ASYNCHRONOUS)], capture_output=True, text=True, check=False
    )
    assert process.stdout.split() == ["done"], process.stderr
