"""Older generations of the ``hal`` imports: their rows against what releases declare, and what they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.dispatch.engine import Pending
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    StatusError,
)
from jitree.hal.buffer import Buffer
from jitree.modules import import_rows, releases
from jitree.modules.hal.module import HalModule
from jitree.modules.import_rows import parse_parameters, rows
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.modules.helpers import ANY, Hal, content, text

DATA = Path(__file__).parent.parent / "data"
REPLACED = [
    tuple(line.split("\t"))
    for line in (DATA / "hal_imports_replaced.txt").read_text().split("\n")
    if line and not line.startswith("#")
]
HAL_IMPORTS = {key[1:]: found for key, found in releases.imports().items() if key[0] == "hal"}
ONE_SHOT, NESTED = 1, 2
TRANSFER, DISPATCH = 1, 2
FORMAT = "embedded-elf-x86_64"

x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the executables are x86-64 code")


class OldHal(Hal):
    """``hal("fence.join 0CrD_r", fences)`` calls the import of that name and convention."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        module = HalModule(self.session.devices)
        self._exports = {(export.name, export.cconv): export for export in module.exports()}
        self._state = module.create_state(self.session.context)

    def __call__(self, name: str, *arguments: Any) -> Any:
        if " " not in name:
            return super().__call__(name, *arguments)
        function, cconv = name.split()
        result = self._exports[function, cconv].function(self._state, *arguments)
        if isinstance(result, Pending):
            result.wait(None)
            return result.resume()
        return result

    def old_commands(self, modes: int = ONE_SHOT, categories: int = 3, capacity: int = 0) -> Any:
        return self("command_buffer.create 0riii_r", self.device, modes, categories, capacity)

    def run(self, *command_buffers: Any) -> None:
        """Submits a list and waits, as programs of 0.2 to 0.5 do."""
        done = self.fence()
        self("device.queue.execute 0rIrrCrD_v", self.device, ANY, None, done, command_buffers)
        assert self("fence.await 0iCrD_i", -1, [done, None]) == 0

    def set_layout(self, *bindings: int) -> Any:
        rows = [(binding, 7, 0) for binding in bindings]
        return self("descriptor_set_layout.create 0riCiiiD_r", self.device, 0, rows)

    def layout(self, constants: int, *sets: Any) -> Any:
        return self("pipeline_layout.create 0riCrD_r", self.device, constants, list(sets))

    def executable(self, file: str, layout: Any) -> Any:
        data = VmBuffer.alias((DATA / "executables" / file).read_bytes())
        return self("executable.create 0rrrrCrD_r", self.device, text(FORMAT), data, None, [layout])

    def push(self, commands: Any, layout: Any, index: int, *descriptors: tuple[int, Buffer | None]) -> None:
        rows = [(binding, 0, buffer, 0, -1) for binding, buffer in descriptors]
        self("command_buffer.push_descriptor_set 0rriCiirIID_v", commands, layout, index, rows)


@pytest.fixture(params=["local-sync", "local-task"])
def old(request: pytest.FixtureRequest) -> Iterator[OldHal]:
    hal = OldHal(request.param)
    yield hal
    hal.session.close()


def floats(*values: float) -> bytes:
    return np.array(values, np.float32).tobytes()


# Rows.


def test_parameters_are_those_that_the_releases_declare() -> None:
    ours = {(row.name, row.cconv): parse_parameters(row.parameters) for row in rows("hal") if row.last}
    assert ours == {(name, cconv): parse_parameters(parameters) for name, cconv, parameters in REPLACED}


@pytest.mark.parametrize("family", releases.families("hal"))
def test_a_module_with_all_imports_of_a_family_links(family: str) -> None:
    module = Assembler("everything", 15).dependency("hal", 0)
    for (name, cconv), found in HAL_IMPORTS.items():
        if family in found:
            module.import_function(f"hal.{name}", cconv)
    module.type("!hal.descriptor_set_layout")
    module.type("!hal.pipeline_layout")
    with Session("null", tier="plain") as session:
        assert session.load(module.function("f", "0v_v", "return").build()).names == ("f",)


@pytest.mark.parametrize("minimum", range(8))
def test_any_minimum_version_of_the_past_is_met(minimum: int) -> None:
    module = Assembler("m", 15).dependency("hal", minimum).function("f", "0v_v", "return")
    with Session("null", tier="plain") as session:
        session.load(module.build())


