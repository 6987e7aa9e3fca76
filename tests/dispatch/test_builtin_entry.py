"""Machine code as builtin functions."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from array import array

import pytest

from jitree.dispatch.builtin_entry import builtin_entry

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="there is code for x86-64 only")

_LIBRARY = ctypes.CDLL(None)


def address(name: str) -> int:
    return ctypes.cast(getattr(_LIBRARY, name), ctypes.c_void_p).value or 0


def test_it_calls_with_its_state_and_gives_a_truth_value() -> None:
    text = ctypes.create_string_buffer(b"abc")
    length = builtin_entry(address("strlen"), ctypes.addressof(text))
    assert length is not None
    assert length() is True
    text.value = b""
    assert length() is False
    with pytest.raises(TypeError):
        length(1)  # type: ignore[call-arg]


def test_it_lives_as_long_as_it_is_used() -> None:
    text = ctypes.create_string_buffer(b"abc")
    functions = [builtin_entry(address("strlen"), ctypes.addressof(text)) for _ in range(50)]
    last = functions[-1]
    del functions
    gc.collect()
    assert last is not None
    assert last()


def test_other_threads_run_meanwhile() -> None:
    """The call ends when another Python thread writes to a pipe."""
    reading, writing = os.pipe()
    descriptors = array("i", (reading, 1))  # a pollfd that waits for input
    kept = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(
        lambda place: _LIBRARY.poll(ctypes.c_void_p(place), 1, 20_000)
    )
    code = ctypes.cast(kept, ctypes.c_void_p).value or 0
    wait = builtin_entry(code, descriptors.buffer_info()[0])
    assert wait is not None

    def write() -> None:
        time.sleep(0.05)
        os.write(writing, b"x")

    thread = threading.Thread(target=write)
    thread.start()
    assert wait() is True
    thread.join()
    for descriptor in (reading, writing):
        os.close(descriptor)


def test_a_thread_that_comes_back_when_python_ends() -> None:
    """Python ends such threads in the middle of the call."""
    program = """
import ctypes, threading, time
from jitree.dispatch.builtin_entry import builtin_entry
library = ctypes.CDLL(None)
sleep = builtin_entry(ctypes.cast(library.usleep, ctypes.c_void_p).value, 300_000)
class Late:
    def __del__(self, wait=time.sleep):
        wait(0.6)
        print("done", flush=True)
late = Late()
threading.Thread(target=sleep, daemon=True).start()
time.sleep(0.1)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


def test_words_are_written_before() -> None:
    state = array("q", [0] * 16)
    offsets = {0: ord("a") | ord("b") << 8, 8: -1, 40: 1 << 62, 120: 7}
    first = builtin_entry(address("strlen"), state.buffer_info()[0], offsets)
    assert first is not None and first()
    assert [state[offset // 8] for offset in offsets] == list(offsets.values())
