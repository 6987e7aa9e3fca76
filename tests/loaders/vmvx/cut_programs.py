"""Kernels as the compiler writes them: loop nests one after the other, over buffers and scratch memory.
They run in parts."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import Final
from unittest.mock import patch

import numpy as np

from jitree.codegen import image
from jitree.codegen.image.build import build, generate
from jitree.codegen.image.compile import host_target
from jitree.codegen.image.flat import map_image
from jitree.codegen.record import atomic_load, size_of
from jitree.dispatch.native.nests import cutting
from jitree.hal.command_layout import KernelDispatch, KernelEntry, Workgroup
from jitree.hal.command_list import CommandList
from jitree.hal.enums import MemoryAccess
from jitree.hal.local import executor
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, SPANS
from jitree.loaders.vmvx.native import CompiledKernels
from jitree.regs.memory import UNBOUNDED, Bounds, address_of
from tests.assembler import Assembler
from tests.dispatch.native.nests.programs import LoopText, Text
from tests.hal.native_kernels import whole
from tests.loaders.vmvx.programs import load

FIRST_BINDING: Final = 3
_SPAN: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class KernelText(Text):
    """A kernel under construction. Its bindings are the references from FIRST_BINDING on."""

    def __init__(self, bindings: int) -> None:
        super().__init__()
        self.next = 10
        self._refs = FIRST_BINDING + bindings
        for number in range(bindings):
            position = self.pair()
            self.lines.append(f"{position} = const.i32 {number}")
            self.lines.append(f"%r{FIRST_BINDING + number} = list.get.ref %r2, {position}, !vm.buffer")

    def scratch(self, elements: int) -> int:
        """The reference of a buffer of its own."""
        size, alignment, self._refs = self.constant(4 * elements), self.pair(), self._refs + 1
        self.lines.append(f"{alignment} = const.i32 16")
        self.lines.append(f"%r{self._refs - 1} = buffer.alloc {size}, {alignment}")
        return self._refs - 1

    def push_constant(self, number: int) -> str:
        """A constant of the dispatch as an i64."""
        word = self.op("buffer.load.i32", "%r1", self.constant(number))
        return self.op("ext.i32.i64.s", word)

    def workgroup(self) -> str:
        """The workgroup's x."""
        return self.op("ext.i32.i64.s", "%i0")

    def loops(
        self,
        counts: Sequence[int | str],
        body: Callable[[list[str]], None],
        compare: str = "cmp.lt.i64.s",
    ) -> None:
        """Loops around a body, from the outermost; a count is a number or a register."""
        bounds = [self.constant(count) if isinstance(count, int) else count for count in counts]
        zero, one = self.constant(0), self.constant(1)
        self.nest([LoopText(compare, zero, bound, one) for bound in bounds], body)

    def module(self, name: str = "kernels") -> Assembler:
        text = "\n".join([*self.lines, "return []"])
        return Assembler(name).function("f", ENTRY_CONVENTION, text)


def compiled(text: KernelText, bounds: Bounds = UNBOUNDED) -> VmvxExecutable:
    """With machine code in place, made in this process: workgroups can be cut however small they are."""
    return with_code(lambda: load(text.module(), "native", bounds=bounds))


def with_code(loaded: Callable[[], VmvxExecutable]) -> VmvxExecutable:
    """As :func:`compile_here`, of which workgroups can be cut however small they are."""
    with patch.object(cutting, "LEAST_WORK", 0):
        return compile_here(loaded)


def compile_here(loaded: Callable[[], VmvxExecutable]) -> VmvxExecutable:
    """An executable with machine code in place, made in this process; no other makes it once more."""
    with patch.object(CompiledKernels, "start", lambda kernels: None):
        executable = loaded()
    kernels = executable._compiled
    assert kernels is not None
    image.wait(SPANS)
    for provider in kernels._batch.providers:
        provider.image = map_image(build(generate(provider.recipe), host_target()))
    kernels._use_all()
    assert kernels.ready
    return executable


def most_parts(executable: VmvxExecutable) -> int:
    """Into how many parts a workgroup can be cut."""
    return int(KernelEntry(executable.entry_point(0)).parts)


def run_whole(
    executable: VmvxExecutable,
    count: int,
    constants: Sequence[int],
    blocks: Sequence[np.ndarray],
    function: int = 0,
) -> None:
    """A dispatch of so many workgroups, on this thread."""
    commands = CommandList()
    commands.dispatch(
        executable, function, (count, 1, 1), list(constants), [whole(block) for block in blocks]
    )
    executor.require_native_executor().execute(commands, *commands.bind(()))


def run_parts(
    executable: VmvxExecutable,
    count: int,
    constants: Sequence[int],
    blocks: Sequence[np.ndarray],
    parts: int,
    seed: int = 0,
    failure: int = 0,
) -> bool:
    """The same in parts, in any order and in spans of one to three; whether all have been run. ``failure`` is
    that of the job, which others have set."""
    entry, failures = KernelEntry(executable.entry_point(0)), array("q", (failure,))
    accesses = [MemoryAccess.ALL if block.flags.writeable else MemoryAccess.READ for block in blocks]
    columns = map(address_of, blocks), (block.nbytes for block in blocks), accesses
    tables = [array("q", column) for column in columns]
    words = array("i", constants)
    records = array("q", bytes(size_of(KernelDispatch))), array("q", bytes(size_of(Workgroup)))
    dispatch = KernelDispatch(records[0].buffer_info()[0])
    group = Workgroup(records[1].buffer_info()[0])
    dispatch.size_x = dispatch.size_y = dispatch.size_z = dispatch.count_y = dispatch.count_z = 1
    dispatch.count_x, dispatch.concurrency, dispatch.parts = count, 1, parts
    dispatch.constant_count, dispatch.constants = len(words), words.buffer_info()[0]
    dispatch.binding_count = len(blocks)
    dispatch.addresses, dispatch.lengths, dispatch.accesses = (table.buffer_info()[0] for table in tables)
    dispatch.failure = failures.buffer_info()[0]
    random, spans, first = Random(seed), [], 0
    while first < count * parts:
        last = min(first + random.randint(1, 3), count * parts)
        spans.append((first, last))
        first = last
    random.shuffle(spans)
    for group.first, group.last in spans:
        result = _SPAN(atomic_load(entry.code))(
            entry.environment, *(record.buffer_info()[0] for record in records)
        )
        if result and failure:
            return False
        if result:
            error = executable.take_failure(result)
            assert error is not None
            raise error
    return True
