"""Settings of all tests."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from jitree.base.folding import keep_tracebacks
from jitree.codegen import image
from jitree.codegen.image.flat import hashed
from jitree.codegen.image.shipped import CHECKED, STAMP_FILE, STAMP_VARIABLE
from jitree.tools import build_stamp
from tests import collecting, emulation
from tests.aarch64 import asking

# Examples are judged by their results: on a busy machine any of them may be slow once. A run tries those that
# the last one tried, so that it fails for a change alone; `--hypothesis-profile explore` tries others.
# No test fails since the machine is slow: the first numbers that Hypothesis draws have it read all sources.
_SLOW = [HealthCheck.too_slow]
settings.register_profile("explore", deadline=None, suppress_health_check=_SLOW)
settings.register_profile("jitree", deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.load_profile("jitree")


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """Garbage collections, of which many tests make some, look at what the tests of one file have made.

    Python makes its own less often: to keep the trees of all sources cost more of them than to read these.
    """
    gc.set_threshold(10_000)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def prepared_calls() -> None:
    """Machine code calls each function from its third call on."""
    from tests.api.direct import prepare_calls  # not before the environment is set

    prepare_calls()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What earlier tests have left does not end inside of what is interrupted: ends swallow interrupts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def images_are_built_here() -> Iterator[None]:
    """For tests that wait for the code of many programs, which no builder process is then started for."""
    from tests.dispatch.harness import start_here

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(image.Provider, "_start", start_here)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    with collecting.kept_bytecode(session.config), collecting.no_collections():
        collecting.import_shared(session.config)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    collecting.sort_files(items)
    emulation.leave_out(items)


def pytest_runtest_setup() -> None:
    """A process says once what keeps machine code away; here each test hears it."""
    image._told.clear()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    return collecting.run_briefly(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    emulation.excuse(report)
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Code that has changed since images were shipped is tested with images of its own, in the cache, as the
    environment tells workers. Failed tests show where in the package. Ctrl-C ends what tests begin, also in
    the background of a shell, where processes ignore it."""
    keep_tracebacks()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if CHECKED:
        from tests.checked.begin import begin  # which imports much

        begin()
    if asking.SOCKET:
        asking.compile_units_outside()
    if hasattr(config, "workerinput") or STAMP_VARIABLE in os.environ:
        return
    if build_stamp.changed_since(Path(STAMP_FILE)):
        os.environ[STAMP_VARIABLE] = hashed((build_stamp.text("").encode(),)).hex()
