"""Compiled modules of nine releases: called on both drivers, all at once, and told apart by their imports."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.modules.releases import Origin, families, imports, origin, releases
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module
from tests.assembler import Assembler

DATA = Path(__file__).parent.parent / "data" / "releases"
ORIGINS = {
    "20240129.785": ("0.2a 0.2b", "20240129.785", "20240724.964"),
    "20240621.931": ("0.2a 0.2b", "20240129.785", "20240724.964"),
    "20240724.964": ("0.2a 0.2b", "20240129.785", "20240724.964"),
    "20240828.999": ("0.5a 0.5b", "20240828.999", "3.3.0"),
    "2.9.0": ("0.5b", "2.9.0", "3.3.0"),
    "3.4.0": ("0.6a 0.6b", "3.4.0", "3.9.0"),
    "3.9.0": ("0.6a 0.6b", "3.4.0", "3.9.0"),
    "3.12.0": ("0.7a 0.7b", "3.12.0", "3.13.0"),
    "3.13.0": ("0.7a 0.7b", "3.12.0", "3.13.0"),
}
"""Families that the imports leave, first and last release."""
DEVICES = ("local-sync", "local-task://?threads=2")
TIERS = ("plain", "fast")

WEIGHTS = np.array(
    [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 1], [0, 1, 0], [2, 2, 2], [3, 1, 4], [1, 5, 9]], np.float32
)

x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the executables are x86-64 code")


def path(release: str) -> Path:
    return DATA / f"families-{release}.vmfb"


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def check(module: Any, round_number: int, size: int = 100) -> None:
    """Calls every function; ``round_number`` counts the calls that this module has had, from 1."""
    x, y = np.arange(size, dtype=np.float32), np.full(size, 3, np.float32)
    np.testing.assert_array_equal(module.scale_add(x, y, 2.5), x * np.float32(2.5) + y)
    rows = np.arange(32, dtype=np.float32).reshape(4, 8) + round_number
    np.testing.assert_array_equal(module.layers(rows), (rows @ WEIGHTS).sum(1))
    np.testing.assert_array_equal(module.patch(ints(round_number, 2)), [7, 7, 7, round_number, 2, 7, 7, 7])
    np.testing.assert_array_equal(module.add_to_total(ints(1, 2, 3, -4)), round_number * ints(1, 2, 3, -4))
    assert np.asarray(module.choose(ints(1, 10, 3, 4))) == 10
    assert np.asarray(module.choose(ints(1, 2, 11, 4))) == 111


@x86_64
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("release", ORIGINS)
def test_a_module_of_every_family(release: str, tier: str, device: str) -> None:
    with jitree.Session(device, tier=tier) as session:
        module = session.load(path(release))
        for round_number, size in enumerate((1, 64, 1000), 1):
            check(module, round_number, size)


@x86_64
@pytest.mark.parametrize("device", DEVICES)
def test_nine_releases_at_once_from_four_threads(device: str) -> None:
    rounds, threads = 3, 4
    instance = jitree.Instance()
    sessions = [jitree.Session(device, instance=instance) for _ in ORIGINS]
    loaded = [session.load(path(release)) for session, release in zip(sessions, ORIGINS, strict=True)]
    locks = [threading.Lock() for _ in loaded]
    calls = [0] * len(loaded)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for step in range(rounds * len(loaded)):
                index = (first + step) % len(loaded)
                with locks[index]:  # the totals of a module depend on the order of its calls
                    calls[index] += 1
                    check(loaded[index], calls[index])
                result = loaded[index].patch(ints(first, step))  # without: calls of one module overlap
                np.testing.assert_array_equal(result, [7, 7, 7, first, step, 7, 7, 7])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(first * 2,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for session in sessions:
        session.close()
    if failures:
        raise failures[0]
    assert calls == [rounds * threads] * len(loaded)


@pytest.mark.parametrize("release", ORIGINS)
def test_origin_of_compiled_modules(release: str) -> None:
    found = origin(read_module(Archive.open(path(release))))
    names, first, last = ORIGINS[release]
    assert (" ".join(found.families), found.releases[0], found.releases[-1]) == (names, first, last)
    assert release in found.releases
    assert found.unknown == ()


def origin_of(bytecode: int, *wanted: tuple[str, str]) -> Origin:
    module = Assembler("m", bytecode)
    for name, cconv in wanted:
        module.import_function(name, cconv)
    return origin(read_module(Archive.open(module.function("f", "0v_v", "return").build())))


def test_origin_by_single_imports() -> None:
    assert origin_of(16).releases == ("3.10.0",)
    assert origin_of(16).families == ()
    barrier = origin_of(15, ("hal.device.queue.barrier", "0rIrrI_v"))
    assert (barrier.families, barrier.releases[0], barrier.releases[-1]) == (
        ("0.6a", "0.6b"),
        "3.4.0",
        "3.9.0",
    )
    select = origin_of(17, ("hal.allocator.select", "0iiICrID_rI"), ("hal.fence.create", "0rI_r"))
    assert select.releases == ("3.11.0", "3.12.0", "3.13.0")
    tolerance = origin_of(15, ("check.expect_almost_eq", "0rrrff_v"), ("hal.fence.create", "0ri_r"))
    assert tolerance.releases == ("3.3.0",)


def test_origin_of_nightlies_and_of_unknown_imports() -> None:
    nightly = origin_of(15, ("hal.executable.create2", "0rrrr_r"))
    assert (nightly.families, nightly.releases) == (("0.4",), ("20240813.984",))
    mixed = origin_of(15, ("hal.fence.create", "0ri_r"), ("hal.fence.join", "0ICrD_r"))
    assert (mixed.families, mixed.releases, mixed.unknown) == ((), (), ())
    unknown = origin_of(17, ("hal.fence.create", "0rII_r"), ("other.f", "0v_v"))
    assert unknown == Origin((), (), ("hal.fence.create (0rII_r)",))


def test_the_tables_agree() -> None:
    assert families("hal") == (
        "0.2a",
        "0.2b",
        "0.3",
        "0.4",
        "0.5a",
        "0.5b",
        "0.5c",
        "0.6a",
        "0.6b",
        "0.7a",
        "0.7b",
    )
    assert len({release.name for release in releases()}) == len(releases())
    assert all(found <= set(families(module)) for (module, _, _), found in imports().items())
    names = {release.name: release for release in releases()}
    for release in ORIGINS:
        module = read_module(Archive.open(path(release)))
        assert module.bytecode_version[0] == names[release].bytecode
