"""Kernels of users in place of dispatches that store to a constant: other kernels read what is there then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import jitree
from jitree.errors import PermissionDeniedError
from jitree.kernels import Kernel, compiled, replacement
from jitree.kernels.kernel import BoundTensor
from jitree.types import BY_NAME
from jitree.vmfb.archive import _MAPPED_SIZE
from tests.params.archives import write_irpa

PROGRAM = Path(__file__).parent / "changed_constant.vmfb"
LINEAR = Path(__file__).parents[1] / "data" / "programs" / "parameters.vmfb"
CONSTANT = -(np.arange(16 * 64) % 37).astype(np.float32).reshape(16, 64)
SORTED = np.sort(CONSTANT, axis=1)
X = np.arange(64, dtype=np.float32).reshape(1, 64)


def sort(constant: Any) -> None:
    """By loops, as all kernels here: Numba compiles ``numpy.sort`` and expressions of arrays for seconds."""
    for row in range(constant.shape[0]):
        for place in range(constant.shape[1]):
            for later in range(place + 1, constant.shape[1]):
                if constant[row, later] < constant[row, place]:
                    least, constant[row, later] = constant[row, later], constant[row, place]
                    constant[row, place] = least


def mapped(program: Path, folder: Path) -> Path:
    """A file so long that its pages become the process's own as they are written."""
    path = folder / program.name
    path.write_bytes(program.read_bytes() + bytes(_MAPPED_SIZE))
    return path


def copied(session: jitree.Session) -> int:
    return sum(executable.copied for executable in session.device.executables)


@pytest.mark.parametrize("kernel", [None, sort, numba.njit(sort)], ids=["own", "python", "numba"])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_products_read_no_copy_of_what_was_there(tmp_path: Path, uri: str, kernel: Any) -> None:
    with jitree.Session(uri, tier="native") as session:
        module = session.load(mapped(PROGRAM, tmp_path))
        for _ in range(3):
            assert np.array_equal(np.asarray(module.product(X)), X @ CONSTANT.T)
        assert copied(session) == CONSTANT.nbytes, "it is kept in another order"
        if kernel is not None:
            session.replace("*sort*", Kernel(kernel, ["16x64xf32"]))
        module.change()
        for _ in range(3):
            assert np.array_equal(np.asarray(module.product(X)), X @ SORTED.T)


def test_a_program_that_is_loaded_later(tmp_path: Path) -> None:
    """What was replaced before it was there makes no copies either."""
    with jitree.Session("local-sync", tier="native") as session:
        path = mapped(PROGRAM, tmp_path)
        first, kernel = session.load(path), Kernel(sort, ["16x64xf32"])
        session.replace("*sort*", kernel)
        (second,) = session.link(path)
        for module in (first, second):
            for _ in range(3):
                assert np.array_equal(np.asarray(module.product(X)), X @ CONSTANT.T)
            module.change()
            assert np.array_equal(np.asarray(module.product(X)), X @ SORTED.T)
        assert not copied(session)


