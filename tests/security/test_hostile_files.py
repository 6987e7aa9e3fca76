"""Files that are made to take long to look at, to say what cannot be told, or to change meanwhile."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import jitree
from jitree.api.load_order import explain_incompatible
from jitree.base import cancel_scopes
from jitree.codegen.image import keys
from jitree.codegen.image.flat import hashed, parts_of
from jitree.dispatch import variants
from jitree.dispatch.native.source import from_program
from jitree.errors import (
    CancelledError,
    DeadlineExceededError,
    NotFoundError,
    ResourceExhaustedError,
    StatusError,
)
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, recipes
from jitree.modules.io_parameters.agreement import KERNEL, operation, words_of
from jitree.modules.io_parameters.requests import find_uses
from jitree.vmfb import debug
from jitree.vmfb.debug import DebugDatabase
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler
from tests.security.programs import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
DIGITS = "9" * 6000


def chain(count: int) -> Assembler:
    """Blocks one after the other, each of which halves the bits of a size by the same constant."""
    blocks = "\n".join(f"^b{index}:\n%i0 = shr.i64.u %i0, %i4\nbr ^b{index + 1}" for index in range(count))
    return (
        Assembler("chain")
        .import_function("hal.devices.get", "0i_r")
        .import_function("hal.device.allocator", "0r_r")
        .import_function("hal.allocator.allocate", "0rIiiI_r")
        .function("f", "0I_v", f"""
            %i4 = const.i32 3
            %i6 = const.i32 0
            %i0 = mul.i64 %i0, %i0
            br ^b0
            {blocks}
            ^b{count}:
            [%r0] = call @hal.devices.get [%i6]
            [%r1] = call @hal.device.allocator [%r0]
            [%r2] = call @hal.allocator.allocate [%r1, %i0:1, %i6, %i6, %i0:1]
            return
        """)
    )  # fmt: skip


def test_what_takes_long_to_load_ends_in_time() -> None:
    """A file of 60 KB whose sizes take minutes to follow."""
    data = chain(4000).build()
    limits = jitree.Limits(load_time=0.2)
    for kind in (True, "process"):
        with jitree.Session("local-sync", sandbox=kind, limits=limits) as session:
            for _ in range(2):
                with pytest.raises(DeadlineExceededError, match="the limit on load time"):
                    session.load(data)
            assert session.load(chain(3).build()).names == ("f",)
            session.load(PROGRAM)
            assert session.call("hostile.count", 10) == 10


def test_kernels_that_call_anything_share_what_they_depend_on() -> None:
    """Each was described by all of them: a file of 1 MB took 15 GB, beside a sandbox's limits."""
    module = Assembler("kernels").function("__helper", "0i_i", "return [%i0]")
    for number in range(200):
        text = "[%i0] = call @__helper [%i0]\nreturn []"
        module.function(f"k{number}", ENTRY_CONVENTION, text, attrs={"binding_count": "1"})
    data = module.build()
    made = recipes(BytecodeModule.load(data, "executable"))
    assert sum(map(len, parts_of(made))) < 3 * len(data)
    keys._begun.cache_clear()
    assert len(set(map(keys.key_of, made))) == 200
    assert keys._begun.cache_info().misses == 1, "what they share is read once"
    first = made[0]
    assert keys.source_key(first) == hashed((f"{first.name} {first.generator}".encode(), *first.data))


def test_following_parameters_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    monkeypatch.setattr("jitree.modules.io_parameters.requests.require_going_on", lambda: looks.append(None))
    find_uses([BytecodeModule.load(chain(10).build())])
    assert len(looks) >= 10, "each time that a block is looked at"


@pytest.mark.parametrize("kind", [True, "process"])
def test_a_file_that_is_cut_off_after_it_was_loaded(kind: Any, tmp_path: Path) -> None:
    """Its mapping would have no memory any more, and touching it end the process."""
    file, constant = tmp_path / "large.vmfb", bytes(range(256)) * (1 << 13)
    module = Assembler("large").function("f", "0I_i", """
        %r0 = const.ref.rodata 0
        %i2 = buffer.load.i8.u %r0, %i0
        return [%i2]
    """)  # fmt: skip
    module.rodata(constant, external=True)
    file.write_bytes(module.build())
    with jitree.Session("local-sync", sandbox=kind) as session:
        session.load(file)
        assert session.call("large.f", 255) == 255
        with file.open("r+b") as opened:
            opened.write(bytes(1 << 12))
            opened.truncate(1 << 12)
        for place in (1 << 14, 1 << 20, (1 << 21) - 1):
            assert session.call("large.f", place) == place % 256


