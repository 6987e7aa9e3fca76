"""Describes a kernel of the user. It is a function, with the types of its bindings and how often it runs.

A function gets one array for each tensor in the bindings of the dispatch, in their order, and changes those
that it is to write. With one parameter more it also gets a :class:`KernelCall`.
"""

from __future__ import annotations

import ctypes
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from jitree.base.arguments import shown
from jitree.errors import InvalidArgumentError, folded
from jitree.observe.export_names import fits, padded, parse, sizes_of
from jitree.types import BY_NAME, ElementType, is_packed

if TYPE_CHECKING:
    import numpy.typing as npt

    Given = str | Sequence[str]
    Blocks = int | Sequence[int] | None
    Types = Mapping[int, Given] | Sequence[Given] | None

GRID: Final = "grid"
WORKGROUP: Final = "workgroup"
HOST: Final = "host"
DEVICE: Final = "device"
_UNKNOWN: Final = -1
_MOST_BINDINGS: Final = 1 << 16
"""Of all dispatches of a run. Of some executables only the types say how many there are."""


class KernelCall(NamedTuple):
    """Tells a kernel its part of a dispatch, and the constants."""

    workgroup: tuple[int, int, int]
    """Its coordinates x, y, z; zeros for a kernel that does the whole grid."""
    workgroups: tuple[int, int, int]
    """How many there are along x, y and z."""
    constants: npt.NDArray[np.uint32]
    """The dispatch's 32-bit constants: sizes that are known late, halves of offsets."""
    stream: int = 0
    """The CUstream that the dispatch is in; 0 on other devices."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Gives it to libraries, such as ``cupy.cuda.Stream.from_external``."""
        return 0, self.stream


class BoundTensor(NamedTuple):
    """A tensor in a binding of a dispatch. One length may be unknown; memory tells it."""

    binding: int
    """Number of the binding, among those of its dispatch."""
    element: ElementType
    shape: tuple[int, ...]
    """-1: as many as there is room for."""
    offset: int | None = None
    """Bytes before it in the binding; None: the binding has its bytes alone, but for padding."""
    dispatch: str = ""
    """The name of the dispatch, which may say what it is."""
    is_locked: bool = False
    """Whether the program may only read it: machine code gets an array that is not writable."""
    is_copied: bool = False
    """Whether machine code gets a copy, since LLVM does not say that it only reads."""

    def __str__(self) -> str:
        text = "x".join(["?" if size < 0 else str(size) for size in self.shape] + [self.element.name])
        return text if self.offset is None else f"{text}@{self.offset}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of its array: bytes where elements share them."""
        return np.dtype(np.uint8) if is_packed(self.element) else self.element.dtype

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of its array: one dimension of bytes where elements share them."""
        if not is_packed(self.element):
            return self.shape
        return (_UNKNOWN if _UNKNOWN in self.shape else self.element.byte_length(self.shape),)

    def shape_in(self, room: int) -> list[int]:
        """The shape of its array in so many bytes of the binding. INVALID_ARGUMENT where they are too few, or
        more than it covers."""
        known = self.dtype.itemsize * math.prod(size for size in self.array_shape if size >= 0)
        left = room - (self.offset or 0)
        count = max(left, 0) // known if known and _UNKNOWN in self.array_shape else 1
        length = known * count
        if length > left or (self.offset is None and left not in (length, padded(length))):
            raise InvalidArgumentError(
                f"binding {self.binding} of {self.dispatch} has {room} bytes, but {self} takes {length}; "
                f"{self._told(room)}"
            )
        return [count if size < 0 else size for size in self.array_shape]

    def _told(self, room: int) -> str:
        """What :func:`jitree.kernels.describe` tells of the binding by name and length."""
        said = parse(self.dispatch)
        fitting = [kind for kind in (*said.factors, *said.outputs, *said.inputs) if fits(kind, room)]
        if fitting:
            return f"jitree.kernels.describe tells {fitting[0]}, as the dispatch's name does"
        part = self._replace(offset=self.offset or 0)
        return (
            f"give types= as jitree.kernels.describe tells them: {part} is one after {part.offset} bytes of "
            "its binding"
        )

    def view(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Views it in the bytes of the binding. INVALID_ARGUMENT where there are too few."""
        shape = self.shape_in(len(data))
        first = self.offset or 0
        end = first + self.dtype.itemsize * math.prod(shape)
        return data[first:end].view(self.dtype).reshape(shape)


