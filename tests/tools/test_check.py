"""``jitree check``: which functions are tests, what is reported, exit codes."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.tools import check
from tests.assembler import Assembler
from tests.tools.command import PROGRAMS, jitree, jitree_process

CHECKS = PROGRAMS / "checks.vmfb"


def check_here(*flags: object) -> tuple[int, str]:
    """Exit code and standard output of ``jitree check``, times left out."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = check.main(["--device=local-sync", "--tier=plain", *map(str, flags)])
    return code, re.sub(r"\d+ ms", "N ms", output.getvalue())


def test_the_report() -> None:
    code, text = check_here(CHECKS)
    assert code == 1
    assert text.startswith(
        "[==========] Running 2 tests from 1 test suite.\n"
        "[----------] Global test environment set-up.\n"
        "[----------] 2 tests from module\n"
        "[ RUN      ] module.passes\n"
        "[       OK ] module.passes (N ms)\n"
        "[ RUN      ] module.fails_twice\n"
        "module.fails_twice: Failure\n"
    )
    assert "Expected 1 to be zero." in text
    assert "\n  lhs:\n    2x2xi32=[1 2][3 4]\n  rhs:\n    2x2xi32=[1 2][0 4]\n" in text
    assert text.endswith(
        "[  FAILED  ] module.fails_twice (N ms)\n"
        "[----------] 2 tests from module (N ms total)\n\n"
        "[----------] Global test environment tear-down\n"
        "[==========] 2 tests from 1 test suite ran. (N ms total)\n"
        "[  PASSED  ] 1 test.\n"
        "[  FAILED  ] 1 test, listed below:\n"
        "[  FAILED  ] module.fails_twice\n\n"
        " 1 FAILED TEST\n"
        "Test failed\n"
    )


def test_filters() -> None:
    for flag in (
        "--filter=module.pass*",
        "--gtest_filter=passes",
        "--filter=-*fails*",
        "--filter=x:*:-*twice",
    ):
        code, text = check_here(CHECKS, flag)
        assert (code, "fails_twice" in text) == (0, False), flag
        assert text.endswith("[  PASSED  ] 1 test.\n")
    with pytest.raises(NotFoundError, match=r"no test matches.*'nothing\*'(.|\n)*module\.passes"):
        check_here(CHECKS, "--filter=nothing*")


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [("", True), ("*", True), ("m.f", True), ("f", True), ("m.?", True), ("m", False), ("*-m.f", False),
     ("-f", False), ("-g", True), ("g:f", True), ("[f]", False), ("M.F", False)],
)  # fmt: skip
def test_patterns(filters: str, chosen: bool) -> None:
    assert check.is_chosen("m", "f", filters) == chosen


def test_expected_failures() -> None:
    code, text = check_here(CHECKS, "--expect_failure")
    assert code == 0 and text.endswith("\nTest failed as expected\n")
    code, text = check_here(CHECKS, "--expect_failure", "--filter=*passes")
    assert code == 1 and text.endswith("\nTest passed but expected failure\n")


def write(path: Path, module: Assembler) -> Path:
    path.write_bytes(module.build())
    return path


def counter() -> Assembler:
    """``first`` and ``second`` each expect to be the first that counts."""
    body = """
        %i0 = global.load.i32 0
        call @check.expect_false [%i0]
        %i1 = const.i32 1
        global.store.i32 0, %i1
        return
    """
    module = Assembler("counter", globals_size=4).import_function("check.expect_false", "0i_v", optional=True)
    for name in ("first", "second", "third$async", "__hidden"):
        module.function(name, "0v_v", body)
    return module


def test_every_test_has_state_of_its_own(tmp_path: Path) -> None:
    code, text = check_here(write(tmp_path / "counter.vmfb", counter()))
    assert code == 0 and text.endswith("[  PASSED  ] 2 tests.\n")


def test_a_status_fails_a_test_and_others_go_on(tmp_path: Path) -> None:
    module = counter().function("broken", "0v_v", '%i0 = const.i32 9\nfail %i0, "not today"')
    code, text = check_here(write(tmp_path / "counter.vmfb", module))
    assert code == 1 and "not today" in text and "[  PASSED  ] 2 tests.\n" in text


def test_other_signatures_are_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write(tmp_path / "counter.vmfb", counter().function("g", "0i_v", "return"))
    output = io.StringIO()
    with (
        redirect_stdout(output),
        pytest.raises(
            InvalidArgumentError,
            match=r"expected function with no inputs or outputs, but export 'g' has signature '0i_v'",
        ),
    ):
        check.main(["--device=local-sync", str(path)])
    assert output.getvalue() == ""


def test_in_a_process_of_its_own() -> None:
    outcome = jitree_process("check", "--device=local-sync", "--filter=*passes", f"--module={CHECKS}")
    assert (outcome.code, outcome.stderr) == (0, "")
    outcome = jitree("check", "--device=local-sync", CHECKS)
    assert outcome.code == 1 and outcome.stdout.endswith("Test failed\n")
    outcome = jitree("check", "--device=local-sync", "/nowhere.vmfb")
    assert outcome.code == 1 and "NOT_FOUND" in outcome.stderr


@pytest.mark.parametrize("flags", [(), ("--sandbox",), ("--sandbox=process",)])
def test_run_has_no_expectations(flags: tuple[str, ...]) -> None:
    """As in IREE's tools: the import is optional and absent."""
    shared = ("--device=local-sync", *flags)
    for function in ("passes", "fails_twice"):
        outcome = jitree("run", *shared, f"--module={CHECKS}", f"--function={function}")
        assert (outcome.code, outcome.stdout) == (0, f"EXEC @{function}\n")
