"""Runs each function without arguments and results as a test: ``jitree check``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.errors import InvalidArgumentError, NotFoundError, error_context, is_interruption
from jitree.tools import devices, program
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.observe_flags import refuse_profiles
from jitree.tools.reporting import error_line
from jitree.vmfb.cconv import parse

if TYPE_CHECKING:
    from jitree.dispatch.context import ModuleLike
    from jitree.hal.device import Device


class _Test(NamedTuple):
    name: str
    seconds: float
    passed: bool


class Report:
    """Writes what happens while one module's tests run, and the totals at the end."""

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


FLAGS: Final = flag_set(
    "check",
    "runs every function without arguments and results of a compiled module as a test",
    "module interpreter check parameter device profiling refused",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command; returns 0 when all tests pass, or, if that is expected, when one fails."""
    if devices.answer_queries(flags):
        return 0
    refuse_profiles(flags)
    with ExitStack() as stack:
        with error_context("creating run context"):
            modules = program.read_modules(flags)
            names = find_tests(modules[-1], flags.text("filter") or flags.text("gtest_filter"))
            opened = program.open_devices(flags, stack)
        try:
            passed = _run_all(modules, names, opened, flags)
        finally:
            program.show_statistics(flags, opened)
    return _verdict(passed, flags)


def _verdict(passed: bool, flags: ParsedFlags) -> int:
    if flags.boolean("expect_failure"):
        sys.stdout.write("Test passed but expected failure\n" if passed else "Test failed as expected\n")
        return int(passed)
    if not passed:
        sys.stdout.write("Test failed\n")
    return int(not passed)


def find_tests(module: ModuleLike, filters: str) -> list[str]:
    """The exported functions that are tests and that the filters choose.

    INVALID_ARGUMENT for an export with arguments or results, NOT_FOUND when the filters choose nothing.
    """
    tests = [name for name in module.export_names() if not name.startswith("__") and "$" not in name]
    for name in tests:
        cconv = _convention(module, name)
        convention = parse(cconv)
        if convention.arguments or convention.results:
            raise InvalidArgumentError(
                f"expected function with no inputs or outputs, but export '{name}' has signature '{cconv}'"
            )
    chosen = [name for name in tests if is_chosen(module.name, name, filters)]
    if filters and not chosen:
        known = "".join(f"\n  {module.name}.{name}" for name in tests)
        raise NotFoundError(f"no test matches the filter '{filters}'; there are:{known or ' none'}")
    return chosen


def _convention(module: ModuleLike, name: str) -> str:
    from jitree.vmfb.decode import BytecodeModule

    if not isinstance(module, BytecodeModule):
        raise InvalidArgumentError(f"module '{module.name}' is not compiled; the last module holds the tests")
    export = module.module.export(name)
    assert export is not None
    return module.module.functions[export.ordinal].cconv


def is_chosen(module: str, name: str, filters: str) -> bool:
    """Whether a test matches a filter in the form of Google Test: ``a*:b?-c``."""
    positive, _, negative = filters.partition("-")
    names = (f"{module}.{name}", name)
    return _matches(names, positive or "*") and not _matches(names, negative)


def _matches(names: Iterable[str], patterns: str) -> bool:
    # Brackets mean themselves: only * and ? are special.
    escaped = [pattern.replace("[", "[[]") for pattern in patterns.split(":")]
    return any(fnmatchcase(name, pattern) for name in names for pattern in escaped)


def _run_all(
    modules: Sequence[ModuleLike], names: Sequence[str], opened: tuple[Device, ...], flags: ParsedFlags
) -> bool:
    report = Report(modules[-1].name, len(names), sys.stdout.write)
    for name in names:
        report.begin(name)
        start = time.perf_counter()
        _run_test(modules, name, opened, flags, report)
        report.end(time.perf_counter() - start)
        sys.stdout.flush()
    return report.finish()


def _run_test(
    modules: Sequence[ModuleLike], name: str, opened: tuple[Device, ...], flags: ParsedFlags, report: Report
) -> None:
    """Runs a test in a new context, which shares no state with other tests."""
    from jitree.modules.check import CheckModule

    try:
        with program.create_session(flags, opened, modules) as session:
            session.append_module(CheckModule(report.fail))
            program.load_modules(session, modules)[name]()
    except Exception as error:
        if is_interruption(error):
            raise
        report.fail(error_line(error))