class Kernel:
    """Runs in place of a dispatch (:meth:`jitree.Session.replace`)."""

    @folded
    def __init__(
        self,
        function: Any,
        types: Types = None,
        by: str = GRID,
        *,
        grid: Blocks | Callable[[KernelCall], Blocks] = None,
        block: Blocks = None,
        shared_memory: int | None = None,
        arguments: Mapping[str, Any] | None = None,
        entry: str = "",
        memory: str = HOST,
    ) -> None:
        """``function``: a Python or numpy function, a Numba function (``numba.njit``), or a C function
        (ctypes, ``numba.cfunc``) ``i32 (environment, dispatch, workgroup)`` as IREE's executables have them.
        ``types``: of bindings, by number or in order, such as ``"4x71xf32"``, with ``?`` for one length, and
        ``@64`` for the bytes before it in a binding that has more than it, a list where several tensors are
        in one; None: what the dispatch's name says. ``by``: ``"grid"`` calls it once for a dispatch,
        ``"workgroup"`` for each workgroup, on several threads.

        On a GPU ``function`` is PTX or CUDA C++, or a kernel of CuPy (RawKernel), Triton or numba-cuda, and
        is launched with ``grid`` blocks of ``block`` threads and ``shared_memory`` bytes for each; None: as
        the dispatch says, or Triton. A function as ``grid`` gets the :class:`KernelCall` of each launch.
        ``arguments``: all others of a Triton kernel, with ``num_warps`` and ``num_stages``. ``entry``: the
        name of one of several kernels of a text. A Python function is called there with numpy arrays over
        copies, or with ``memory="device"`` with what CuPy, PyTorch and Numba take as arrays.

        INVALID_ARGUMENT for anything else."""
        if not callable(function) and not isinstance(function, str):
            raise InvalidArgumentError(f"kernel: expected a function but got {shown(function)}")
        if _only_begins(getattr(function, "py_func", function)):
            raise InvalidArgumentError(
                f"kernel: {shown(function)} is a generator or a coroutine, of which a call runs nothing; "
                "give a function that does the work before it returns"
            )
        if by not in (GRID, WORKGROUP):
            raise InvalidArgumentError(f"by: expected '{GRID}' or '{WORKGROUP}' but got {shown(by)}")
        if memory not in (HOST, DEVICE):
            raise InvalidArgumentError(f"memory: expected '{HOST}' or '{DEVICE}' but got {shown(memory)}")
        self.function = function
        self.by = by
        self.memory = memory
        self.types = _types(types)
        self.grid = grid if callable(grid) else blocks("grid", grid)
        self.block = blocks("block", block)
        if shared_memory is not None and (type(shared_memory) is not int or not 0 <= shared_memory < 1 << 31):
            raise InvalidArgumentError(f"shared_memory: expected bytes but got {shown(shared_memory)}")
        self.shared_memory = shared_memory
        if not isinstance(arguments, Mapping | None):
            raise InvalidArgumentError(f"arguments: expected a mapping of names but got {shown(arguments)}")
        self.arguments = dict(arguments or {})
        self.entry = entry

    @property
    def name(self) -> str:
        if isinstance(self.function, str):
            return self.entry or "of a text"
        return getattr(self.function, "__name__", None) or shown(self.function)

    @property
    def is_compiled(self) -> bool:
        """Whether it is a Numba function."""
        return callable(getattr(self.function, "py_func", None))

    @property
    def address(self) -> int:
        """Of a C function; 0 of others."""
        if isinstance(self.function, ctypes._CFuncPtr):  # type: ignore[attr-defined]
            return ctypes.cast(self.function, ctypes.c_void_p).value or 0
        address = getattr(self.function, "address", 0)
        return address if isinstance(address, int) else 0

    def tensors(self, names: Sequence[str], counts: Sequence[int | None]) -> list[tuple[BoundTensor, ...]]:
        """Lists tensors of dispatches in order, from names where not given.

        INVALID_ARGUMENT if neither says them."""
        if None in counts and not self.types and not self.address:
            raise InvalidArgumentError(
                f"types: nothing says which bindings {' and '.join(names)} has; give types= in order, as "
                "jitree.kernels.describe shows them"
            )
        *others, last = (count or 0 for count in counts)
        first_of_last = sum(others)
        if None in counts:  # all that are given are the last one's
            last = max(last, max(self.types, default=-1) + 1 - first_of_last)
        if self.types and max(self.types) >= first_of_last + last:
            raise InvalidArgumentError(
                f"types: {' and '.join(names)} has {first_of_last + last} bindings, but the type of number "
                f"{max(self.types)} is given"
            )
        found, first = [], 0
        for name, count in zip(names, (*others, last), strict=True):
            given = [self.types.get(first + number) for number in range(count)]
            found.append(
                tuple(
                    tensor._replace(binding=number, dispatch=name)
                    for number, tensors in enumerate(given)
                    for tensor in (_named(name, number) if tensors is None else tensors)
                )
            )
            first += count
        return found

    def takes_call(self, tensors: int) -> bool:
        """Whether the function has a parameter more than so many. INVALID_ARGUMENT if it has another
        number."""
        function = getattr(self.function, "py_func", self.function)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return False
        for more in (True, False):
            try:
                signature.bind(*range(tensors + more))
            except TypeError:
                continue
            return more and not any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
        raise InvalidArgumentError(
            f"kernel {self.name}{signature} is to take {tensors} arrays, one for each tensor, and perhaps "
            "a KernelCall"
        )


