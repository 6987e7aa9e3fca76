"""What emulated processes have compiled outside (`tests/aarch64/outside.py`) is what they would compile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from jitree.base.platform import processor
from jitree.codegen.image import cache, shipped
from jitree.codegen.image.build import level_target
from jitree.codegen.image.compile import compile_unit
from jitree.codegen.image.flat import decode_trusted
from jitree.codegen.image.generated import STRAIGHT, Unit
from jitree.codegen.image.keys import key_of
from jitree.tools.cache import own_recipes
from tests.aarch64 import asking

ROOT = Path(__file__).parents[1]
TARGET = level_target("aarch64")
TEXT = """
define i32 @twice(i32 %x) {
  %y = add i32 %x, %x
  ret i32 %y
}"""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "outside"
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}  # images need the former
    environment.pop(shipped.STAMP_VARIABLE, None)
    command = [sys.executable, "-m", "tests.aarch64.outside", str(path)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as process:
        monkeypatch.setattr(asking, "SOCKET", str(path))
        while not path.exists() and process.poll() is None:
            time.sleep(0.05)
        yield
        process.kill()


def test_units(outside: None) -> None:
    unit = Unit((TEXT,), ("twice",), STRAIGHT)
    assert asking.ask("unit", asking.plain(unit), tuple(TARGET)) == compile_unit(unit, TARGET)
    wrong = Unit(("define",), ("twice",), STRAIGHT)
    assert asking.ask("unit", asking.plain(wrong), tuple(TARGET)) is None


def test_images(outside: None) -> None:
    """One is as it is shipped."""
    recipe = next(recipe for recipe in own_recipes() if recipe.name == "spans")
    expected = decode_trusted(Path(shipped.path_of(recipe.name, "aarch64")).read_bytes())
    assert expected is not None
    code, rebase, entries, notes = asking.ask("image", tuple(recipe), tuple(TARGET))
    assert (code, rebase, notes) == (bytes(expected.code), bytes(expected.rebase), bytes(expected.notes))
    assert entries == expected.entries


def test_a_changed_copy_of_the_package_builds_inside(tmp_path: Path) -> None:
    build = ModuleType("build")
    build.__file__ = str(tmp_path / "jitree/codegen/image/build.py")
    build.generate = lambda recipe: "generated"  # type: ignore[attr-defined]
    build.build = lambda generated, target: generated  # type: ignore[attr-defined]
    asking.build_outside(build)
    assert build.build(build.generate(own_recipes()[0]), TARGET) == "generated"


def test_a_builder_stores_what_is_built_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processor, "kept", processor.kept[:])  # the module below adds to it
    found = find_spec("jitree.codegen.image.build")
    assert found is not None and found.loader is not None
    build = module_from_spec(found)
    found.loader.exec_module(build)
    recipe = own_recipes()[0]
    parts = b"code", b"", {"entry": 0}, b"notes"
    monkeypatch.setattr(asking, "ask", lambda kind, *operands: parts)
    asking.build_outside(build)
    with cache.kept_in(str(tmp_path)):
        worker = build._ImageWorker([recipe], [key_of(recipe)], TARGET)
        worker._build([0])
        assert not worker._outcomes[0].failure
        stored = cache.load(recipe, key_of(recipe))
    assert stored is not None and stored.entries == parts[2] and bytes(stored.notes) == parts[3]
