"""Modules that find no device to run on."""

from __future__ import annotations

import os

import pytest

from jitree import Session
from jitree.api.load_order import explain_incompatible
from jitree.errors import IncompatibleError
from tests.api.programs import ARITHMETIC


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


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the module must be for another processor")
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