def _only_begins(function: Any) -> bool:
    """Whether what a call gives is still to be run."""
    kinds = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
    return any(is_one(function) for is_one in kinds)


def blocks(what: str, given: Blocks) -> tuple[int, int, int] | None:
    """Sizes along x, y and z; those that are not given are 1."""
    if given is None:
        return None
    sizes = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(type(n) is int and 0 < n < 1 << 31 for n in sizes):
        raise InvalidArgumentError(f"{what}: expected one to three positive numbers but got {shown(given)}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def kernel(*, types: Types = None, by: str = GRID) -> Callable[[Any], Kernel]:
    """Decorates a function as a kernel: ``@jitree.kernels.kernel(types={0: "4x71xf32"})``."""
    return lambda function: Kernel(function, types, by)


def _named(name: str, number: int) -> tuple[BoundTensor, ...]:
    """What a dispatch's name says of a binding: operands and result of a product, else all are alike."""
    said = parse(name)
    kinds = [*said.factors, *said.outputs[:1]] if said.factors else said.outputs[:1] * (number + 1)
    if len(set(said.types)) != 1 or number >= len(kinds):
        raise InvalidArgumentError(
            f"types: nothing says what binding {number} of {name} is; give types= in order, such as "
            "['4x71xf32', '?xf32'], as jitree.kernels.describe shows them"
        )
    return (BoundTensor(number, kinds[number].element, kinds[number].shape),)


def _types(types: Types) -> dict[int, tuple[BoundTensor, ...]]:
    if types is None:
        return {}
    if isinstance(types, (list, tuple)):
        types = dict(enumerate(types))
    if not isinstance(types, Mapping) or not all(
        type(number) is int and 0 <= number < _MOST_BINDINGS for number in types
    ):
        raise InvalidArgumentError(
            f"types: expected the types of bindings, such as ['4x71xf32', '?xf32'], but got {shown(types)}"
        )
    several: dict[int, Any] = {
        number: given if isinstance(given, (list, tuple)) else [given] for number, given in types.items()
    }
    return {
        n: tuple(
            bound_tensor(n, text if len(texts) == 1 or "@" in str(text) else f"{text}@0") for text in texts
        )
        for n, texts in several.items()
    }


def bound_tensor(number: int, text: str) -> BoundTensor:
    """``4x?xf32``, ``4x71xf32@2304`` INVALID_ARGUMENT for anything else."""
    kind, at, offset = text.partition("@") if isinstance(text, str) else (shown(text), "", "")
    *shape, element = kind.split("x")
    sizes = sizes_of(["1" if part == "?" else part for part in shape]) if shape.count("?") <= 1 else None
    before = sizes_of([offset]) if at else ()
    if element not in BY_NAME or sizes is None or before is None:
        raise InvalidArgumentError(
            "types: expected a type such as 4x71xf32, ?x71xf32 (one ? at most) or 4x71xf32@2304 (bytes "
            f"before it) but got {shown(text)}"
        )
    sizes = tuple(_UNKNOWN if part == "?" else size for part, size in zip(shape, sizes, strict=True))
    return BoundTensor(number, BY_NAME[element], sizes, before[0] if before else None)


def product(lhs: npt.NDArray[Any], rhs: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Multiplies matrices by numpy's BLAS, for dispatches that bind both operands, then the result."""
    np.matmul(lhs, rhs, out=out)
