"""Kernels of users in place of dispatches: what they get, how they are checked, undone and refused."""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import jitree
from jitree.base.arguments import said
from jitree.errors import InvalidArgumentError
from jitree.hal.command_layout import KernelDispatch
from jitree.kernels import Kernel, KernelCall, compiled
from jitree.loaders.library import TabledExecutable

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits"
PAIR = ROOT / "perf" / "programs" / "dequantised.vmfb"
IMAGE = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
SOFTMAX = "module.*softmax*"
TEN = ["10xf32@0", "10xf32"]
SIZES = [
    "1024x1024xi8", "1024xf32", "1024x1024xf32", "8x1024xf32", "1024x1024xf32", "8x1024xf32",
]  # fmt: skip
FACTOR = np.float32(0.5)
RUN = ["dequantised.main_dispatch_0*", "*matmul*"]


def softmax(scores: Any, out: Any) -> None:
    weights = np.exp(scores - scores.max())
    out[:] = weights / weights.sum()


def softmax_by_numbers(scores: Any, out: Any) -> None:
    """Numba compiles that in a third of the time of expressions of arrays."""
    largest, total = scores[0], np.float32(0)
    for score in scores:
        largest = max(largest, score)
    for index, score in enumerate(scores):
        out[index] = math.exp(score - largest)
        total += out[index]
    for index in range(len(scores)):
        out[index] /= total


def half(scores: Any, out: Any) -> None:
    for index, score in enumerate(scores):  # Numba compiles that in a third of the time of an array's
        out[index] = score * np.float32(0.5)


def nothing(scores: Any, out: Any) -> None: ...


def raising(scores: Any, out: Any) -> None:
    if len(scores) == 10:
        raise ValueError("ten scores")


HALF, SOFT, RAISING = (
    [pytest.param(Kernel(python, TEN), id="python"), pytest.param(Kernel(numba.njit(own), TEN), id="numba")]
    for python, own in ((half, half), (softmax, softmax_by_numbers), (raising, raising))
)
"""Kernels of Python and of Numba, which is compiled once."""


def product(weights: Any, scales: Any, _numbers: Any, x: Any, _same: Any, out: Any) -> None:
    out[:] = x @ (weights.astype(np.float32) * scales)


def product_in_parts(
    weights: Any, scales: Any, _numbers: Any, x: Any, _same: Any, out: Any, call: Any
) -> None:
    """Rows are shared by workgroups, whatever the compiler has shared."""
    parts = call.workgroups[0] * call.workgroups[1] * call.workgroups[2]
    part = call.workgroup[0] + call.workgroups[0] * (
        call.workgroup[1] + call.workgroups[1] * call.workgroup[2]
    )
    for row in range(part, x.shape[0], parts):
        for column in range(out.shape[1]):
            total = np.float32(0)
            for k in range(x.shape[1]):
                total += x[row, k] * (np.float32(weights[k, column]) * scales[column])
            out[row, column] = total


@pytest.fixture(params=["llvm-cpu local-sync", "llvm-cpu local-task", "vmvx local-sync", "vmvx local-task"])
def digits(request: pytest.FixtureRequest) -> Iterator[jitree.Module]:
    target, device = request.param.split()
    with jitree.Session(device) as session:
        yield session.load(DIGITS / f"digits.{target}.vmfb")


@pytest.mark.parametrize("kernel", HALF)
def test_a_kernel_runs_until_it_is_undone(digits: jitree.Module, kernel: Kernel) -> None:
    expected = np.asarray(digits.classify(IMAGE))
    with jitree.Session("local-sync") as other:
        same = other.load(DIGITS / "digits.llvm-cpu.vmfb")
        handle = digits.session.replace(SOFTMAX, kernel)
        assert handle.names == ("classify_dispatch_6_softmax_10xf32_dispatch_tensor_store",)
        for _ in range(3):
            assert abs(np.asarray(digits.classify(IMAGE)) - expected).max() > 0.1
        assert abs(np.asarray(same.classify(IMAGE)) - expected).max() < 1e-5
    handle.undo()
    handle.undo()
    assert np.array_equal(np.asarray(digits.classify(IMAGE)), expected)
    assert repr(handle).endswith("; undone>")
    assert len(compiled._kept.get(kernel) or ()) == kernel.is_compiled, "once for all sessions"


