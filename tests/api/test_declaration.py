"""Parsing of ``iree.abi.declaration`` and what stands in for it."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree import Session
from jitree.api.calls.declaration import (
    DECLARATION,
    Parameter,
    parse_declaration,
    parse_tensor_type,
    signature_of,
    without_twins,
)
from jitree.errors import InvalidArgumentError
from jitree.types import BY_NAME, ELEMENT_TYPES
from jitree.vmfb.cconv import parse
from tests.api.direct import CALLS
from tests.assembler import Assembler


def names_and_types(text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    parsed = parse_declaration(text)
    assert parsed is not None
    arguments, results = ([(parameter.name, parameter.type) for parameter in side] for side in parsed)
    return arguments, results


@pytest.mark.parametrize(
    ("text", "arguments", "results"),
    [
        ("sync func @f() -> ()", [], []),
        ("sync func @f()", [], []),
        (
            "sync func @f(%input0: tensor<4x?xf32>, %n: i32) -> (%output0: tensor<f32>)",
            [("input0", "tensor<4x?xf32>"), ("n", "i32")],
            [("output0", "tensor<f32>")],
        ),
        (
            'async func @f(%a: tensor<4xf32> {iree.abi.output = 0 : index, note = "), (\\"%x"}, %b: i64)'
            " -> tensor<4xf32>",
            [("a", "tensor<4xf32>"), ("b", "i64")],
            [("output0", "tensor<4xf32>")],
        ),
        (
            'func @"two words"(%a: !vm.list<tensor<2xf32>>, !hal.fence) -> (f32, %second: i1)',
            [("a", "!vm.list<tensor<2xf32>>"), ("input1", "!hal.fence")],
            [("output0", "f32"), ("second", "i1")],
        ),
        (
            "sync func @f(%a: tensor<4xf32, #dialect.encoding<f = (a, b) -> (c)>>) -> ()",
            [("a", "tensor<4xf32, #dialect.encoding<f = (a, b) -> (c)>>")],
            [],
        ),
    ],
)  # fmt: skip
def test_forms(text: str, arguments: list[tuple[str, str]], results: list[tuple[str, str]]) -> None:
    assert names_and_types(text) == (arguments, results)


@pytest.mark.parametrize(
    "text",
    ["", "f", "sync func f()", "sync func @f", "sync func @f(", "func @f(%a: (i32) -> x", "func @f() i32"],
)
def test_other_text_is_no_declaration(text: str) -> None:
    assert parse_declaration(text) is None


ANY_TEXT = st.text(alphabet='sync func@f(%:<>[]{}"\\,x?4-> i3', max_size=60)


def stated(arguments: list[tuple[str, str]], results: list[tuple[str, str]]) -> str:
    """The declaration of names and types."""
    sides = (", ".join(f"%{name}: {type}" for name, type in side) for side in (arguments, results))
    return "sync func @f({}) -> ({})".format(*sides)


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_is_parsed_or_refused(arguments: str, results: str) -> None:
    """What is found stands there, or names what has no name."""
    for text in (arguments, f"sync func @f({arguments}) -> ({results})"):
        for kind, side in zip(("input", "output"), parse_declaration(text) or ((), ()), strict=True):
            for index, item in enumerate(side):
                assert item.type in text
                assert f"%{item.name}" in text or item.name == f"{kind}{index}"


NAMES = st.from_regex(r"[a-z]\w{0,5}", fullmatch=True)
TYPES = st.sampled_from(
    ["i32", "tensor<4x?xf32>", "!vm.list<tensor<2xf32>>", "tensor<4xf32, #e<f = (a) -> (b)>>"]
)
PARAMETERS = st.lists(st.tuples(NAMES, TYPES), max_size=4)


@given(PARAMETERS, PARAMETERS)
def test_what_is_declared_is_parsed(arguments: list[tuple[str, str]], results: list[tuple[str, str]]) -> None:
    assert names_and_types(stated(arguments, results)) == (arguments, results)


SHAPES = st.lists(st.one_of(st.none(), st.integers(0, 1 << 40)), max_size=6)


@given(SHAPES, st.sampled_from([row for row in ELEMENT_TYPES if row.numerical_class]))
def test_tensor_types(shape: list[int | None], row: object) -> None:
    name = next(name for name, known in BY_NAME.items() if known is row)
    dimensions = "".join("?x" if size is None else f"{size}x" for size in shape)
    parsed = parse_tensor_type(f"tensor<{dimensions}{name}>")
    assert parsed is not None
    assert (parsed.shape, parsed.element_type) == (tuple(shape), row)
    assert parse_tensor_type(str(parsed)) == parsed


def test_unknown_element_types_are_not_checked() -> None:
    parsed = parse_tensor_type("tensor<4x!foo.bar>")
    assert parsed is not None and parsed.element_type is None and parsed.shape == (4,)
    assert parse_tensor_type("vector<4xf32>") is None


def test_a_declaration_must_fit_the_calling_convention() -> None:
    attrs = {"iree.abi.declaration": "sync func @f(%a: tensor<4xf32>, %n: i32) -> (%r: f32)"}
    fitting = signature_of("f", parse("0ri_f"), attrs)
    assert fitting.declared and [str(item) for item in fitting.arguments] == ["a: tensor<4xf32>", "n: i32"]
    for cconv in ("0r_f", "0ir_f", "0rr_f", "0ri_r", "0ri_v"):
        signature = signature_of("f", parse(cconv), attrs)
        assert not signature.declared
        assert signature.declaration == f"func @f{parse(cconv)}"
    assert signature_of("f", parse("0iIr_F"), {}).arguments == (
        Parameter("input0", "i32"), Parameter("input1", "i64"), Parameter("input2", "!vm.ref<?>"),
    )  # fmt: skip


def test_fences_belong_to_the_runtime() -> None:
    model = {"iree.abi.model": "coarse-fences"}
    assert [item.name for item in signature_of("f", parse("0rirr_r"), model).arguments] == [
        "input0",
        "input1",
    ]
    assert signature_of("f", parse("0rirr_r"), model).fences
    assert signature_of("f$async", parse("0rr_r"), {}).fences
    assert not signature_of("f", parse("0rr_r"), {}).fences
    assert not signature_of("f", parse("0ri_r"), model).fences


@pytest.mark.parametrize("size", ["9" * 5000, "9" * 19, "1x" * 300_000 + "1"])
def test_sizes_that_no_tensor_has(size: str) -> None:
    """No text of the file takes long, and none is too long for Python."""
    parsed = parse_declaration(f"func @f(%a: tensor<{size}xf32> {{iree.abi.output = {size}}}) -> ()")
    assert parsed is not None and parsed[0][0].storage_of is None


WIDTHS = ("0", "65", "128", "9" * 12, "9" * 5000)


@pytest.mark.parametrize("kind", [sign + width for width in WIDTHS for sign in ("i", "ui", "si")])
@pytest.mark.parametrize("letter", ["i", "I"])
def test_widths_that_no_register_has(letter: str, kind: str) -> None:
    """A module may declare any: numbers of so many bits took all memory, beside a sandbox's limits."""
    declaration = f"sync func @f(%x: {kind}) -> (%y: {kind})"
    text = {"i": "return [%i0]", "I": "return [%i0:1]"}[letter]
    program = Assembler("m").function("f", f"0{letter}_{letter}", text, attrs={DECLARATION: declaration})
    with Session("local-sync", sandbox=True) as session:
        function = session.load(program.build()).f
        assert function.declaration == declaration
        for _ in range(CALLS):
            assert function(5) == 5
        with pytest.raises(InvalidArgumentError, match="x: expected"):
            function(1 << 64)


