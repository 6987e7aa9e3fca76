"""Runs one nest alone: its machine code on real memory."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from jitree.codegen.image import compile
from jitree.codegen.image.compile import Target, host_target, optimized_module, target_machine
from jitree.codegen.image.generated import STRAIGHT, Pipeline, Unit
from jitree.codegen.primitives import call_kernel
from jitree.codegen.vector_math.ir import SHARED_ENTRIES, shared_texts
from jitree.dispatch.native.nests import Nest
from jitree.dispatch.native.ssa import Value
from jitree.dispatch.semantics import SEMANTICS
from tests.aarch64 import asking

Bytes = npt.NDArray[np.uint8]
_LLVM = {"i32": "i32", "i64": "i64", "f32": "float", "f64": "double", "ref": "ptr"}
CODES = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}
WORD = {"i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}


class Buffer(NamedTuple):
    address: str
    length: str
    room: str


class Context:
    """What the lowering tells a nest, for a function that gets everything from an array."""

    deopt, done, exit, prefix, access = "deopt", "done", "exit", "n", ""

    def __init__(self, live_outs: list[Value], distance: int) -> None:
        self.live_outs = live_outs
        self.distance = distance
        self.entry: list[str] = []
        self.module: dict[str, None] = {}
        self.slots: dict[Value, int] = {}

    def value(self, value: Value) -> str:
        slot = self._slot(value)
        kind = _LLVM[value.type]
        name = f"%outside{slot}"
        line = f"  {name} = load {kind}, ptr {self._field(slot)}"
        if line not in self.entry:
            self.entry.append(line)
        return name

    def _slot(self, value: Value) -> int:
        return self.slots.setdefault(value, len(self.slots))

    def _field(self, slot: int, word: int = 0) -> str:
        name = f"%at{slot}.{word}"
        line = f"  {name} = getelementptr i64, ptr %values, i64 {2 * slot + word}"
        if line not in self.entry:
            self.entry.append(line)
        return name

    def buffer(self, value: Value) -> Buffer:
        slot = self._slot(value)
        for word, kind in enumerate(("ptr", "i64")):
            line = f"  %buffer{slot}.{word} = load {kind}, ptr {self._field(slot, word)}"
            if line not in self.entry:
                self.entry.append(line)
        return Buffer(f"%buffer{slot}.0", f"%buffer{slot}.1", f"%buffer{slot}.1")

    def stopped(self) -> str:
        return "stopped"

    def is_bindings(self, value: Value) -> bool:
        return False

    def packed(self, first: str, depth: int, blocks: int) -> str:
        return f"add i64 {self.distance}, 0"

    def math(self, mnemonic: str) -> str:
        function = getattr(ctypes.CDLL(None), str(SEMANTICS[mnemonic].math_function))
        address = ctypes.cast(function, ctypes.c_void_p).value
        return f"inttoptr (i64 {address} to ptr)"

    def declare(self, line: str) -> None:
        self.module[line] = None

    define = declare


QUICK = Pipeline(0, False, False, False, tidies=False, passes=("sroa",))
"""For what runs once: LLVM writes it as it is, in half of the time, and it leaves the same bits."""


def as_kernels(text: str) -> Pipeline:
    """How the nests of kernels are optimised."""
    return STRAIGHT


def quick(text: str) -> Pipeline:
    """How what runs once is optimised."""
    return QUICK


def mostly_quick(text: str) -> Pipeline:
    """For one of many nests that a test compiles: a quarter of them, by their texts, as those of kernels."""
    return QUICK if crc32(text.encode()) % 4 else STRAIGHT


def own_machine(target: Target, level: int = 3) -> Any:
    """An engine keeps the target machine that it is given."""
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=level, reloc="pic", codemodel="jitdefault", jit=True
    )


def quick_object(unit: Unit, target: Target) -> bytes:
    """The object of a unit that runs once."""
    module = optimized_module(unit.texts, unit.entries, target, unit.pipeline)
    return bytes(own_machine(target, 0).emit_object(module))


@lru_cache(16)
def engine(texts: Sequence[str], pipeline: Pipeline) -> Any:
    """What runs the function ``run`` of some texts.

    Of the nests of all tests a quarter has the text of one of the last: of another processor, which differs
    in nothing that it takes, or of other bounds, which only the call knows.
    """
    target = host_target()
    layout = str(target_machine(target).target_data)  # which sets up all targets
    unit = Unit(texts, ("run",), pipeline)
    empty = llvm.parse_assembly("")
    empty.triple, empty.data_layout = target.triple, layout
    made = llvm.create_mcjit_compiler(empty, own_machine(target))
    if asking.SOCKET:
        compiled = asking.ask("nest", asking.plain(unit), tuple(target))
    elif pipeline == QUICK:
        compiled = quick_object(unit, target)
    else:
        with patch.object(compile, "CHECKED", False):  # nothing here is what its accesses are looked up in
            compiled = compile.compile_unit(unit, target)
    made.add_object_file(llvm.ObjectFileRef.from_data(compiled))
    made.finalize_object()
    return made


@cache
def _shared() -> str:
    """What images share: few nests call it, and LLVM takes as long for it as for a nest."""
    return "\n".join(shared_texts())


class Compiled:
    """The machine code of a nest."""

    def __init__(
        self, nest: Nest, distance: int = 0, pipeline_of: Callable[[str], Pipeline] = as_kernels
    ) -> None:
        """``distance``: from constants to their copies; 0: there are none. ``pipeline_of``: how LLVM
        optimises a text."""
        self.nest = nest
        counter = nest.loop.header.parameters[0]
        self._context = Context([counter], distance)
        text = nest.emit(self._context)  # type: ignore[arg-type]
        entry = "\n".join(self._context.entry)
        self.text = f"""{chr(10).join(self._context.module)}
