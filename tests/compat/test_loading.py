"""Loading and calling by iree.runtime's names, on modules of several releases."""

from __future__ import annotations

import ast
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitree.compat.iree_runtime as rt
from jitree.compat.iree_runtime.names import FACES

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = ROOT / "tests" / "data" / "releases"
MULTIPLY = sorted(DATA.glob("simple_mul-*.vmfb"))
NEWEST = DATA / "simple_mul-3.13.0.vmfb"
FOUR = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def config() -> rt.Config:
    return rt.Config("local-sync")


def load(path: Path, config: rt.Config) -> rt.system_api.BoundModule:
    return rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, path), config)


@pytest.mark.parametrize("path", MULTIPLY, ids=lambda path: path.stem)
def test_modules_of_every_release_are_called(path: Path, config: rt.Config) -> None:
    module = load(path, config)
    result = module.simple_mul(FOUR, FOUR)
    assert isinstance(result, rt.DeviceArray)
    np.testing.assert_array_equal(result, FOUR * FOUR)
    again = module["simple_mul"](result, FOUR)
    np.testing.assert_array_equal(again.to_host(), FOUR**3)


def test_a_context_grows_and_knows_its_modules(config: rt.Config) -> None:
    context = rt.SystemContext(config=config)
    assert context.is_dynamic and list(context.modules) == ["hal"]
    module = rt.VmModule.mmap(context.instance, NEWEST)
    context.add_vm_module(module)
    bound = context.modules[module.name]
    assert bound is getattr(context.modules, module.name) and bound.vm_module is module
    with pytest.raises(ValueError, match=f"duplicate VmModule: '{module.name}'"):
        context.add_vm_module(rt.VmModule.mmap(context.instance, NEWEST))
    with pytest.raises(AttributeError, match="nothing"):
        bound.nothing  # noqa: B018
    with pytest.raises(KeyError, match="Function 'nothing' not found"):
        bound["nothing"]


def test_a_static_context_takes_no_more(config: rt.Config) -> None:
    context = rt.SystemContext(vm_modules=(), config=config)
    assert not context.is_dynamic
    with pytest.raises(AssertionError, match="static context"):
        context.add_vm_module(rt.VmModule.mmap(context.instance, NEWEST))


def test_one_of_driver_and_backend_is_given() -> None:
    data = NEWEST.read_bytes()
    with pytest.raises(ValueError, match="'None' for both"):
        rt.load_vm_flatbuffer(data)
    with pytest.raises(ValueError, match="Cannot specify both"):
        rt.load_vm_flatbuffer(data, driver="local-sync", backend="llvm-cpu")
    module = rt.load_vm_flatbuffer(data, driver="local-sync")
    np.testing.assert_array_equal(module.simple_mul(FOUR, FOUR), FOUR * FOUR)


def test_devices_are_cached_and_unknown_ones_named() -> None:
    assert rt.get_device("local-sync") is rt.get_device("local-sync")
    assert rt.get_device("local-sync") is not rt.get_device("local-sync", cache=False)
    assert rt.get_first_device(["nothing", "local-sync"]) is rt.get_device("local-sync")
    with pytest.raises(ValueError, match=r"No device found from list \['nothing'\]"):
        rt.get_first_device(["nothing"])
    with pytest.raises(ValueError, match="no driver 'nothing'"):
        rt.get_device("nothing")
    with pytest.raises(ValueError, match="not both"):
        rt.Config("local-sync", device=rt.get_device("local-sync"))


def test_a_mapped_file_tells_when_it_is_no_longer_used(config: rt.Config) -> None:
    told: list[int] = []
    module = rt.load_vm_module(
        rt.VmModule.mmap(config.vm_instance, NEWEST, destroy_callback=lambda: told.append(1)), config
    )
    np.testing.assert_array_equal(module.simple_mul(FOUR, FOUR), FOUR * FOUR)
    assert not told
    del module
    gc.collect()
    assert told == [1]


def test_what_iree_runtime_gets_wrong_in_silence_is_refused(config: rt.Config) -> None:
    module = load(NEWEST, config)
    with pytest.raises(ValueError, match=r"INVALID_ARGUMENT.*expected f32 .* have i32"):
        module.simple_mul(FOUR, FOUR.astype(np.int32))
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        module.simple_mul(FOUR, np.ones(5, np.float32))
    with pytest.raises(ValueError, match="expected 2 arguments but passed 1"):
        module.simple_mul(FOUR)


def test_numbers_are_normalised() -> None:
    assert rt.normalize_value(3.5).dtype == np.float32
    assert rt.normalize_value(3).dtype == np.int32
    assert rt.normalize_value(True).dtype == np.bool_
    assert rt.normalize_value(None) is None and rt.normalize_value([1]) == [1]


def test_every_name_can_be_imported() -> None:
    for name in rt.__all__:
        assert getattr(rt, name) is not None
    from jitree.compat.iree_runtime import _binding

    for name in _binding.__all__:
        assert getattr(_binding, name) is not None
    for face, table in FACES.items():
        module = importlib.import_module(f"{rt.__name__}.{face}")
        assert module is getattr(rt, face) and sorted(" ".join(table.values()).split()) == module.__all__
    with pytest.raises(AttributeError, match="nothing"):
        rt.nothing  # noqa: B018


INSTALLED = """
import jitree.compat
jitree.compat.install()
import iree.runtime as rt
from iree.runtime.system_api import load_vm_flatbuffer_file
import iree.runtime.function
import numpy as np
module = load_vm_flatbuffer_file("{path}", driver="local-sync")
x = np.arange(4, dtype=np.float32)
print(np.asarray(module.simple_mul(x, x)), iree.runtime.function.FunctionInvoker is rt.FunctionInvoker)
"""


def test_installed_it_takes_the_place_of_iree_runtime() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED.format(path=NEWEST)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.stdout == "[0. 1. 4. 9.] True\n", done.stderr


LIGHT = """
import sys
import jitree
before = set(sys.modules)
import {package}
print(sorted(set(sys.modules) - before))
"""


def test_importing_it_imports_nothing_else() -> None:
    """No numpy, and none of the modules that names are in."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(package=rt.__name__)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=True,
    )  # fmt: skip
    faces = [f"{rt.__name__}.{name}" for name in FACES]
    names = ["jitree.compat", rt.__name__, f"{rt.__name__}.names", *faces]
    heavy = [name for name in ast.literal_eval(done.stdout) if not name.startswith("importlib")]
    assert set(heavy) <= {*names, "types"}