def test_a_function_that_is_compiled_anew_runs_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba takes a global as it is when it compiles; a copy of a kernel is a kernel."""

    @numba.njit  # type: ignore[untyped-decorator]
    def scaled(scores: Any, out: Any) -> None:
        for index, score in enumerate(scores):
            out[index] = score * FACTOR

    kernel, found = Kernel(scaled, TEN), list[Any]()
    for made in (kernel, kernel, copy.deepcopy(kernel)):
        with jitree.Session("local-sync") as session:
            module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
            with session.replace(SOFTMAX, made):
                found.append(np.asarray(module.classify(IMAGE)).copy())
        if len(found) == 1:
            monkeypatch.setitem(globals(), "FACTOR", 4 * FACTOR)
            scaled.recompile()
    assert np.array_equal(found[1], 4 * found[0]) and np.array_equal(found[2], found[1])


@pytest.mark.parametrize("kernel", SOFT[1:])
def test_what_code_is_given_does_not_change_while_dispatches_run(
    digits: jitree.Module, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread reads code and environment one after the other. Numba's code read where the one of before
    was, at 0, when a verification ended in between."""
    given = list[tuple[int, int]]()

    def replace_function(self: Any, ordinal: int, kernel: Any, *code: int) -> Any:
        given.append((code[0], code[2]))
        return replacing(self, ordinal, kernel, *code)

    replacing = TabledExecutable.replace_function
    monkeypatch.setattr(TabledExecutable, "replace_function", replace_function)
    with digits.session.replace(SOFTMAX, kernel, atol=1e-6):
        digits.classify(IMAGE)
    codes, environments = zip(*given, strict=True)
    assert len(set(codes)) == 2 and len(set(environments)) == 1


@pytest.mark.parametrize("kernel", SOFT)
def test_a_right_kernel_passes_and_runs_alone_then(digits: jitree.Module, kernel: Kernel) -> None:
    expected = np.asarray(digits.classify(IMAGE))
    with digits.session.replace(SOFTMAX, kernel, atol=1e-6):
        first = np.asarray(digits.classify(IMAGE))
        assert np.array_equal(first, expected)  # the original's
        assert np.allclose(np.asarray(digits.classify(IMAGE)), expected, atol=1e-6)


@pytest.mark.parametrize("kernel", HALF)
def test_a_wrong_kernel_is_told(digits: jitree.Module, kernel: Kernel) -> None:
    with digits.session.replace(SOFTMAX, kernel, verify=True):
        with pytest.raises(jitree.errors.FailedPreconditionError) as caught:
            digits.classify(IMAGE)
        text = str(caught.value)
        assert "kernel half and classify_dispatch_6_softmax_10xf32_dispatch_tensor_store differ in" in text
        assert "binding 1 of classify_dispatch_6" in text and "at (0,): " in text and "pass atol=" in text


def test_stores_outside_of_bindings_are_told(digits: jitree.Module) -> None:
    def stray(scores: Any, out: Any) -> None:
        softmax(scores, out)
        np.lib.stride_tricks.as_strided(out, (12,))[10:] = 1

    refused = pytest.raises(jitree.errors.FailedPreconditionError, match="has written 8 bytes outside of")
    with digits.session.replace(SOFTMAX, Kernel(stray, TEN), atol=1e-6), refused:
        digits.classify(IMAGE)


@pytest.mark.parametrize("kernel", RAISING)
@pytest.mark.parametrize("verify", [False, True])
def test_what_a_kernel_raises_is_the_error_of_the_call(
    digits: jitree.Module, kernel: Kernel, verify: bool
) -> None:
    with digits.session.replace(SOFTMAX, kernel, verify=verify):
        for _ in range(2):
            with pytest.raises(ValueError, match="ten scores") as caught:
                digits.classify(IMAGE)
            assert "in kernel raising, which replaces classify_dispatch_6" in caught.value.__notes__[-1]
            assert any(entry.name == "raising" for entry in caught.traceback)
    digits.classify(IMAGE)


