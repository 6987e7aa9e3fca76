"""Modules that find no device to run on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jitree import Session
from jitree.api.load_order import explain_incompatible
from jitree.errors import IncompatibleError, StatusError, UnavailableError
from jitree.hal.executable import prepared_executables
from jitree.tools.main import dispatch
from tests.api.programs import ARITHMETIC

FOR_AARCH64 = Path(__file__).parents[1] / "aarch64" / "modules" / "tests" / "data"
TOLD = (
    " executables 'embedded-elf-arm_64', and the devices here are: {device} on x86_64; compile it for vmvx, "
    "which jitree compiles where it runs, or with --iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu; "
)
on_x86_64 = pytest.mark.skipif(
    os.uname().machine != "x86_64", reason="the module must be for another processor"
)


def test_a_module_for_another_device_says_what_it_needs_and_what_is_here() -> None:
    message = (
        'HAL device `__device_0` not found or unavailable: #hal.device.target<"cuda", '
        '[#hal.executable.target<"cuda", "cuda-nvptx-fb", {}>]>'
    )
    assert explain_incompatible(message, ["local-sync"]) == (
        "the module was compiled for device 'cuda' with executables 'cuda-nvptx-fb', "
        f"and the devices here are: local-sync on {os.uname().machine}; {message}"
    )
    assert explain_incompatible("something else", ["local-sync"]) == "something else"


@on_x86_64
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("programs/arithmetic.vmfb", IncompatibleError),
        ("releases/families-3.13.0.vmfb", IncompatibleError),
        ("releases/families-20240129.785.vmfb", UnavailableError),
        ("programs/inline_cpu.vmfb", UnavailableError),
    ],
)
def test_modules_for_aarch64(file: str, kind: type[StatusError], session: Session) -> None:
    """Programs without devices, and those of old releases, do not say what they were compiled for."""
    before = set(prepared_executables())
    for load in (session.load, session.link):
        with pytest.raises(kind) as raised:
            load(FOR_AARCH64 / file)
        assert TOLD.format(device=session.device.id) in raised.value.message
    assert not set(prepared_executables()) - before
    session.load(ARITHMETIC)


@on_x86_64
@pytest.mark.parametrize("file", ["programs/arithmetic.vmfb", "releases/families-20240129.785.vmfb"])
def test_the_process_sandbox_tells_the_same(file: str, session: Session) -> None:
    """Nothing here runs them: another way to link would not help."""
    told = []
    for each in (session, Session("local-sync", sandbox="process")):
        with each, pytest.raises(StatusError) as raised:
            each.load(FOR_AARCH64 / file)
        told.append((raised.value.code, raised.value.message.replace(session.device.id, "local-sync")))
    assert told[0] == told[1] and TOLD.format(device="local-sync") in told[0][1]


@on_x86_64
@pytest.mark.parametrize("command", ["run", "benchmark", "debug", "diff", "report", "reduce"])
def test_commands_with_a_module_for_aarch64(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(FOR_AARCH64 / "programs" / "arithmetic.vmfb")
    others = {
        "diff": [str(ARITHMETIC)], "report": [f"--output={tmp_path}/page.html"],
        "reduce": [f"--save={tmp_path}"], "debug": ["--command=continue"],
    }  # fmt: skip
    line = [command, file, *others.get(command, []), "--device=local-sync", "--function=nothing"]
    assert dispatch(line) == 1
    assert TOLD.format(device="local-sync") in capsys.readouterr().err


@on_x86_64
def test_loading_a_module_for_another_processor(session: Session) -> None:
    foreign = ARITHMETIC.read_bytes().replace(b"embedded-elf-x86_64", b"embedded-elf-arm_64")
    with pytest.raises(IncompatibleError) as raised:
        session.load(foreign)
    assert raised.value.message.startswith(
        "the module was compiled for device 'local' with executables 'embedded-elf-arm_64', "
        f"and the devices here are: {session.device.id} on x86_64; compile it for vmvx, which jitree "
        "compiles where it runs, or with --iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu; HAL device"
    )
    session.load(ARITHMETIC)
