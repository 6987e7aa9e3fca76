"""Programs in a sandbox that call what comes with a session, anyhow, and what the process does for them.

``python -m tests.security.random_imports COUNT [SEED]`` makes many of them. It prints what a program must not
get: files that are opened, packages that are imported, sockets, processes, variables of the environment.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

import jitree
from jitree.errors import StatusError
from jitree.modules.import_rows import ImportRow, Parameter, parse_parameters, rows
from tests.assembler import Assembler
from tests.modules.hal_programs import _items
from tests.security.programs import DATA

_IMPORTED: Final = (socket,)
"""What jitree's own files import of Python when they are needed first, where nothing else has."""
PACKAGE: Final = str(Path(jitree.__file__).parent)
OWN: Final = "JITREE_"
"""Variables with which users set up the package."""
_OWN_FILES: Final = ("jitree", PACKAGE, "/proc/cpuinfo")
_MODULES: Final = ("check", "hal", "hal_inline", "hal_loader", "io_parameters", "vmvx")
_ROWS: Final = [row for module in _MODULES for row in rows(module)]
_TEXTS: Final = (
    b"vmvx-bytecode-fb", b"embedded-elf-x86_64", b"system-elf-x86_64", b"/etc/passwd", b"hal.device.id",
    b"hal.executable.format", b"local*", b"model", b"w", bytes(64),
    (DATA.parent / "executables" / "vmvx_mul-3.13.0.fb").read_bytes(),
)  # fmt: skip
_LIKELY: Final = (0, 0, 0, 1, 1, 2, 3, 4, 16, 48, 64, 3075)
_ODD: Final = (-1, 7, 100, 1 << 31, (1 << 63) - 1, -(1 << 63), 0x21000020)
_VIEW: Final = "[%r2, %i8:9, %i4:5, %i10, %i1, %i12:13]"
_BEGIN: Final = f"""
    %i0 = const.i32 0
    %i1 = const.i32 1
    %i2:3 = const.i64 -1
    %i4:5 = const.i64 256
    %i6 = const.i32 48
    %i7 = const.i32 3075
    %i8:9 = const.i64 0
    %i10 = const.i32 553648160
    %i12:13 = const.i64 64
    %i14 = const.i32 3
    %i15 = const.i32 16
    [%r0] = call @hal.devices.get [%i0]
    [%r1] = call @hal.device.allocator [%r0]
    [%r2] = call @hal.allocator.allocate [%r1, %i2:3, %i6, %i7, %i4:5]
    [%r3] = call @hal.fence.create [%r0, %i8:9]
    [%r4] = call @hal.command_buffer.create [%r0, %i0, %i14, %i2:3, %i0]
    [%r5] = call.variadic @hal.buffer_view.create [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 1] {_VIEW}
    %r6 = list.alloc !vm.ref<?>, %i14
    list.resize %r6, %i14
    %r7 = buffer.alloc %i4:5, %i15
"""
_BEGUN: Final = {
    "hal.devices.get": "0i_r", "hal.device.allocator": "0r_r", "hal.allocator.allocate": "0rIiiI_r",
    "hal.fence.create": "0rI_r", "hal.command_buffer.create": "0riiIi_r",
    "hal.buffer_view.create": "0rIIiiCID_r",
}  # fmt: skip
_KINDS: Final = ("device", "allocator", "buffer", "fence", "command_buffer", "buffer_view")
_ANY: Final[Parameter] = ("", "vm.buffer")
"""Of imports whose table has no names of parameters."""
_MOST: Final = 120
"""The number of a register that stays null."""


