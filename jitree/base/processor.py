"""The processor, as the operating system describes it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Final

from jitree.errors import pass_interruption

_FILE: Final = "/proc/cpuinfo"
MACHINES: Final = frozenset(("x86_64", "amd64", "aarch64", "arm64", "riscv64"))
"""Those that machine code is made for, as ``uname -m`` names them: :mod:`jitree.codegen.processor_texts`."""
_ENOUGH: Final = 1 << 14
"""Bytes: the first processor takes 3 KB. The system makes the text while it is read."""


_assumed: tuple[str, bytes] = ("", b"")


def assume(name: str, described: bytes) -> None:
    """Has this process, a builder that runs no such code, make code for another processor from now on."""
    global _assumed
    _assumed = name, described
    for asked in (description, words, fuses):
        asked.cache_clear()


def assumed() -> str:
    """The name of the processor that is assumed; empty without one."""
    return _assumed[0]


def described(machine: str, flags: Iterable[str]) -> bytes:
    """As :func:`description`, of a processor that has so much at least."""
    return f"machine : {machine}\nflags : {' '.join(sorted(flags))}".encode()


def machine() -> str:
    """As ``uname -m`` names it."""
    return next(iter(words("machine"))) if assumed() else os.uname().machine


@cache
def description() -> bytes:
    """What the system says about the first processor, a line ``name : value`` a fact; empty if nothing."""
    if assumed():
        return _assumed[1]
    try:
        with open(_FILE, "rb", buffering=0) as file:
            return file.read(_ENOUGH).partition(b"\n\n")[0]
    except OSError as error:
        pass_interruption(error)
        return _asked()


def _asked() -> bytes:
    """What the processor itself says, where the system says nothing."""
    if os.uname().machine.lower() not in ("x86_64", "amd64"):
        return b""
    from jitree.base import cpuid

    return cpuid.description()


@cache
def words(name: str) -> frozenset[str]:
    """The words of a line: ``flags`` on x86-64, ``isa`` on RISC-V; none where there is no such line."""
    for line in str(description(), "utf-8", "replace").splitlines():
        found, _, value = line.partition(":")
        if found.strip() == name:
            return frozenset(value.split())
    return frozenset()


@cache
def fuses() -> bool:
    """Whether an instruction of it multiplies and adds, and rounds once."""
    return "fma" in words("flags") or machine().lower() in ("aarch64", "arm64")
