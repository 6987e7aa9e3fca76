"""Chooses the compiler flags of a target (``docs/compiling.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

CPU_TARGETS: Final = ("vmvx", "llvm-cpu")
CUDA: Final = "cuda"
TARGETS: Final = (*CPU_TARGETS, CUDA)
PORTABLE: Final = "vmvx"

_DEVICE: Final = "--iree-hal-target-device="
_BACKEND: Final = "--iree-hal-local-target-device-backends="
_SEPARATE: Final = "--iree-hal-link-executables=false"
"""Without it the compiler links the dispatches of one kind, and drops those of the other."""
_PROCESSOR: Final = "--iree-llvmcpu-target-cpu="
_ARCHITECTURE: Final = "--iree-cuda-target="


class CompileTarget(NamedTuple):
    """What one file is compiled for."""

    names: tuple[str, ...]
    """Of TARGETS, each once."""
    processor: str = "host"
    """Of llvm-cpu: ``host``, or a name that LLVM has."""
    architecture: str = "sm_80"
    """Of cuda."""

    def __str__(self) -> str:
        return ", ".join(self.names)

    @property
    def device(self) -> str:
        """What it runs on."""
        return CUDA if self.names == (CUDA,) else "local-task"

    def flags(self, given: Iterable[str]) -> list[str]:
        """Of the compiler: those that are ``given``, and those that the target needs besides."""
        given = list(given)
        backends = [name for name in CPU_TARGETS if name in self.names]
        devices = ["local"] * bool(backends) + [CUDA] * (CUDA in self.names)
        flags = [_DEVICE + ",".join(devices), *(_BACKEND + name for name in backends)]
        if len(self.names) > 1:
            flags.append(_SEPARATE)
        if "llvm-cpu" in backends:
            flags.append(_PROCESSOR + self.processor)
        if CUDA in devices:
            flags.append(_ARCHITECTURE + self.architecture)
        replaced = {flag.partition("=")[0] for flag in given}
        return [flag for flag in flags if flag.partition("=")[0] not in replaced] + given


def target_of(
    names: str | Sequence[str], processor: str = "host", architecture: str = "sm_80"
) -> CompileTarget:
    """Of names with commas between them, or a sequence. INVALID_ARGUMENT for one that is not known."""
    listed = names.split(",") if isinstance(names, str) else list(names)
    for name in listed:
        if name not in TARGETS:
            raise InvalidArgumentError(
                f"target: there is no '{name}'; there are {', '.join(TARGETS)} (several with commas make one "
                "file that has all of them)"
            )
    if not listed:
        raise InvalidArgumentError(f"target: name one or more of {', '.join(TARGETS)}")
    return CompileTarget(tuple(dict.fromkeys(listed)), processor, architecture)