def test_a_new_release_is_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """The steps of the README with a release that never was: buffer.length got a unit."""

    row = "hal\tbuffer.length\t0rI_I\t0.8\t-\tbuffer: hal.buffer, unit\t.units\t-"
    lines = import_rows._lines()["hal"]
    monkeypatch.setitem(lines, "buffer.length", [row, *lines["buffer.length"]])
    request.addfinalizer(import_rows.stated.cache_clear)
    monkeypatch.setattr(Buffer, "units", lambda buffer, unit: buffer.byte_length // unit, raising=False)

    class Future(HalModule):
        version = 8

    with Session("local-sync", tier="plain", builtin_modules=()) as session:
        session.append_module(Future(session.devices))
        modules = []
        for name, cconv, call in (("new", "0rI_I", "[%r0, %i0]"), ("old", "0r_I", "[%r0]")):
            module = Assembler(name).dependency("hal", 8).import_function("hal.buffer.length", cconv)
            module.function("f", cconv, f"[%i2:3] = call @hal.buffer.length {call}\nreturn [%i2:3]")
            modules.append(session.load(module.build()))
        new, old = modules
        buffer = session.device_allocator.allocate(0x30, 0xC03, 96)
        assert session.call_direct("new.f", buffer, 4) == [24]
        assert session.call_direct("old.f", buffer) == [96]
        with pytest.raises(InvalidArgumentError, match=r"ref is null; hal.buffer.length needs a hal.buffer"):
            session.call_direct("new.f", None, 4)
        assert (new.name, old.name) == ("new", "old")


# Layouts and pushed arguments.


@x86_64
@pytest.mark.parametrize("file", ["tiny-20240129.785.so", "tiny-20240410.859.so", "tiny-3.1.0.so"])
def test_bindings_go_to_the_kernel_in_order_without_gaps(old: OldHal, file: str) -> None:
    """Two sets, declared and pushed out of order; what no layout declares is not passed."""
    layout = old.layout(0, old.set_layout(20, 3), old.set_layout(7))
    executable = old.executable(file, layout)
    lhs, rhs, out = old.buffer(floats(1, 2, 3, 4)), old.buffer(floats(5, 6, 7, 8)), old.buffer(bytes(16))
    commands = old.old_commands()
    old.push(commands, layout, 1, (7, out))
    old.push(commands, layout, 0, (20, rhs), (5, out), (3, lhs))
    old("command_buffer.dispatch 0rriiii_v", commands, executable, 0, 1, 1, 1)
    old("command_buffer.execution_barrier 0riii_v", commands, 28, 13, 0)
    old("command_buffer.finalize", commands)
    old.run(commands)
    assert content(out) == floats(5, 12, 21, 32)


@x86_64
def test_pushed_arguments_stay_until_they_are_replaced(old: OldHal) -> None:
    layout = old.layout(0, old.set_layout(0, 1, 2))
    executable = old.executable("tiny-20240129.785.so", layout)
    lhs, rhs = old.buffer(floats(1, 2, 3, 4)), old.buffer(floats(2, 2, 2, 2))
    first, second = old.buffer(bytes(16)), old.buffer(bytes(16))
    commands = old.old_commands()
    old.push(commands, layout, 0, (0, lhs), (1, rhs), (2, first))
    old("command_buffer.dispatch 0rriiiiI_v", commands, executable, 0, 1, 1, 1, 0)
    old("command_buffer.execution_barrier 0riii_v", commands, 28, 13, 0)
    old.push(commands, layout, 0, (2, second), (0, first))
    counts = old.buffer(np.array([1, 1, 1], np.uint32).tobytes())
    old("command_buffer.dispatch.indirect 0rrirI_v", commands, executable, 0, counts, 0)
    old("command_buffer.finalize", commands)
    old.run(commands)
    assert (content(first), content(second)) == (floats(2, 4, 6, 8), floats(4, 8, 12, 16))


@x86_64
def test_constants_in_words(old: OldHal) -> None:
    """A dynamic sum that takes its sizes as eight words, pushed in two parts, one of them too early."""
    layout = old.layout(8, old.set_layout(0, 1, 2))
    executable = old.executable("dyn-20240129.785.so", layout)
    lhs, rhs, out = (
        old.buffer(floats(*range(6))),
        old.buffer(floats(*range(10, 70, 10))),
        old.buffer(bytes(24)),
    )
    commands = old.old_commands()
    old("command_buffer.push_constants 0rriCiD_v", commands, layout, 0, [9] * 64)
    old("command_buffer.push_constants 0rriCiD_v", commands, layout, 4, [2, 0, 3, 0])
    old("command_buffer.push_constants 0rriCiD_v", commands, layout, 0, [2, 0, 3, 0])
    old.push(commands, layout, 0, (0, lhs), (1, rhs), (2, out))
    old("command_buffer.dispatch 0rriiii_v", commands, executable, 0, 1, 1, 1)
    old("command_buffer.finalize", commands)
    old.run(commands)
    assert content(out) == floats(10, 21, 32, 43, 54, 65)
    for offset, values in ((0, [0] * 65), (63, [1, 2]), (-1, [1])):
        with pytest.raises(OutOfRangeError, match="64 words"):
            old("command_buffer.push_constants 0rriCiD_v", old.old_commands(), layout, offset, values)


@x86_64
def test_dispatches_that_the_layout_model_refuses(old: OldHal) -> None:
    layout = old.layout(0, old.set_layout(0, 1, 2))
    executable = old.executable("tiny-20240129.785.so", layout)
    commands, buffer = old.old_commands(), old.buffer(bytes(16))
    dispatch = "command_buffer.dispatch 0rriiii_v"
    old.push(commands, layout, 0, (0, buffer))
    with pytest.raises(FailedPreconditionError, match="set 0 binding 1, set 0 binding 2"):
        old(dispatch, commands, executable, 0, 1, 1, 1)
    with pytest.raises(OutOfRangeError, match="function 1"):
        old(dispatch, commands, executable, 1, 1, 1, 1)
    with pytest.raises(OutOfRangeError, match="descriptor set 32"):
        old.push(commands, layout, 32, (0, buffer))
    with pytest.raises(OutOfRangeError, match="binding 32"):
        old.push(commands, layout, 0, (32, buffer))
    with pytest.raises(OutOfRangeError, match="33 bindings"):
        old.set_layout(*range(33))
    with pytest.raises(OutOfRangeError, match="65"):
        old.layout(65)
    with pytest.raises(InvalidArgumentError, match="pipeline_layout"):
        old.push(commands, old.set_layout(0), 0, (0, buffer))
    old("command_buffer.finalize", commands)
    with pytest.raises(FailedPreconditionError, match="finalized"):
        old.push(commands, layout, 0, (0, buffer))


@x86_64
def test_slots_of_pushed_descriptors(old: OldHal) -> None:
    """0.2b submits with a binding table."""
    layout = old.layout(0, old.set_layout(0, 1, 2))
    executable = old.executable("tiny-20240410.859.so", layout)
    buffer, out = old.buffer(floats(1, 2, 3, 4)), old.buffer(bytes(128))
    commands = old.old_commands(0, capacity=2)
    rows = [(0, 0, None, 0, 16), (1, 0, None, 0, 16), (2, 1, None, 64, 16)]
    old("command_buffer.push_descriptor_set 0rriCiirIID_v", commands, layout, 0, rows)
    old("command_buffer.dispatch 0rriiii_v", commands, executable, 0, 1, 1, 1)
    old("command_buffer.finalize", commands)
    table = [(buffer, 0, -1), (out, 0, -1)]
    done = old.fence()
    execute = "device.queue.execute.indirect 0rIrrrCrIID_v"
    old(execute, old.device, ANY, None, done, commands, table)
    assert old("fence.await 0iCrD_i", -1, [done]) == 0
    assert content(out)[64:80] == floats(1, 4, 9, 16)


# Lists and nested command buffers.


def filling(old: OldHal, target: Buffer, value: int, offset: int = 0, length: int = 4) -> Any:
    commands = old.old_commands()
    old("command_buffer.fill_buffer 0rrIIii_v", commands, target, offset, length, value, 1)
    old("command_buffer.finalize", commands)
    return commands


def test_lists_run_in_order(old: OldHal) -> None:
    target = old.buffer(bytes(4))
    old.run(*(filling(old, target, value, 0, 5 - value) for value in (1, 2, 3, 4)))
    assert content(target) == bytes([4, 3, 2, 1])
    old.run()


def test_lists_wait_for_their_fence_and_fail_with_it(old: OldHal) -> None:
    target, wait, done = old.buffer(bytes(4)), old.fence(), old.fence()
    commands = [filling(old, target, 1), filling(old, target, 2)]
    old("device.queue.execute 0rIrrCrD_v", old.device, ANY, wait, done, commands)
    assert (content(target), old("fence.query", done)) == (bytes(4), 17)
    old("fence.fail", wait, 8)
    with pytest.raises(StatusError) as caught:
        old("fence.await 0iCrD_i", -1, [done])
    assert caught.value.code == 8
    assert content(target) == bytes(4)


def test_one_bad_command_buffer_stops_the_whole_list(old: OldHal) -> None:
    target = old.buffer(bytes(4))
    with pytest.raises(FailedPreconditionError, match="finalized"):
        old.run(filling(old, target, 1), old.old_commands())
    assert content(target) == bytes(4)


def nested(old: OldHal, capacity: int = 0, categories: int = 3) -> Any:
    return old.old_commands(NESTED, categories, capacity)


@x86_64
def test_nested_commands_take_buffers_from_the_table(old: OldHal) -> None:
    layout = old.layout(0, old.set_layout(0, 1, 2))
    executable = old.executable("tiny-20240129.785.so", layout)
    fixed, inner = old.buffer(floats(3, 3, 3, 3)), nested(old, 2)
    rows = [(0, 0, None, 0, 16), (1, 0, fixed, 0, -1), (2, 1, None, 64, 16)]
    old("command_buffer.push_descriptor_set 0rriCiirIID_v", inner, layout, 0, rows)
    old("command_buffer.dispatch 0rriiii_v", inner, executable, 0, 1, 1, 1)
    old("command_buffer.execution_barrier 0riii_v", inner, 28, 13, 0)
    old("command_buffer.copy_buffer 0rrIrII_v", inner, fixed, 0, fixed, 8, 4)
    old("command_buffer.finalize", inner)
    source, out, outer = old.buffer(floats(*range(1, 9))), old.buffer(bytes(256)), old.old_commands()
    execute = "command_buffer.execute.commands 0rrCrIID_v"
    old(execute, outer, inner, [(source, 0, 16), (out, 0, -1)])
    old(execute, outer, inner, [(source, 0, 16), (out, 128, 128)])
    old("command_buffer.finalize", outer)
    old.run(outer)
    assert content(out)[64:80] == content(out)[192:208] == floats(3, 6, 9, 12)
    late = old.old_commands()
    with pytest.raises(InvalidArgumentError, match="slot 1"):
        old(execute, late, inner, [(source, 0, 16)])
    with pytest.raises(OutOfRangeError, match="slot 1"):
        old(execute, late, inner, [(source, 0, 16), (out, 0, 64)])
    with pytest.raises(OutOfRangeError, match="257 entries"):
        old(execute, late, inner, [(source, 0, 16)] * 257)


def test_what_nested_command_buffers_refuse(old: OldHal) -> None:
    execute, outer = "command_buffer.execute.commands 0rrCrIID_v", old.old_commands()
    with pytest.raises(FailedPreconditionError, match="finalized"):
        old(execute, outer, nested(old), [])
    with pytest.raises(InvalidArgumentError, match="NESTED"):
        old(execute, outer, filling(old, old.buffer(bytes(4)), 1), [])
    inner = nested(old, categories=TRANSFER)
    old("command_buffer.fill_buffer 0rrIIii_v", inner, old.buffer(bytes(4)), 0, 4, 1, 1)
    old("command_buffer.finalize", inner)
    with pytest.raises(FailedPreconditionError, match="category TRANSFER"):
        old(execute, old.old_commands(categories=DISPATCH), inner, [])
    with pytest.raises(InvalidArgumentError, match="nested"):
        old.run(inner)


# Signatures whose flags came later.


def test_signatures_without_flags(old: OldHal) -> None:
    done = old("fence.create 0ri_r", old.device, 0)
    alloca = "device.queue.alloca 0rIrriiiI_r"
    target = old(alloca, old.device, ANY, None, done, 0, 0x30, 0xC03, 16)
    joined = old("fence.join 0CrD_r", [None, done])
    assert old("fence.await 0iCrD_i", 100, [joined]) == 0
    commands = old("command_buffer.create", old.device, ONE_SHOT, TRANSFER, ANY, 1)
    old("command_buffer.fill_buffer 0rrIIiii_v", commands, target, 0, 16, 0, -1, 4)
    old("command_buffer.execution_barrier 0riii_v", commands, 28, 13, 0)
    old("command_buffer.update_buffer 0rrIrIIi_v", commands, text("abcdef"), 2, None, 4, 4, 0)
    old("command_buffer.execution_barrier 0riii_v", commands, 28, 13, 0)
    old("command_buffer.copy_buffer 0riirIrII_v", commands, 0, 0, target, 4, target, 12, 2)
    old("command_buffer.finalize", commands)
    ready, gone = old.fence(), old.fence()
    execute = "device.queue.execute.indirect 0rIrrrCrIID_v"
    old(execute, old.device, ANY, done, ready, commands, [(target, 0, -1)])
    old("device.queue.dealloca 0rIrrr_v", old.device, ANY, ready, gone, target)
    assert old("fence.await 0iCrD_i", -1, [gone]) == 0
    assert content(target) == b"\xff" * 4 + b"cdef" + b"\xff" * 4 + b"cd" + b"\xff" * 2


def test_files_with_narrow_flags(old: OldHal) -> None:
    target, done = old.buffer(bytes(4)), old.fence()
    file = old("ex.file.from_memory", old.device, ANY, 1, text("0123456789"), 0, 10, 0)
    old("device.queue.read 0rIrrrIrIIi_v", old.device, ANY, None, done, file, 3, target, 0, 4, 0)
    assert old("fence.await 0iCrD_i", -1, [done]) == 0
    assert content(target) == b"3456"