class Names(list[str]):
    """Counts how often they are gone through."""

    rounds = 0

    def __iter__(self) -> Iterator[str]:
        self.rounds += 1
        return super().__iter__()


def test_twins_of_many_names_are_found_in_one_round() -> None:
    names = Names([*map(str, range(100)), "7$async", "other$async"])
    assert without_twins(names) == [*map(str, range(100)), "other$async"]
    assert names.rounds <= 2


@pytest.mark.parametrize("text", ["%a: i32, ", ", ", "<>", "(", '"\\', "x"])
def test_long_declarations(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB of brackets took 500 MB."""
    monkeypatch.setattr("jitree.api.calls.declaration._MOST_TOKENS", 1000)
    whole = f"func @f({text * 20_000})"
    tracemalloc.start()
    try:
        parsed = parse_declaration(whole)
        assert parsed is None or len(parsed[0]) == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_more_parameters_than_registers() -> None:
    parsed = parse_declaration(f"func @f({'%a: i32, ' * 50_000})")
    assert parsed is not None and len(parsed[0]) == 1 << 15


def test_what_is_run_does_not_grow_with_the_text() -> None:
    """A first call reads the declaration of its function: characters take no Python call each."""

    def calls(attributes: str) -> int:
        count = 0

        def note(frame: object, event: str, value: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            read = parse_declaration(
                f'sync func @f(%x: tensor<4xf32> {{a = "{attributes}"}}) -> (tensor<4xf32>)'
            )
        finally:
            sys.setprofile(None)
        assert read is not None
        return count

    calls("")
    assert calls("{" + ", " * 500 + "}") == calls("")
    assert calls("") < 50
