"""Modules that real compilers wrote, from the oldest release to the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitree.errors import StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import RELEASES, read_module
from jitree.vmfb.schema import Dependency, Module

DATA = Path(__file__).resolve().parent.parent / "data" / "releases"

BYTECODE = {"20240129.785": 15, "20240828.999": 15, "3.9.0": 15, "3.11.0": 17, "3.13.0": 17}
HAL_VERSION = {"20240129.785": 2, "20240828.999": 5, "3.9.0": 6, "3.11.0": 6, "3.13.0": 7}


def read(program: str, release: str) -> Module:
    return read_module(Archive.open(DATA / f"{program}-{release}.vmfb"))


@pytest.mark.parametrize("release", BYTECODE)
def test_scalars(release: str) -> None:
    module = read("scalars_math", release)
    assert (module.name, module.bytecode_version) == ("module", (BYTECODE[release], 0))
    assert sorted(export.name for export in module.exports) == ["binary", "unary", "unary2"]
    assert module.dependencies == () and module.rodata == ()
    cconvs = {module.function_name(function.ordinal): function.cconv for function in module.functions}
    assert cconvs == {"unary": "0f_ffffffffff", "unary2": "0f_ffffff", "binary": "0ff_ffff"}
    assert all(function.requirements & 1 for function in module.functions)


@pytest.mark.parametrize("release", BYTECODE)
def test_tensors(release: str) -> None:
    module = read("simple_mul", release)
    assert module.dependencies == (Dependency("hal", HAL_VERSION[release], True),)
    assert {"hal.buffer_view.buffer", "hal.buffer_view.create"} <= {row.full_name for row in module.imports}
    export = module.export("simple_mul")
    assert export is not None
    attrs = module.functions[export.ordinal].attrs
    assert attrs["iree.abi.declaration"] == (
        "sync func @simple_mul(%input0: tensor<4xf32>, %input1: tensor<4xf32>) -> (%output0: tensor<4xf32>)"
    )


@pytest.mark.parametrize("release", BYTECODE)
def test_the_executable_is_a_module_in_place(release: str) -> None:
    module = read("simple_mul", release)
    nested = [
        read_module(Archive.open(segment.data, name="executable"))
        for segment in module.rodata
        if segment.external
    ]
    assert len(nested) == 1
    assert nested[0].bytecode_version == module.bytecode_version
    assert nested[0].archive.data.obj is module.archive.data.obj  # a view, not a copy


@pytest.mark.parametrize("release", BYTECODE)
def test_source_locations(release: str) -> None:
    module = read("scalars_math", release)
    debug = module.debug
    assert debug is not None
    # Since 3.11.0 the map of one function is stored, under index 0: of no use.
    assert debug.usable == (BYTECODE[release] == 15)
    lines = {
        line for row in module.functions for at in range(row.length) for line in debug.locate(row.ordinal, at)
    }
    assert (lines != set()) == debug.usable
    assert all(line.rpartition(".mlir:")[2].count(":") == 1 for line in lines)


@pytest.mark.parametrize("release", BYTECODE)
def test_truncations(release: str) -> None:
    """Up to the end of the last data it holds, no shorter file is accepted."""
    data = (DATA / f"simple_mul-{release}.vmfb").read_bytes()
    rodata = read("simple_mul", release).rodata
    needed = max(segment.file_offset + len(segment.data) for segment in rodata if segment.external)
    assert needed < len(data)
    read_module(Archive.open(data[:needed]))
    for length in range(0, needed, 61):
        with pytest.raises(StatusError):
            read_module(Archive.open(data[:length]))


def test_every_release_table_entry_is_supported() -> None:
    assert sorted(RELEASES) == [15, 16, 17]
