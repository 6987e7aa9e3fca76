"""Images that come with the package: they are those of the present sources, and they are what is used."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitree.base import processor
from jitree.codegen import image
from jitree.codegen.image import keys, shipped
from jitree.codegen.image.digests import digest_of
from jitree.codegen.image.flat import decode
from jitree.tools.cache_warm import own_recipes

_ROOT = Path(__file__).parents[2]
RECIPES = {recipe.name: recipe for recipe in own_recipes()}
COMMAND = "python -m jitree.tools.ship_images"

matching = pytest.mark.skipif(not shipped.suits(), reason="images are shipped for other processors than this")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, in a process that knows no images yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.setattr(image, "_static", {})
    monkeypatch.setattr(image, "_providers", {})
    yield path


@pytest.mark.parametrize("name", RECIPES)
def test_files_are_of_the_present_sources(name: str) -> None:
    data = Path(shipped.path_of(name)).read_bytes()
    current = decode(data, digest_of(RECIPES[name])) is not None
    assert current, (
        f"sources of image '{name}' have changed since it was made: run {COMMAND} and commit what it made"
    )


def test_every_image_of_the_package_is_shipped() -> None:
    """Those that are made of the package's files alone: of recipes that are constants of a module."""
    found = set()
    for path in (_ROOT / "jitree").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Recipe", "image.Recipe"):
                arguments = {item.arg: item.value for item in value.keywords}
                if "data" not in arguments:
                    found.add(ast.literal_eval(arguments["name"]))
    assert found == set(RECIPES), "own_recipes() in jitree/tools/cache_warm.py lists them"
    files = {Path(shipped.path_of(name)).name for name in found}
    assert {path.name for path in Path(shipped.FOLDER).iterdir()} == files | {"compiler.txt"}, (
        f"run {COMMAND}"
    )


@matching
def test_files_are_made_again_alike() -> None:
    from jitree.tools import ship_images

    if ship_images.COMPILER_FILE.read_text(encoding="ascii").strip() != ship_images.compiler():
        pytest.skip(f"made by another compiler than {ship_images.compiler()}")
    for item in RECIPES.values():
        shipped_file = Path(shipped.path_of(item.name)).read_bytes()
        assert ship_images.image_file(item) == shipped_file, f"{item.name}: run {COMMAND}"


@matching
@pytest.mark.parametrize("name", RECIPES)
def test_they_need_no_builder(name: str, folder: Path) -> None:
    found = image.get(RECIPES[name])
    assert found is not None
    assert set(RECIPES[name].entries) <= set(found.addresses)
    assert not list(folder.glob("*.image"))


@matching
def test_the_compiler_that_is_installed_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = RECIPES["executor"]
    digest = digest_of(executor)
    host_keys = set()
    for version in (b"0.44.0", b"0.99.0", b""):
        monkeypatch.setattr(keys, "_version", lambda package, version=version: version)
        keys._environment.cache_clear()
        host_keys.add(keys.host_key(digest))
        assert shipped.load(executor, digest_of(executor)) is not None
    keys._environment.cache_clear()
    assert len(host_keys) == 3


@matching
def test_other_sources_are_a_miss(tmp_path: Path) -> None:
    executor = RECIPES["executor"]
    changed = tmp_path / "changed"
    changed.write_bytes(Path(executor.sources[0]).read_bytes() + b"\n")
    for other in (
        executor._replace(sources=(changed, *executor.sources[1:])),
        executor._replace(entries=executor.entries[1:]),
        executor._replace(generator="jitree.hal.local.executor.texts:others"),
        executor._replace(data=(b"",)),
        executor._replace(name="strider"),
    ):
        assert shipped.load(other, digest_of(other)) is None


@pytest.mark.parametrize("missing", ["avx2", "bmi1", "fma", "movbe", "abm"])
def test_lesser_processors_build_their_own(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    level = set(_LEVEL_3.split())
    for flags, expected in ((level, True), (level - {missing}, False), (set(), False)):
        monkeypatch.setattr(processor, "words", lambda name, flags=flags: frozenset(flags))
        shipped.suits.cache_clear()
        assert shipped.suits() == (expected and os.uname().machine == "x86_64")
    shipped.suits.cache_clear()


_LEVEL_3 = (
    "fpu cx8 cmov mmx fxsr sse sse2 syscall cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2"
    " f16c fma abm movbe xsave"
)
"""What /proc/cpuinfo says of a processor of level v3 and no more."""


@matching
def test_results_are_those_of_images_built_here_and_of_the_function() -> None:
    """Those of shipped code cannot depend on what else the processor has, nor on who compiles the loop."""
    printed = {
        kind: subprocess.run(
            [sys.executable, "-m", "tests.codegen.image_results", kind],
            cwd=_ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=True,
        ).stdout
        for kind in ("shipped", "built", "function")
    }  # fmt: skip
    assert len(printed["shipped"].splitlines()) > 150
    assert printed["shipped"] == printed["built"]
    assert printed["shipped"] == printed["function"]
