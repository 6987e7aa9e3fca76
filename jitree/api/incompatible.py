"""What a module says that found no device to run on, in words that name both sides."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from jitree.errors import IncompatibleError
from jitree.hal.device import Device

_DEVICE_TARGET: Final = r'#hal\.device\.target<"([^"]+)"'
_ORDINAL: Final = r"\bordinal = (\d{1,9})\b"
_EXECUTABLE_TARGET: Final = r'#hal\.executable\.target<"[^"]+", "([^"]+)"'


@contextmanager
def explained(devices: Sequence[Device]) -> Iterator[None]:
    """Explains an INCOMPATIBLE failure of a module's initialiser that passes through the block."""
    try:
        yield
    except IncompatibleError as error:
        error.message = explain_incompatible(error.message, [device.id for device in devices])
        raise


def explain_incompatible(message: str, devices: Sequence[str]) -> str:
    """What a module that found no device was compiled for and what is here, before its own text."""
    targets = ", ".join(dict.fromkeys(re.findall(_DEVICE_TARGET, message)))
    formats = ", ".join(dict.fromkeys(re.findall(_EXECUTABLE_TARGET, message)))
    if not targets:
        return message
    wanted = max(map(int, re.findall(_ORDINAL, message)), default=0) + 1
    several = f"it runs on {wanted} devices or more, give the session a list of them; "
    return (
        f"the module was compiled for device '{targets}' with executables '{formats or 'none'}', "
        f"and the devices here are: {', '.join(devices)} on {os.uname().machine}; "
        f"{several if wanted > len(devices) else ''}{message}"
    )