class Silent(Exception):
    """Has no text, and takes no notes."""

    __notes__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_without_a_text_is_the_error_of_the_call(digits: jitree.Module) -> None:
    """It was RESOURCE_EXHAUSTED: what described it had failed."""

    def failing(scores: Any, out: Any) -> None:
        raise Silent

    with digits.session.replace(SOFTMAX, Kernel(failing, TEN)), pytest.raises(Silent) as caught:
        digits.classify(IMAGE)
    assert said(caught.value) == "Silent: it has no text: its class raises LookupError"


def test_tensors_lie_anywhere_in_bindings(digits: jitree.Module) -> None:
    def largest(x: Any, out: Any) -> None:
        out[:] = x.reshape(2, 2, 2, 2, 16).max((1, 3))

    expected = np.asarray(digits.classify(IMAGE))
    kernel = Kernel(largest, ["4x4x16xf32@0", "2x2x16xf32@1024"])
    with digits.session.replace("*dispatch_4*", kernel, verify=True):
        for _ in range(2):
            assert np.array_equal(np.asarray(digits.classify(IMAGE)), expected)


def test_two_bindings_may_be_one_buffer(digits: jitree.Module) -> None:
    def nearly(x: Any, out: Any) -> None:
        out[:] = x.reshape(2, 2, 2, 2, 16).max((1, 3)) + np.float32(1e-4)

    expected = np.asarray(digits.classify(IMAGE))
    kernel = Kernel(nearly, ["4x4x16xf32@0", "2x2x16xf32@1024"])
    with digits.session.replace("*dispatch_4*", kernel, atol=1e-3):
        assert np.array_equal(np.asarray(digits.classify(IMAGE)), expected)


def test_kernels_by_workgroup_are_told_which_one(digits: jitree.Module) -> None:
    calls = list[KernelCall]()

    def noting(scores: Any, out: Any, call: KernelCall) -> None:
        calls.append(call)
        softmax(scores, out)

    with digits.session.replace(SOFTMAX, Kernel(noting, TEN, by="workgroup")):
        digits.classify(IMAGE)
    count = np.prod(calls[0].workgroups)
    assert len(calls) == count and {call.workgroup for call in calls} == {(0, 0, 0)}
    assert calls[0].constants.dtype == np.uint32


def test_a_c_function_is_called_as_executables_functions_are(digits: jitree.Module) -> None:
    def constant(environment: int, dispatch: int, workgroup: int) -> int:
        addresses = (ctypes.c_int64 * 2).from_address(KernelDispatch(dispatch).addresses)
        (ctypes.c_float * 10).from_address(addresses[1])[:] = [*map(float, range(10))]
        return 0

    with digits.session.replace(SOFTMAX, ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3)(constant)):
        assert np.asarray(digits.classify(IMAGE)).tolist() == list(range(10))


def test_modules_that_are_loaded_later_are_meant_too() -> None:
    with jitree.Session("local-sync") as session:
        session.load(PAIR)
        with pytest.raises(jitree.errors.NotFoundError, match="main_dispatch_1_matmul_8x1024x1024_f32"):
            session.replace("*dispatch_1_matmull*", half)
        handle = session.replace("*dispatch_1_*", Kernel(lambda *tensors: None, ["?xf32"] * 3))
        assert len(handle.names) == 1
        session.load(DIGITS / "digits.vmvx.vmfb")
        assert len(handle.names) == 2


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize(
    "kernel",
    [Kernel(product, SIZES), Kernel(numba.njit(product_in_parts), SIZES, by="workgroup")],
    ids=["numpy", "numba"],
)
def test_a_run_of_dispatches_is_one_kernel(device: str, kernel: Kernel) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((8, 1024), np.float32)
    weights = generator.integers(-128, 128, (1024, 1024)).astype(np.int8)
    scales = generator.random(1024, np.float32)
    with jitree.Session(device) as session:
        main = session.load(PAIR).main
        expected = np.asarray(main(x, weights, scales))
        with session.replace(RUN, kernel, rtol=1e-3, atol=1e-1) as handle:
            assert handle.names == (
                "main_dispatch_0_elementwise_1024x1024_i8xf32xf32 and main_dispatch_1_matmul_8x1024x1024_f32",
            )
            for factor in (np.float32(1), np.float32(2), np.float32(3)):
                found = np.asarray(main(x * factor, weights, scales))
                assert np.allclose(found, factor * expected, rtol=1e-3, atol=1e-1)
        with (
            session.replace(RUN, Kernel(lambda *tensors: None, SIZES), verify=True),
            pytest.raises(jitree.errors.FailedPreconditionError, match="differ in binding 2 of main_disp"),
        ):
            main(x * 5, weights, scales)
        with (
            session.replace(RUN[::-1], Kernel(lambda *tensors: None, [*SIZES[3:], *SIZES[:3]])),
            pytest.warns(RuntimeWarning, match="in the order main_dispatch_0_.*, main_dispatch_1_") as told,
        ):
            for _ in range(2):
                assert np.array_equal(np.asarray(main(x, weights, scales)), expected)  # not in this order
        assert len(told) == 1
        with session.replace(RUN, kernel), session.tap() as taps:
            main(x, weights, scales)
        assert [[tensor.type for tensor in tap.outputs] for tap in taps] == [[], ["8x1024xf32"]]
        assert taps[0].left_to == taps[1].name and "a kernel does its work with main_disp" in str(taps)
        with session.tap() as taps:
            main(x, weights, scales)
        assert [len(tap.outputs) for tap in taps] == [1, 1] and taps[1].inputs[1].origin == taps[0].label


REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (
        "nothing*",
        half,
        {},
        "NOT_FOUND; replace: no dispatch and no import of the session is called 'nothing*'; near it are: ",
    ),
    (3, half, {}, "INVALID_ARGUMENT; replace: expected the name of a dispatch, such as"),
    ("a" * (1 << 20), half, {}, "NOT_FOUND; replace: no dispatch and no import of the session is called"),
    ([], half, {}, "INVALID_ARGUMENT; replace: expected the name of a dispatch, such as"),
    (SOFTMAX, 3, {}, "INVALID_ARGUMENT; kernel: expected a function but got 3"),
    (SOFTMAX, lambda one: None, {}, "INVALID_ARGUMENT; kernel <lambda>(one) is to take 2 arrays"),
    (SOFTMAX, half, {"atol": -1}, "INVALID_ARGUMENT; atol: expected a number from 0 on but got -1"),
    (["*dispatch_5*", "*"], half, {}, "INVALID_ARGUMENT; replace: each pattern of a run is to mean one"),
    (SOFTMAX, (half, "11"), {}, "INVALID_ARGUMENT; types: expected the types of bindings, such as"),
    (SOFTMAX, (half, ["11"]), {}, "INVALID_ARGUMENT; types: expected a type such as 4x71xf32"),
    *(
        (SOFTMAX, (half, [given, "10xf32"]), {}, "INVALID_ARGUMENT; types: expected a type such as 4x71xf32")
        for given in ("9" * 5000 + "xf32", "10xf32@" + "9" * 5000, "1x" * 100 + "f32", f"{10**17}x10xf32")
    ),
    (
        SOFTMAX,
        (half, {1 << 40: "f32"}),
        {},
        "INVALID_ARGUMENT; types: expected the types of bindings, such as",
    ),
    (
        SOFTMAX,
        (half, ["f32", "f32", "f32"]),
        {},
        "INVALID_ARGUMENT; types: classify_dispatch_6_softmax_10xf32",
    ),
    (
        "*slow_memcpy*",
        half,
        {},
        "INVALID_ARGUMENT; types: nothing says what binding 0 of classify_dispatch_0",
    ),
    (
        SOFTMAX,
        numba.njit(lambda a, b: b.nothing()),
        {},
        "INVALID_ARGUMENT; Numba cannot compile kernel <lambda>",
    ),
]


def _generator(scores: Any, out: Any) -> Iterator[None]:
    softmax(scores, out)
    yield


async def _coroutine(scores: Any, out: Any) -> None:
    softmax(scores, out)


async def _both(scores: Any, out: Any) -> AsyncIterator[None]:
    softmax(scores, out)
    yield


@pytest.mark.parametrize("function", [_generator, numba.njit(_generator), _coroutine, _both])
def test_functions_of_which_a_call_runs_nothing(function: Any) -> None:
    """The results would be what memory held."""
    with pytest.raises(InvalidArgumentError, match="of which a call runs nothing"):
        Kernel(function, TEN)


