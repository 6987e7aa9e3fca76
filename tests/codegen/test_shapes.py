"""Texts that differ in numbers only are compiled once, and compute what each would by itself."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitree.base.platform import MACHINE
from jitree.codegen.image import build, cache, compile, shapes
from jitree.codegen.image.compile import Target
from jitree.codegen.image.flat import ASIDE, KEY_SIZE, Recipe, map_image
from jitree.codegen.image.generated import STRAIGHT, Generated, Unit
from jitree.codegen.image.worklist import WorkList
from jitree.dispatch.native.prelude import BASE

pytestmark = pytest.mark.skipif(MACHINE != shapes.MACHINE, reason="instructions of x86-64 hold such numbers")

_TEXT = """
@table.0 = internal unnamed_addr constant [3 x i64] [ i64 {first}, i64 {second}, i64 -7 ]
define i64 @f(ptr %memory, i64 %x) {{
  %sum = add i64 %x, {added}
  %small = icmp slt i64 %sum, {bound}
  %large = icmp slt i64 {bound}, %sum
  %place = getelementptr float, ptr %memory, i64 {distance}
  %bits = load i32, ptr %place, align 1
  %loaded = zext i32 %bits to i64
  %index = and i64 %x, 1
  %row = getelementptr i64, ptr @table.0, i64 %index
  %found = load i64, ptr %row, align 8
  %chosen = select i1 %small, i64 %loaded, i64 %found
  %more = add i64 %chosen, {again}
  %result = select i1 %large, i64 %sum, i64 %more
  ret i64 %result
}}
"""
_KINDS = ("first", "second", "added", "bound", "distance", "again")
ONE = (5, 6, 300, 1000, 1, 300)
OTHERS = [
    (1 << 62, -3, 301, 2, 7, 301),
    (5, 6, 400, 1000, 2, 400),
    (0, 0, (1 << 31) - 1, (1 << 31) - 1, 3, (1 << 31) - 1),
    (9, 8, 7, 7, 6, 7),
]


def made(numbers: tuple[int, ...], text: str = _TEXT) -> Generated:
    unit = Unit([text.format(**dict(zip(_KINDS, numbers, strict=True)))], ("f",), STRAIGHT)
    return Generated((unit,), unit.entries, b"", BASE)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Unit]]:
    """What LLVM is asked to compile."""
    units, plain = list[Unit](), compile.compile_unit

    def counted(unit: Unit, target: Target) -> bytes:
        units.append(unit)
        return plain(unit, target)

    build._base(BASE, build.target_here())
    monkeypatch.setattr(compile, "compile_unit", counted)
    yield units


def results(item: Generated, found: list[shapes.TextShape]) -> list[int]:
    image = map_image(build.build_like(item, build.target_here(), found))
    memory = (ctypes.c_uint32 * 8)(*range(11, 19))
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(image.addresses["f"])
    return [
        function(ctypes.addressof(memory), x) for x in (-2000, -7, 0, 1, 699, 700, 701, 1 << 40, -(1 << 63))
    ]


def test_texts_that_differ_in_numbers_are_compiled_once(compiled: list[Unit]) -> None:
    texts = [made(numbers) for numbers in (ONE, *OTHERS)]
    alone = [results(item, []) for item in texts]
    compiled.clear()
    (shape,) = found = shapes.shapes_of(texts)
    assert [results(item, found) for item in texts] == alone
    assert len(compiled) == 1
    values = shape.values(texts[0])
    assert values is not None and values["table.0"] == bytes((5, *bytes(7), 6, *bytes(7), 249, *[255] * 7))
    assert sorted(value for value in values.values() if isinstance(value, int)) == [4, 300, 1000]


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((5, 6, 300, 1000, 1, 301), id="the same symbol would be two numbers"),
        pytest.param((5, 6, 0, 1000, 1, 0), id="LLVM takes no symbol for zero"),
        pytest.param((5, 6, 1 << 31, 1000, 1, 1 << 31), id="no instruction holds it"),
        pytest.param((5, 6, -3, 1000, 1, -3), id="a symbol is not negative"),
    ],
)
def test_other_texts_are_compiled_by_themselves(numbers: tuple[int, ...], compiled: list[Unit]) -> None:
    found, item = shapes.shapes_of([made(ONE), made(OTHERS[1])]), made(numbers)
    assert found[0].values(item) is None
    assert results(item, found) == results(item, [])
    assert all(unit is item.units[0] for unit in compiled)


def test_texts_of_several_shapes() -> None:
    other = _TEXT.replace("%index = and", "%index = lshr")
    pairs = [made(ONE), made(ONE, other), made(OTHERS[0]), made(OTHERS[0], other)]
    longer = made(ONE, _TEXT + "\n")
    refused = Generated((), (), b"why")
    found = shapes.shapes_of([*pairs, longer, refused])
    assert [[shape.values(item) is not None for shape in found] for item in (*pairs, longer, refused)] == [
        [True, False],
        [False, True],
        [True, False],
        [False, True],
        [False, False],
        [False, False],
    ]
    assert shapes.shapes_of([]) == shapes.shapes_of([refused]) == shapes.shapes_of([pairs[0]]) == []


def test_a_number_that_an_instruction_does_not_hold(
    compiled: list[Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = made(OTHERS[1])
    found = shapes.shapes_of([made(ONE), item])
    alone, plain = results(item, []), found[0].values(item)
    assert plain is not None
    monkeypatch.setattr(found[0], "values", lambda item: dict.fromkeys(plain, 1 << 40) | {"table.0": b""})
    assert results(item, found) == alone
    assert compiled[-1] is item.units[0]


def test_what_is_alike_is_taken_together() -> None:
    one, other = bytes(600), bytes(599) + b"x"
    assert shapes.alike([(one,), (other,), (), (bytes(10),), (), (one[:-3] + b"xyz",)]) == [
        [0, 1],
        [0, 1],
        [2],
        [3],
        [4],
        [5],
    ]
    work = WorkList.create(6)
    work.order(range(6))
    work.put(3, ASIDE)
    assert work.also([1], 3, 6) == [], "each has a process"
    work.hold()
    assert work.also([0, 1, 2, 3, 4], 3, 2) == [0, 1, 2]
    assert work.also([0, 3], 3, 2) == [], "the program needs the processors, and what is taken is taken"
    work.release()
    assert work.also([0, 3, 4, 5], 3, 2) == [3], "two are left for two processes"
    assert list(work) == [4, 5]
    work.close()


def test_functions_of_one_module_are_not_alike() -> None:
    """Kernels that call functions have all of their module as data: what tells them apart comes after it."""
    module = bytes(600)
    images = [(module, b"\0"), (module, b"\1"), (bytes(599) + b"x", b"\0"), (module, b"\0", b"more")]
    assert shapes.alike(images) == [[0, 2], [1], [0, 2], [3]]


_LIKE = "jitree_test_like"


def _generate(data: bytes) -> Generated:
    if data[-1] == 0:
        raise ValueError("this one fails")
    return made((data[-1], 1, 300 + data[-1], 1000, 1, 300 + data[-1]))


_KEYS = [bytes((number,) * KEY_SIZE) for number in range(12)]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """Of images that are alike."""
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(build, "generate", lambda recipe: _generate(*recipe.data))
    monkeypatch.setattr(build, "available_processors", lambda: 2)
    generator = f"{_LIKE}:generate"
    return [
        Recipe("named", str(number), generator, 1.0, (bytes((9,) * 999 + (number,)),)) for number in range(12)
    ]


def built(recipes: list[Recipe]) -> list[build._Outcome]:
    work = WorkList.create(12)
    work.order(reversed(range(12)))
    outcomes = build._ImageWorker(recipes, _KEYS, build.target_here()).run(work)
    work.close()
    return outcomes


def test_a_full_disk_ends_a_builder_at_the_first_image(
    compiled: list[Unit], recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def store(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(cache, "store_here", store)
    assert [outcome.code for outcome in built(recipes) if outcome.code] == [errno.ENOSPC]


def test_a_builder_compiles_what_is_alike_once(compiled: list[Unit], recipes: list[Recipe]) -> None:
    outcomes = built(recipes)
    assert sorted(outcome.number for outcome in outcomes) == list(range(12))
    assert [(outcome.number, outcome.failure) for outcome in outcomes if outcome.failure] == [
        (0, "ValueError: this one fails")
    ]
    assert len(compiled) == 1
    for number in range(1, 12):
        flat = cache.load(recipes[number], _KEYS[number])
        assert flat is not None
        assert SimpleNamespace(**map_image(flat).addresses).f