class Program:
    """One function: it makes an object of each kind, and calls imports with these, others and numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._imports = dict(_BEGUN)
        self._lines = [_BEGIN]
        self._made = defaultdict[str, list[str]](list)
        self._made |= {f"hal.{kind}": [f"%r{index}"] for index, kind in enumerate(_KINDS)}
        self._made |= {"vm.list": ["%r6"], "vm.buffer": ["%r7"]}
        self._count = 8
        for ordinal in range(len(_TEXTS)):
            self._lines.append(f"{self._reference('vm.buffer')} = const.ref.rodata {ordinal}")

    def call(self, row: ImportRow) -> None:
        if self._imports.setdefault(row.full_name, row.cconv) != row.cconv:  # one of another release
            return
        segments, given = list[str](), list[str]()
        declared = chain(parse_parameters(row.parameters), repeat(_ANY))
        for item, parameter in zip(_items(row.cconv), declared, strict=False):
            count = self._rng.randrange(3) if item[0] == "C" else 1
            segments.append(str(count) if item[0] == "C" else "0xFFFF")
            parameters = parameter if isinstance(parameter, list) else [parameter]
            for _ in range(count):
                given += self._arguments(item.strip("CD"), parameters, len(given))
        spans = (
            f".variadic @{row.full_name} [{', '.join(segments)}]"
            if "C" in row.cconv
            else f" @{row.full_name}"
        )
        results = ", ".join(self._results(row))
        self._lines.append(f"{f'[{results}] = ' if results else ''}call{spans} [{', '.join(given)}]")

    def _arguments(self, kinds: str, parameters: list[Parameter], before: int) -> Iterator[str]:
        for index, (kind, (_, type_name)) in enumerate(zip(kinds, parameters, strict=True)):
            if kind == "r":
                known = self._made.get((type_name or "").rstrip("?"), [])
                is_odd = not known or self._rng.random() < 0.05
                yield (
                    f"%r{self._rng.choice((self._rng.randrange(self._count), _MOST))}"
                    if is_odd
                    else self._rng.choice(known)
                )
                continue
            number = self._rng.choice(_LIKELY if self._rng.random() < 0.8 else _ODD)
            first = 64 + 2 * (before + index)
            register, width = (f"%i{first}:{first + 1}", 64) if kind in "IF" else (f"%i{first}", 32)
            half = 1 << width - 1
            self._lines.append(f"{register} = const.i{width} {(number + half) % (2 * half) - half}")
            yield register

    def _results(self, row: ImportRow) -> Iterator[str]:
        for index, kind in enumerate(row.cconv.partition("_")[2].strip("v")):
            if kind == "r":
                yield self._reference(f"hal.{row.name.partition('.')[0]}")
            else:
                yield f"%i{400 + 2 * index}:{401 + 2 * index}" if kind in "IF" else f"%i{400 + 2 * index}"

    def _reference(self, type_name: str) -> str:
        self._count += 1
        self._made[type_name].append(f"%r{self._count - 1}")
        return f"%r{self._count - 1}"

    def build(self) -> bytes:
        module = Assembler("m")
        for text in _TEXTS:
            module.rodata(text)
        for name, cconv in self._imports.items():
            module.import_function(name, cconv)
        return module.function("f", "0v_i", "\n".join([*self._lines, "return [%i0]"])).build()


class Watch:
    """What the process does while ``is_on``."""

    def __init__(self) -> None:
        self.is_on = False
        self.found = Counter[str]()
        read = type(os.environ).__getitem__

        def watched(environment: Any, name: Any) -> Any:
            if self.is_on and not str(name).startswith(OWN):
                self.found[f"variable {name}"] += 1
            return read(environment, name)

        type(os.environ).__getitem__ = watched  # type: ignore[method-assign]
        sys.addaudithook(self._see)

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in ("open", "os.listdir", "os.scandir", "import"):
            is_own = str(arguments[0]).startswith(_OWN_FILES)
        else:
            is_own = not event.startswith(
                ("socket", "subprocess", "os.", "shutil", "tempfile", "ctypes.dlopen")
            )
        if not is_own:
            self.found[f"{event} {arguments[:2]}"] += 1


def run(count: int, seed: int) -> tuple[Counter[str], Counter[str]]:
    """The statuses that programs ended with, and what was found."""
    rng, watch, outcomes = random.Random(seed), Watch(), Counter[str]()
    limits = jitree.Limits(memory=1 << 24, time=2.0, load_time=5.0, handles=10_000, output=1 << 20)
    for _ in range(count):
        program = Program(rng)
        for _ in range(rng.randrange(1, 5)):
            program.call(rng.choice(_ROWS))
        data, device, tier = (
            program.build(),
            rng.choice(("local-sync", "local-task")),
            rng.choice(("plain", "fast")),
        )
        given: Any = {"model": {"w": np.ones(16, np.float32)}}
        with jitree.Session(
            device, sandbox=True, tier=tier, limits=limits, parameters=given, trace_sink=None
        ) as session:
            watch.is_on = True
            try:
                session.load(data).f()
                outcomes["OK"] += 1
            except StatusError as error:
                outcomes[error.code.name] += 1
            finally:
                watch.is_on = False
    return outcomes, watch.found


if __name__ == "__main__":
    outcomes, found = run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(dict(outcomes), file=sys.stderr)
    print(*found.items(), sep="\n", end="")