@pytest.mark.parametrize(("name", "kernel", "options", "text"), REFUSED)
def test_what_is_refused(name: Any, kernel: Any, options: dict[str, Any], text: str) -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        expected = np.asarray(module.classify(IMAGE))
        with pytest.raises(jitree.StatusError) as caught:
            session.replace(name, Kernel(*kernel) if isinstance(kernel, tuple) else kernel, **options)
        assert str(caught.value).startswith(text)
        assert np.array_equal(np.asarray(module.classify(IMAGE)), expected)


def test_types_of_old_executables_are_to_be_given() -> None:
    """Theirs do not say how many bindings there are."""
    with pytest.raises(
        jitree.errors.InvalidArgumentError, match="nothing says which bindings main and other"
    ):
        Kernel(half).tensors(["main", "other"], [2, None])


def test_a_dispatch_has_one_replacement() -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        with session.replace(SOFTMAX, Kernel(half, TEN)):
            with pytest.raises(
                jitree.errors.FailedPreconditionError, match=r"is replaced already, by 'half'"
            ):
                session.replace("*softmax*", Kernel(softmax, TEN))
            assert abs(np.asarray(module.classify(IMAGE)).sum() - 1) > 0.1


@pytest.mark.parametrize("function", [half, numba.njit(nothing)], ids=["python", "numba"])
@pytest.mark.parametrize(
    ("types", "text"),
    [
        (
            ["10xf32@0", "17xf32"],
            "binding 1 of .* has 40 bytes, but 17xf32 takes 68; .* tells 10xf32, as the",
        ),
        (["10xf32@0", "5xf32"], "binding 1 of .* has 40 bytes, but 5xf32 takes 20; .* tells 10xf32, as the"),
        (["10xf32@0", "?x3xf32"], "binding 1 of .* has 40 bytes, but .x3xf32 takes 36; .* tells 10xf32"),
        (["10xf32@0", "40xi4"], "binding 1 of .* has 40 bytes, but 40xi4 takes 20; .* tells 10xf32, as the"),
        (["10xf32@4000", "10xf32"], "binding 0 of .* has 3648 bytes, but 10xf32@4000 takes 40; give types="),
        (["10xf32", "10xf32"], "binding 0 of .* takes 40; give types= as .*: 10xf32@0 is one after 0 bytes"),
        (None, "binding 0 of .* has 3648 bytes, but 10xf32 takes 40; give types="),
    ],
)
def test_memory_of_another_size_is_told(function: Any, types: Any, text: str) -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        refused = pytest.raises(jitree.errors.InvalidArgumentError, match=text)
        with session.replace(SOFTMAX, Kernel(function, types)), refused:
            module.classify(IMAGE)


def test_a_call_of_the_session_cannot_replace() -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        errors = list[jitree.StatusError]()

        def replacing(scores: Any, out: Any) -> None:
            softmax(scores, out)

        handle = session.replace(SOFTMAX, Kernel(replacing, TEN))

        def undoing(dispatch: Any) -> None:
            try:
                handle.undo()
            except jitree.StatusError as error:
                errors.append(error)

        with session.tap("*dispatch_5*", keep=undoing):
            module.classify(IMAGE)
        assert [error.code.name for error in errors] == ["FAILED_PRECONDITION"]


def test_describe_says_types_as_kernels_take_them() -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        with jitree.kernels.describe(session, "*dispatch_[46]*") as bindings:
            module.classify(IMAGE)
        assert str(bindings).splitlines()[0].split() == ["dispatch", "binding", "type", "use", "source"]
        found = [(row.number, row.type, row.use) for row in bindings.rows]
        assert found[1:] == [
            (1, "2x2x16xf32@1024", "written"),
            (0, "10xf32@0", "read"),
            (1, "10xf32", "written"),
        ]


def test_a_reloaded_session_replaces_dispatches_of_its_new_program() -> None:
    with jitree.Session("local-sync") as session:
        module = session.load(DIGITS / "digits.llvm-cpu.vmfb")
        expected = np.asarray(module.classify(IMAGE))
        with session.replace(SOFTMAX, Kernel(half, TEN)):
            pass
        module = session.reload(DIGITS / "digits.vmvx.vmfb")
        with session.replace(SOFTMAX, Kernel(half, TEN)):
            assert abs(np.asarray(module.classify(IMAGE)) - expected).max() > 0.1
        assert abs(np.asarray(module.classify(IMAGE)) - expected).max() < 1e-5