def test_a_module_of_many_functions_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function was looked for in a description of all of them: 8000 took minutes."""
    module = Assembler("many")
    for number in range(250):
        module.function(f"f{number}", "0i_i", "return [%i0]")
    described = Mock(wraps=from_program)
    monkeypatch.setattr(variants, "from_program", described)
    with jitree.Session("local-sync", tier="fast") as session:
        loaded = session.load(module.build())
        text = repr(loaded)
        monkeypatch.setattr(type(loaded), "__getitem__", Mock(side_effect=NotFoundError("it is closing")))
        names = repr(loaded)
    assert text.count("func @f") == 200 and text.endswith("  and 50 more: module.names has all>")
    assert described.call_count == 1
    assert "f199; it is closing" in names and "f200" not in names


def test_a_location_of_many_that_are_of_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    many = np.arange(1 << 20, dtype=np.int32)
    fused = Mock(content=Mock(return_value=many.data.cast("B")))
    looked = Mock(return_value=(debug._FUSED, fused))
    monkeypatch.setattr(DebugDatabase, "_location", looked)
    assert DebugDatabase(Mock(), 1, [])._described([0]) == []
    assert looked.call_count <= 1024


@pytest.mark.parametrize("text", ["a" * (1 << 20), "_dispatch_" * (1 << 17), "a_dispatch_" * (1 << 17)])
def test_names_of_kernels_in_long_words(text: str) -> None:
    """Each of them takes a second and not hours."""
    code = (
        "import sys\nfrom jitree.modules.io_parameters.agreement import KERNEL\n"
        "print(len(KERNEL.findall(sys.stdin.read())))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    assert done.stdout == "0\n"


def test_names_of_kernels_are_found_where_words_begin() -> None:
    names = "\0mul_dispatch_0_elementwise_4x8_f32\0_encoding_12_encode_4xf32\0.a$b_dispatch_3\0"
    assert KERNEL.findall(names) == [
        ("mul_dispatch_0", "elementwise_4x8_f32"), ("_encoding_12", "encode_4xf32"), ("b_dispatch_3", "")
    ]  # fmt: skip


def test_sizes_that_cannot_be_counted() -> None:
    assert operation(words_of(f"elementwise_{DIGITS}_f32")) is None
    message = f'#hal.device.target<"x"> ordinal = {DIGITS}'
    assert message in explain_incompatible(message, ["local"])
    failing = Assembler("m").function("__init", "0v_v", f"""
        %i0 = const.i32 18
        fail %i0, "#hal.device.target<\\"x\\"> ordinal = {DIGITS}"
    """)  # fmt: skip
    with jitree.Session("local-sync", sandbox=True) as session, pytest.raises(StatusError):
        session.load(failing.build())


def loading(count: int) -> bytes:
    """Loads the same 16 bytes of a parameter so many times in one call."""
    module = Assembler(f"loads{count}").import_function("hal.devices.get", "0i_r")
    module.import_function("io_parameters.load", "0rIrrrIiirrr_r")
    for data in (b"scope", struct.pack("<II", 0, 1) * count, b"k", struct.pack("<QQQ", 0, 0, 16) * count):
        module.rodata(data)
    module.rodata(f"f_dispatch_0_elementwise_{DIGITS}_f32".encode())
    return module.function("f", "0v_v", """
        %i1 = const.i32 0
        %i2:3 = const.i64 -1
        %i4 = const.i32 48
        %i5 = const.i32 3075
        [%r0] = call @hal.devices.get [%i1]
        %r1 = const.ref.rodata 0
        %r2 = const.ref.rodata 1
        %r3 = const.ref.rodata 2
        %r4 = const.ref.rodata 3
        [%r5] = call @io_parameters.load [%r0, %i2:3, %r10, %r11, %r1, %i2:3, %i4, %i5, %r2, %r3, %r4]
        return
    """).build()  # fmt: skip


def test_ranges_of_parameters_are_memory_and_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters: Any = {"scope": {"k": np.ones(4, np.float32)}}
    limits = jitree.Limits(memory=1 << 20)
    with jitree.Session("local-sync", sandbox=True, limits=limits, parameters=parameters) as session:
        few, many = session.load(loading(60), loading(5000))
        for _ in range(2):
            few.f()
            with pytest.raises(ResourceExhaustedError, match="the limit on memory"):
                many.f()
    with jitree.Session("local-sync", sandbox=True, parameters=parameters) as session:
        load, looks = session.load(loading(5000)).f, 0

        def end() -> StatusError | None:
            nonlocal looks
            looks += 1
            return CancelledError("as a deadline does") if looks == 20 else None

        monkeypatch.setattr(cancel_scopes, "why_to_end", end)
        with pytest.raises(CancelledError):
            load()
        monkeypatch.undo()
        load()