define internal fastcc i1 @vm.look(ptr %looks) noinline {{
  %before = load i64, ptr %looks
  %left = sub i64 %before, 1
  store i64 %left, ptr %looks
  %last = icmp eq i64 %left, 0
  ret i1 %last
}}
define i32 @run(ptr %values, ptr %result, ptr %state) {{
entry:
  %fuel.at = alloca i64
  store i64 9, ptr %fuel.at
{entry}
  br label %nest
nest:
{text}
exit:
  store i64 {counter.name}, ptr %result
  ret i32 1
stopped:
  store i64 -1, ptr %result
  ret i32 1
deopt:
  ret i32 0
}}"""
        calls_shared = any(name in self.text for name in SHARED_ENTRIES)
        self._engine = engine((self.text, *([_shared()] if calls_shared else ())), pipeline_of(self.text))
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 3)
        self._function = kind(self._engine.get_function_address("run"))

    def outside(self) -> list[Value]:
        """The values from outside that it uses."""
        return list(self._context.slots)

    def run(
        self, values: Mapping[Value, float | Bytes], looks: int = 0, is_kernel: bool = False
    ) -> int | None:
        """What the counter is after the nest; None if the guard has failed. The last one of some looks ends
        the nest: -1. Denormal numbers are zeros in a kernel."""
        words = (ctypes.c_uint64 * (2 * len(self._context.slots) + 2))()
        for value, slot in self._context.slots.items():
            given = values[value]
            if isinstance(given, np.ndarray):
                words[2 * slot], words[2 * slot + 1] = given.ctypes.data, len(given)
            else:
                raw = struct.pack(WORD[value.type], given).ljust(8, b"\0")
                words[2 * slot] = int.from_bytes(raw, "little")
        result = ctypes.c_int64()
        left = ctypes.c_int64(looks)
        places = ctypes.addressof(words), ctypes.addressof(result), ctypes.addressof(left)
        address = self._engine.get_function_address("run")
        taken = call_kernel(address, *places) & 0xFFFFFFFF if is_kernel else self._function(*places)
        self.looks = looks - left.value
        return result.value if taken else None
