"""Executables that import functions: from plugin libraries, and from this process."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.api.executables import create_loaders
from jitree.api.session import Instance
from jitree.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.environment import ImportProvider
from jitree.loaders.system_library import FunctionTable, PluginLibrary, open_plugin
from tests.hal.native_kernels import aligned, whole
from tests.loaders.compiler import COMPILER, NEEDS_COMPILER, compile_library
from tests.loaders.samples import FOR_THIS_PROCESSOR, NEEDS_SAMPLES, load, sample

SOURCE = Path(__file__).parents[1] / "data" / "plugins" / "scale.c"
EXECUTABLE = "imp-3.13.0.so"
IMPORT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
EMBEDDED_FLAGS = (
    "-nostdlib", "-fno-builtin", "-fno-stack-protector", "-fcf-protection=none", "-fvisibility=hidden",
    "-Wl,-z,separate-code,-z,relro,-z,now,--hash-style=sysv,--build-id=none,-z,noexecstack",
)  # fmt: skip
"""A library without needs, for the embedded ELF loader."""

with_samples = pytest.mark.skipif(not FOR_THIS_PROCESSOR, reason=NEEDS_SAMPLES)
with_compiler = pytest.mark.skipif(COMPILER is None, reason=NEEDS_COMPILER)


@pytest.fixture(scope="module")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(SOURCE, tmp_path_factory.mktemp("plugins") / "scale.so")


def run(providers: tuple[ImportProvider, ...], values: np.ndarray) -> np.ndarray:
    executable = load(sample(EXECUTABLE), providers=providers)
    source, out = aligned(values), aligned(np.zeros(16, np.float32))
    commands = CommandList()
    commands.dispatch(executable, 0, (16, 1, 1), [], [whole(source), whole(out)])
    executor.execute(commands, *commands.bind(()))
    return out


VALUES = np.arange(16, dtype=np.float32) / 4
EXPECTED = VALUES * 10 + np.arange(16, dtype=np.float32) + np.float32(0.5)


@with_samples
@with_compiler
@pytest.mark.parametrize("prefix", ["", "embedded:"])
def test_plugin_library(tmp_path: Path, prefix: str) -> None:
    path = compile_library(SOURCE, tmp_path / "scale.so", *(EMBEDDED_FLAGS if prefix else ()))
    provider = open_plugin(f"{prefix}{path}")
    assert isinstance(provider, PluginLibrary)
    assert provider.name == "scale"
    assert (run((provider,), VALUES) == EXPECTED).all()
    with pytest.raises(InternalError, match="returned 42 in workgroup"):
        run((provider,), VALUES - 1)


@with_samples
@with_compiler
def test_suffix_of_embedded_plugins(tmp_path: Path) -> None:
    path = compile_library(SOURCE, tmp_path / "scale.sos", *EMBEDDED_FLAGS)
    assert (run((open_plugin(path),), VALUES) == EXPECTED).all()


@with_compiler
def test_plugins_are_unloaded_with_their_last_user(plugin_path: Path) -> None:
    count = ctypes.c_int.in_dll(ctypes.CDLL(str(plugin_path)), "unload_count")
    gc.collect()
    before = count.value
    provider = open_plugin(plugin_path)
    loader = EmbeddedElfLoader((provider,))
    del provider
    assert count.value == before
    del loader
    assert count.value == before + 1


@with_compiler
def test_symbols_that_a_plugin_lacks(plugin_path: Path) -> None:
    provider = open_plugin(plugin_path)
    assert provider.resolve("unknown") is None
    with pytest.raises(InvalidArgumentError, match="plugin 'scale' failed to resolve 'jt_broken'"):
        provider.resolve("jt_broken")


@with_compiler
@pytest.mark.parametrize(
    ("flag", "error", "text"),
    [
        ("-DPLUGIN_VERSION=2", FailedPreconditionError, "interface is version 2; 1 is expected"),
        ("-DPLUGIN_SANITIZER=1", UnavailableError, "compiled for a sanitizer"),
        ("-DLOAD_STATUS=7", PermissionDeniedError, "plugin 'scale' refused to load"),
        ("-DQUERY=elsewhere", NotFoundError, "does not export"),
    ],
)
def test_plugins_that_are_refused(tmp_path: Path, flag: str, error: type[Exception], text: str) -> None:
    path = compile_library(SOURCE, tmp_path / "bad.so", flag)
    with pytest.raises(error, match=text) as caught:
        open_plugin(path)
    assert f"loading executable plugin '{path}'" in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "embedded:"])
def test_a_plugin_that_is_not_there(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(NotFoundError, match="no library at"):
        open_plugin(f"{prefix}{tmp_path}/none.so")


def test_a_plugin_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("not a library" * 20)
    for plugin in (str(path), f"embedded:{path}"):
        with pytest.raises(FailedPreconditionError):
            open_plugin(plugin)


# -- functions of this process ---------------------------------------------------------------------------


class _Scale(ctypes.Structure):
    _fields_ = (("result", ctypes.c_float), ("value", ctypes.c_float), ("index", ctypes.c_int64))


def _scale(parameters: int, context: int | None, reserved: int | None) -> int:
    fields = _Scale.from_address(parameters)
    fields.result = fields.value * (context or 0) + fields.index
    return 0


def _other(parameters: int, context: int | None, reserved: int | None) -> int:
    fields = _Scale.from_address(parameters)
    fields.result = fields.value + 0.5
    return 0


@with_samples
def test_ctypes_functions_addresses_and_contexts() -> None:
    scale, other = IMPORT(_scale), IMPORT(_other)
    address = ctypes.cast(other, ctypes.c_void_p).value
    assert (run((FunctionTable({"jt_scale": (scale, 10), "jt_other": address}),), VALUES) == EXPECTED).all()


@with_samples
def test_numba_functions() -> None:
    import numba
    from numba import types

    def function(parameters: Any, context: Any, reserved: Any) -> int:
        parameters[0] = parameters[1] + numba.float32(0.5)
        return 0

    signature = types.int32(types.CPointer(types.float32), types.voidptr, types.voidptr)
    other = numba.cfunc(signature)(function)

    table = FunctionTable({"jt_scale": (IMPORT(_scale), 10), "jt_other": other})
    assert (run((table,), VALUES) == EXPECTED).all()


@with_samples
def test_the_last_provider_comes_first() -> None:
    scale = FunctionTable({"jt_scale": (IMPORT(_scale), 10)})
    wrong, right = IMPORT(lambda *_: 7), IMPORT(_other)
    table = (scale, FunctionTable({"jt_other": wrong}), FunctionTable({"jt_other": right}))
    assert (run(table, VALUES) == EXPECTED).all()
    with pytest.raises(NotFoundError, match="imports jt_other"):
        run((scale,), VALUES)


@pytest.mark.parametrize("function", [None, "text", 0, -1, print, (1, 2, 3), ("x", 1)])
def test_what_is_no_function(function: object) -> None:
    with pytest.raises(InvalidArgumentError, match="'f' is no C function"):
        FunctionTable({"f": function})


def test_sessions_take_plugins() -> None:
    with pytest.raises(NotFoundError, match=r"loading executable plugin 'none\.so'"):
        jitree.Session("local-sync", executable_plugins=["none.so"])
    with jitree.Session("local-sync", executable_plugins=[{"f": 1}]) as session:
        assert len(session.device.loaders) == len(create_loaders())
    instance = Instance(loaders=())
    with pytest.raises(
        InvalidArgumentError, match="plugins, modules and arithmetic have to be given to the loaders"
    ):
        jitree.Session("local-sync", executable_plugins=[{"f": 1}], instance=instance)