def test_programs_that_change_no_constant_keep_their_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacement, "may_store_to_constants", lambda modules, loaders: False)
    with jitree.Session("local-sync", tier="native") as session:
        module = session.load(mapped(PROGRAM, tmp_path))
        session.replace("*sort*", Kernel(sort, ["16x64xf32"]))
        for _ in range(3):
            module.product(X)
        assert copied(session) == CONSTANT.nbytes


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_parameters_of_a_file_are_shown_read_only(tmp_path: Path, uri: str, verify: bool) -> None:
    """They lie in pages at which a store would end the process."""
    weights, bias, scale = np.ones((4, 3), np.float32), np.zeros(3, np.float32), np.ones(3, np.float32)
    model = write_irpa(tmp_path / "model.irpa", {"w": weights, "b": bias})
    parameters = {"model": model, "": write_irpa(tmp_path / "scale.irpa", {"scale": scale})}
    shown: list[bool] = []

    def product(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
        shown.append(w.flags.writeable)
        out[:] = (x @ w + b) * factor

    def storing(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
        w[:] = 0

    types = ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"]
    with jitree.Session(uri, parameters=parameters) as session:
        module = session.load(LINEAR)
        with session.replace("*matmul*", Kernel(product, types), verify=verify):
            assert np.asarray(module.linear(X[:, :8].reshape(2, 4))).tolist() == [[6.0] * 3, [22.0] * 3]
        with (
            session.replace("*matmul*", Kernel(storing, types), verify=verify),
            pytest.raises(ValueError, match="read-only"),
        ):
            module.linear(X[:, :8].reshape(2, 4))
    assert shown == [False]


def _by_loops(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
    for row in range(out.shape[0]):
        for column in range(out.shape[1]):
            total = b[column]
            for k in range(w.shape[0]):
                total += x[row, k] * w[k, column]
            out[row, column] = total * factor[column]


_by_loops_compiled: Any = numba.njit(_by_loops)
_needs_scipy = pytest.mark.skipif(find_spec("scipy") is None, reason="Numba calls BLAS through scipy")


def _by_blas(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
    np.dot(x, w, out)
    for column in range(out.shape[1]):
        for row in range(out.shape[0]):
            out[row, column] = (out[row, column] + b[column]) * factor[column]


def _seen(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
    w[0, 0] = 7


def _unseen(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
    """Numba compiles this for arrays that are not writable, too."""
    w.flat[0] = 7
    _by_loops_compiled(x, w, b, factor, out)


def _declared() -> Any:
    """Numba compiles it as it is made."""
    matrix, row = (numba.types.Array(numba.float32, rank, "C") for rank in (2, 1))
    return numba.njit(numba.void(matrix, matrix, row, row, matrix))(_by_loops)


_PRODUCT = [[6.0] * 3, [22.0] * 3]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: numba.njit(_by_loops), _PRODUCT),
        (_declared, _PRODUCT),
        pytest.param(lambda: numba.njit(_by_blas), _PRODUCT, marks=_needs_scipy),
        (lambda: numba.njit(_unseen), [[6.0, 6.0, 6.0], [46.0, 22.0, 22.0]]),
    ],
    ids=["loops", "declared", "blas", "unseen"],
)
def test_compiled_kernels_store_to_no_parameter_of_a_file(
    tmp_path: Path, make: Callable[[], Any], expected: Any
) -> None:
    """One stores to a copy, unless LLVM says that it stores to none. The process goes on."""
    model = write_irpa(
        tmp_path / "model.irpa", {"w": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)}
    )
    scale = write_irpa(tmp_path / "scale.irpa", {"scale": np.ones(3, np.float32)})
    made = Kernel(make(), ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"])
    for uri in ("local-sync", "local-task"):
        with jitree.Session(uri, parameters={"model": model, "": scale}) as session:
            module = session.load(LINEAR)
            session.replace("*matmul*", made)
            for _ in range(2):
                assert np.asarray(module.linear(X[:, :8].reshape(2, 4))).tolist() == expected


def test_a_kernel_that_is_refused_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that Numba sees storing is, and the process goes on; it was compiled anew at each call."""
    attempts, compile_it = list[object](), compiled._compiled

    def noted(*arguments: Any) -> Any:
        attempts.append(arguments)
        return compile_it(*arguments)

    monkeypatch.setattr(compiled, "_compiled", noted)
    with _replaced(tmp_path, numba.njit(_seen), "local-sync", "local-task") as modules:
        before = len(attempts)
        for module in 3 * modules:
            with pytest.raises(PermissionDeniedError, match=r"stores to what .*4x3xf32 in binding 1"):
                module.linear(X[:, :8].reshape(2, 4))
        assert len(attempts) == before + 1


@contextmanager
def _replaced(folder: Path, kernel: Any, *uris: str) -> Iterator[list[Any]]:
    """The program with parameters of files, and a kernel in place of its product."""
    model = write_irpa(folder / "m.irpa", {"w": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)})
    scale = write_irpa(folder / "scale.irpa", {"scale": np.ones(3, np.float32)})
    made = Kernel(kernel, ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"])
    with ExitStack() as stack:
        modules = list[Any]()
        for uri in uris:
            session = stack.enter_context(jitree.Session(uri, parameters={"model": model, "": scale}))
            modules.append(session.load(LINEAR))
            session.replace("*matmul*", made)
        yield modules


def test_what_a_compiled_kernel_raises_after_a_store(tmp_path: Path) -> None:
    """Python calls it once more for its traceback."""

    @numba.njit  # type: ignore[untyped-decorator]
    def failing(x: Any, w: Any, b: Any, factor: Any, out: Any) -> None:
        w.flat[0] = 7
        if x[0, 1] == 1:
            raise ValueError("after a store")

    with _replaced(tmp_path, failing, "local-sync") as (module,):
        for _ in range(2):
            with pytest.raises(ValueError, match="after a store"):
                module.linear(X[:, :8].reshape(2, 4))


def _unseen_by_arguments(*tensors: Any) -> None:
    tensors[1].flat[0] = 7
    _by_loops_compiled(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4])


@pytest.mark.parametrize(
    "kernel",
    [numba.njit(inline="always")(_unseen), numba.njit(_unseen_by_arguments)],
    ids=["inlined", "variadic"],
)
def test_kernels_of_which_llvm_says_nothing_get_copies(tmp_path: Path, kernel: Any) -> None:
    with _replaced(tmp_path, kernel, "local-sync") as (module,):
        for _ in range(2):
            found = np.asarray(module.linear(X[:, :8].reshape(2, 4))).tolist()
            assert found == [[6.0, 6.0, 6.0], [46.0, 22.0, 22.0]]


@pytest.mark.parametrize("shape", [(4,), (), (-1, 2)])
def test_copies_are_of_what_may_not_be_stored_to(shape: tuple[int, ...]) -> None:
    """What may, as another call's memory for the same binding, is the kernel's to change."""
    memory = np.arange(np.prod(np.abs(shape), dtype=int) * 4, dtype=np.float32)
    kind = BoundTensor(0, BY_NAME["f32"], shape, 0, is_locked=True, is_copied=True)
    made = compiled._copy_of(kind)
    copy = numba.njit(lambda address, size, access: made(address, size, access))  # only that may call it
    for access, is_own in ((0, False), (compiled.STORED, True)):
        found = copy(memory.ctypes.data, memory.nbytes, access)
        assert np.shares_memory(found, memory) is is_own
        assert found.tobytes() == memory.tobytes()[: found.nbytes] and found.ndim == len(shape)
    assert copy(memory.ctypes.data, -1, 0).size == (0 if shape else 1), "the view says that it does not fit"


def test_a_span_makes_one_copy_for_its_workgroups() -> None:
    kernel = Kernel(numba.njit(_unseen), ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"], by="workgroup")
    tensors = [kind._replace(is_locked=True, is_copied=True) for kind in kernel.tensors(["a"], [5])[0]]
    before, loop = compiled._source(kernel, [tensors], "").split("while number < last:")
    assert before.count("= copy") == 5 and "copy" not in loop


def test_tensors_of_one_type_share_what_is_compiled_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a kernel, and of any two; it was compiled for each of them."""
    given = list[dict[str, Any]]()
    monkeypatch.setattr(compiled, "_entry", lambda source, names, kernel, kinds: given.append(names))
    for _ in range(2):
        kernel = Kernel(numba.njit(_unseen), ["2x4xf32", "4x3xf32", "3xf32", "3xf32", "2x3xf32"])
        compiled._entries(kernel, kernel.function, kernel.tensors(["a"], [5]))
    first, second = given
    assert first["view2"] is first["view3"] is not first["view1"]
    assert all(first[f"view{number}"] is second[f"view{number}"] for number in range(5))
