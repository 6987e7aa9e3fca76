"""The outcome of tests, as Google Test prints it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class _Test(NamedTuple):
    name: str
    seconds: float
    passed: bool


class Report:
    """Writes what happens while the tests of one module run, and the totals at the end."""

    def __init__(self, suite: str, count: int, write: Callable[[str], object]) -> None:
        self._suite = suite
        self._write = write
        self._tests: list[_Test] = []
        self._name = ""
        self._failed = False
        self._line(f"[==========] Running {_tests(count)} from 1 test suite.")
        self._line("[----------] Global test environment set-up.")
        self._line(f"[----------] {_tests(count)} from {suite}")

    def begin(self, name: str) -> None:
        self._name = f"{self._suite}.{name}"
        self._failed = False
        self._line(f"[ RUN      ] {self._name}")

    def fail(self, text: str) -> None:
        """Something of the test in progress went wrong."""
        self._failed = True
        self._line(f"{self._name}: Failure\n{text}\n")

    def end(self, seconds: float) -> None:
        self._tests.append(_Test(self._name, seconds, not self._failed))
        mark = "[  FAILED  ]" if self._failed else "[       OK ]"
        self._line(f"{mark} {self._name} ({_milliseconds(seconds)})")

    def finish(self) -> bool:
        """Writes the totals; whether all tests passed."""
        total = sum(test.seconds for test in self._tests)
        failed = [test.name for test in self._tests if not test.passed]
        count = len(self._tests)
        self._line(f"[----------] {_tests(count)} from {self._suite} ({_milliseconds(total)} total)\n")
        self._line("[----------] Global test environment tear-down")
        self._line(f"[==========] {_tests(count)} from 1 test suite ran. ({_milliseconds(total)} total)")
        self._line(f"[  PASSED  ] {_tests(count - len(failed))}.")
        if failed:
            self._line(f"[  FAILED  ] {_tests(len(failed))}, listed below:")
            for name in failed:
                self._line(f"[  FAILED  ] {name}")
            self._line(f"\n{len(failed):2} FAILED {'TEST' if len(failed) == 1 else 'TESTS'}")
        return not failed

    def _line(self, text: str) -> None:
        self._write(text + "\n")


def _tests(count: int) -> str:
    return f"{count} test" if count == 1 else f"{count} tests"


def _milliseconds(seconds: float) -> str:
    return f"{round(1000 * seconds)} ms"
