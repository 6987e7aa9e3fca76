"""Forked processes do not wait for what threads of their parent were importing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import os, sys, threading
from importlib import import_module
from jitree import base

base.__path__.append(sys.argv[1])
base.begun, base.go_on, base.parent = threading.Event(), threading.Event(), os.getpid()
thread = threading.Thread(target=import_module, args=("jitree.base.slowly",))
thread.start()
base.begun.wait(20)
child = os.fork()
if child == 0:
    os._exit(import_module("jitree.base.slowly").answer)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
base.go_on.set()
thread.join()
print(code, import_module("jitree.base.slowly").answer)
"""
_MODULE = """
import os
from jitree import base

if os.getpid() == base.parent:
    base.begun.set()
    base.go_on.wait(20)
answer = 42
"""


def test_a_module_that_another_thread_imports(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(_MODULE)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "42 42\n"), done.stderr
