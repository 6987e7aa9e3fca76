"""How workers collect, share and report the tests, which takes a good part of their time.

To compile the files of tests, with the messages of their assertions, takes three quarters of what collecting
them does. Where Python may keep no bytecode beside sources (``PYTHONDONTWRITEBYTECODE``), it is kept in
pytest's folder; and of workers that compile all of it, each begins with other files and finds what the others
have compiled by then. Files that take long although they have few tests go first, so that none of them is
still running when all other workers have ended.

To send what a worker has to say of a test, and to read that, takes a third of a millisecond each time. So it
says two things of a test that passes, not six.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest
from _pytest.runner import runtestprotocol

Item = TypeVar("Item")
_FOLDER: Final = Path(__file__).parent
_SLOW: Final = (
    "compiling/test_onnx_compiling.py", "kernels/test_changed_constants.py", "codegen/test_image_shipped.py",
    "fuzz/test_campaigns.py", "kernels/test_replacement.py", "loaders/test_bad_builds.py",
    "fuzz/test_endings.py", "loaders/vmvx/test_interrupt.py", "base/test_start.py", "test_pages.py",
    "test_compiling_page.py", "dispatch/test_loop_function.py", "fuzz/test_turns.py",
    "hal/test_memory_order_writers.py", "vmfb/test_native.py", "vmfb/test_streams.py",
    "modules/test_cold_cache.py", "api/test_interrupted_calls.py", "loaders/vmvx/test_filled_scratch.py",
)  # fmt: skip
"""Files with less than 120 tests that take eight seconds of a processor and more; the longest first."""


@contextmanager
def kept_bytecode(config: pytest.Config) -> Iterator[None]:
    """Bytecode that is compiled meanwhile stays for other workers and runs."""
    before = sys.dont_write_bytecode, sys.pycache_prefix
    cache = getattr(config, "cache", None)
    try:
        if sys.dont_write_bytecode and cache is not None:
            sys.dont_write_bytecode, sys.pycache_prefix = False, str(cache.mkdir("bytecode"))
        yield
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = before


@contextmanager
def no_collections() -> Iterator[None]:
    """Nothing is searched for garbage meanwhile: what tests are collected into stays."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def import_shared(config: pytest.Config) -> None:
    """Imports the files of all tests, from other ones on than the other workers, if all are to run."""
    worker = getattr(config, "workerinput", None)
    if worker is None or list(config.args) != config.getini("testpaths"):
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in rotated(sorted(_FOLDER.rglob("test_*.py")), number, count):
        name = ".".join(file.relative_to(_FOLDER.parent).with_suffix("").parts)
        try:
            importlib.import_module(name)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # one that skips itself, too: who collects it says what is the matter
            continue


def rotated(all_of_them: Sequence[Item], number: int, count: int) -> list[Item]:
    """All, from the first one of a share on."""
    start = len(all_of_them) * number // count
    return [*all_of_them[start:], *all_of_them[:start]]


def sort_files(items: list[pytest.Item]) -> None:
    """Puts files that take long first, then those with many tests; tests of a file stay as they are."""
    counts = Counter(item.path for item in items)
    slow = {_FOLDER / name: place for place, name in enumerate(_SLOW)}
    items.sort(key=lambda item: (slow.get(item.path, len(slow)), -counts[item.path], str(item.path)))


def run_briefly(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a test on a worker, and reports its call, and what else has not passed.

    Not for ``--durations``, which counts fixtures, too.
    """
    if not hasattr(item.config, "workerinput") or item.config.getoption("durations") is not None:
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True
