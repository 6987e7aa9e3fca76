"""A session whose ``hal`` functions tests call one by one."""

from __future__ import annotations

from typing import Any

import pytest

from jitree import Session
from jitree.dispatch.plain.handlers import HANDLERS
from jitree.hal.buffer import Buffer
from jitree.hal.device import Device
from jitree.regs.buffer import VmBuffer
from jitree.regs.machine import Machine

DEVICE_LOCAL = 0x30
DEFAULT_USAGE = 0xC03
ANY = -1


class PythonEngine:
    """Runs everything in Python, imports too."""

    name = "plain"
    entry = None

    def run(self, machine: Machine) -> None:
        pc = following = machine.pc
        try:
            while following >= 0:
                pc = following
                following = HANDLERS[machine.code[pc]](machine, pc)
        except BaseException:
            machine.pc = pc
            raise


def python_session(device: str | Device) -> Session:
    """A session whose imports are made by Python alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitree.dispatch.context.create_engine", lambda tier: PythonEngine())
        return Session(device, tier="plain")


class Hal:
    """``hal("buffer.length", buffer)`` calls the import of that name as a program would."""

    def __init__(self, uri: str) -> None:
        self.session = Session(uri, tier="plain")
        self.device = self.session.device
        self.allocator = self.session.device_allocator

    def __call__(self, name: str, *arguments: Any) -> Any:
        results = self.session.call_direct(f"hal.{name}", *arguments)
        return results[0] if len(results) == 1 else tuple(results) or None

    def buffer(self, content: bytes) -> Buffer:
        buffer: Buffer = self(
            "allocator.allocate", self.allocator, ANY, DEVICE_LOCAL, DEFAULT_USAGE, len(content)
        )
        buffer.host_view()[:] = content
        return buffer

    def fence(self) -> Any:
        return self("fence.create", self.device, 0)

    def commands(self, mode: int = 0, categories: int = 3, capacity: int = 0) -> Any:
        return self("command_buffer.create", self.device, mode, categories, ANY, capacity)

    def execute(self, commands: Any, *table: tuple[Buffer | None, int, int]) -> None:
        """Runs a command buffer to its end."""
        done = self.fence()
        self("device.queue.execute.indirect", self.device, ANY, None, done, commands, 0, list(table))
        assert self("fence.await", -1, 0, [done]) == 0


def content(buffer: Buffer) -> bytes:
    return bytes(buffer.host_view())


def text(value: str) -> VmBuffer:
    return VmBuffer.alias(value.encode())
