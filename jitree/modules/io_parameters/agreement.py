"""Checks that a parameter is what the program was compiled for.

To a program a parameter is bytes: compiled modules say how many they take, and no more. So what an
initialiser loads must have just as many. Of the element type there is one trace: compilers write those of the
operands into the name of each kernel (``mul_dispatch_0_elementwise_4x8_f32``). A parameter of 32-bit integers
in a program whose kernels have 32-bit floats and no such integers is not what it was compiled for. One kernel
without a trace (``update_dispatch_0_slow_memcpy``) may take anything: of its program nothing is known; nor
where the host reads elements. Tables that a kernel only looks numbers up in are not in its name: what has
another number of elements than any operand may have is such a table.

Names of kernels say more. ``f_dispatch_0_elementwise_4_f32`` has one operation, whose operands all have the
types that it names. ``f_dispatch_1_matmul_8x16x32_f32`` has one that sums over the last of its loops (here
32), and maybe others that are fused with it and compute with its result: these have their operands in no
name, but none of them goes along the last loop. ``_encoding_0_encode_32x16xf32_to_32x16xf32`` lays a tensor
out anew.

A parameter that only kernels bind whose names say what such an operand is must be one of those, whatever the
rest of the program computes with. ``f_dispatch_0_elementwise_4_f32`` takes neither four i32 nor two f64, and
``f_dispatch_1_matmul_8x16x32_f32`` no i32 of shape 32x16: a cast would be another kernel's, unless the
compiler was told not to compute constants beforehand. What cannot be told, and passes if the program has both
types anywhere: tables that kernels look elements up in, operands of operations fused with another one, and
operations that have no names for their operands. A table of just as many bytes as an operand, and a
parameter that the program casts by its bits, look like a mistake: their bytes pass without a type.

What no kernel binds has the elements that callers get: those of the views that the program makes of it, or of
the bytes that it is copied to. That is looked at where a function declares a tensor of just that size. Of a
parameter that has more of just these elements a program may take the first ones: nothing computes with
them as if they were others.
"""

from __future__ import annotations

import itertools
import math
import re
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.cancel_scopes import require_going_on
from jitree.base.copying import ranges
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError
from jitree.modules.io_parameters.requests import ParameterRequest, StoredParameter, described, in_turn
from jitree.types import BY_NAME, INTEGER_CLASSES, ElementType, element_type
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext
    from jitree.hal.executable import ExecutableLoader
    from jitree.modules.io_parameters.requests import ParameterUses

KERNEL: Final = re.compile(r"((?<!\w)\w+_dispatch_\d+|_encoding_\d+)(?:_(\w+))?", re.ASCII)
"""The names that have to do with one kernel begin alike: that of its executable has no types, and comes
before the kernel's. It begins where a word does: of a long one not each letter is tried."""
_MOST_DIGITS: Final = 18
"""The most digits of a size that can be counted."""
_ELEMENTWISE, _ENCODE = "elementwise", "encode"
_SUMS: Final = {
    "matmul", "matmul_transpose_a", "matmul_transpose_b", "batch_matmul", "batch_matmul_transpose_a",
    "batch_matmul_transpose_b", "matvec", "vecmat", "batch_matvec", "batch_vecmat", "conv", "conv_1d_nwc_wcf",
    "conv_2d_nhwc_hwcf", "conv_2d_nchw_fchw",
}  # fmt: skip
"""Operations whose loops are in a known order, those that they sum over last."""


class RootOperation(NamedTuple):
    """What a kernel's name says of its operands."""

    kind: str
    sizes: tuple[int, ...]
    """Iterations of its loops; 0 for a loop whose size is not known."""
    types: tuple[ElementType, ...]

    def types_of(self, shape: Sequence[int] | None, length: int) -> frozenset[ElementType]:
        """Finds the types that an operand of so many bytes, and a shape, has; none if that cannot be told."""
        if self.kind not in _SUMS:
            count = math.prod(self.sizes)
            return frozenset(row for row in self.types if count * row.bits == 8 * length)
        if shape is None or not self._is_summed(Counter(size for size in shape if size != 1)):
            return frozenset()
        types = frozenset(self.types[:-1] or self.types)  # the last one is that of the sums
        return types if all(math.prod(shape) * row.bits == 8 * length for row in types) else frozenset()

    def _is_summed(self, shape: Counter[int]) -> bool:
        """Whether an operand goes along the last loop, whatever the others are."""
        return shape <= Counter(self.sizes) and not shape <= Counter(self.sizes[:-1])


def words_of(rest: str) -> list[str]:
    return re.split("[_x]", rest)


def operation(words: Sequence[str]) -> RootOperation | None:
    """None for the name of a kernel that says nothing, or less."""
    head = list(itertools.takewhile(lambda word: not is_size(word), words))
    sizes = [0 if word == "D" else int(word) for word in itertools.takewhile(is_size, words[len(head) :])]
    rest = words[len(head) + len(sizes) :]
    kind = "_".join(head)
    if kind == _ENCODE:
        rest = rest[:1]
    elif kind not in _SUMS and kind != _ELEMENTWISE:
        return None
    types = [BY_NAME.get(word) for word in rest]
    if not types or None in types or not sizes or (kind not in _SUMS and 0 in sizes):
        return None
    return RootOperation(kind, tuple(sizes), tuple(row for row in types if row is not None))


def named(name: str) -> RootOperation | None:
    found = KERNEL.fullmatch(name)
    return operation(words_of(found[2] or "")) if found else None


def is_size(word: str) -> bool:
    """Whether it is that of a loop; ``D`` for one that is not known."""
    return (word.isdecimal() and len(word) <= _MOST_DIGITS) or word == "D"


_DECLARATION: Final = "iree.abi.declaration"
_KERNEL_BYTES: Final = re.compile(KERNEL.pattern.encode())
_TENSOR: Final = re.compile(r"tensor<(?:[\d?]+x)*(\w+)")
_FIXED_TENSOR: Final = re.compile(r"tensor<((?:\d+x)*)([a-zA-Z]\w*)>")
_AS_BYTES: Final = "or pass its bytes by array.view(numpy.uint8) if they are what the program means"
_BFLOAT16: Final = BY_NAME["bf16"]
_FLOAT16: Final = BY_NAME["f16"], _BFLOAT16
_BYTES: Final = BY_NAME["i8"], BY_NAME["si8"], BY_NAME["ui8"]
_SEARCHED: Final = 64 << 20
"""Bytes. Larger segments are constants: they are not read before a program does."""
_MOST_SIZES: Final = 8
_TOGETHER: Final = 1024
"""Kernels after which it looks whether the thread is to end."""
_COMPARED_BITS: Final = 32
"""Integers of fewer bits may hold the bits of floats that numpy does not have."""


class ReadingProgram:
    """What the modules of a context say."""

    def __init__(self, context: ModuleContext) -> None:
        self._context = weakref.ref(context)
        self._module_count = -1
        self._types: frozenset[ElementType] = frozenset()
        self._operands: Sequence[tuple[int, ...]] = ()
        self._operations: frozenset[RootOperation] = frozenset()
        self._tensors: frozenset[tuple[ElementType, int]] = frozenset()
        """Types and numbers of bytes of the tensors that its functions declare, where these are fixed."""
        self._uses: ParameterUses | None = None

    @property
    def is_initialising(self) -> bool:
        context = self._context()
        return context is not None and context.is_initialising

    def stores_to_constants(self, loaders: Sequence[ExecutableLoader]) -> bool:
        """Whether kernels of its modules may."""
        from jitree.modules.hal.constant_stores import may_store_to_constants  # few programs have parameters

        context = self._context()
        return context is not None and may_store_to_constants(context.modules, loaders)

    @property
    def types(self) -> frozenset[ElementType]:
        """The element types that its modules name; empty if any of their kernels names none, or if the host
        reads elements."""
        self._look()
        return self._types

    def may_compute_with(self, count: int) -> bool:
        """Tells whether some kernel's operand may have so many elements: the product of some of the sizes
        that it goes through (0 = any)."""
        self._look()
        return any(
            count == product or (0 in sizes and product and count % product == 0)
            for part in ranges(len(self._operands), _TOGETHER)
            for sizes in self._operands[part]
            for product in _products(sizes)
        )

    def kernels_of(self, scope: str, key: str) -> set[str]:
        """Names of all kernels that bind a parameter; empty if that cannot be told."""
        return self._found_uses().kernels.get((scope, key), set())

    def shown_as(self, scope: str, parameter: StoredParameter) -> list[ElementType]:
        """Lists types in which callers get a parameter that no kernel binds; empty if that cannot be told: a
        kernel may read what the parameter is copied to."""
        uses, name = self._found_uses(), (scope, parameter.key)
        shape = () if parameter.tensor is None else parameter.tensor.shape
        if name in uses.copied and self.may_compute_with(math.prod(shape)):
            return []
        return sorted(map(element_type, uses.shown.get(name, ())))

    def _found_uses(self) -> ParameterUses:
        self._look()
        if self._uses is None:
            from jitree.modules.io_parameters.requests import find_uses

            self._uses = find_uses(self._compiled())
        return self._uses

    def may_be_shown_as_others(self, element: ElementType | None, length: int) -> bool:
        """Whether any function has a tensor of so many bytes, and of another type."""
        self._look()
        return any(length == size and not _has((row,), element) for row, size in self._tensors)

    def may_be_taken_for_others(self, element: ElementType | None, shape: Sequence[int], length: int) -> bool:
        """Tells whether kernels are known to have such operands, and none of the type."""
        self._look()
        return any(row.types_of(shape, length) and not _has(row.types, element) for row in self._operations)

    def _compiled(self) -> list[BytecodeModule]:
        context = self._context()
        modules = () if context is None else context.modules
        return [module for module in modules if isinstance(module, BytecodeModule)]

    def _look(self) -> None:
        context = self._context()
        modules = () if context is None else context.modules
        if len(modules) != self._module_count:
            compiled = self._compiled()
            kernels = [names for module in compiled for names in _kernels(module)]
            types = [set().union(*map(_types, names)) for names in kernels]
            self._tensors = frozenset(row for module in compiled for row in _declared_tensors(module))
            declared = frozenset(row for module in compiled for row in _declared_types(module))
            known = bool(types) and all(types) and not any(map(_reads_elements, compiled))
            self._types = declared.union(*types) if known else frozenset()
            self._operands = [*{_sizes(name) for names in kernels for name in names if _types(name)}]
            found = (operation(name) for names in kernels for name in names)
            self._operations = frozenset(row for row in found if row is not None)
            self._uses = None
            self._module_count = len(modules)


def _kernels(module: BytecodeModule) -> Iterable[list[list[str]]]:
    """The names of each kernel, as words."""
    kernels: dict[bytes, list[list[str]]] = {}
    for segment in module.module.rodata:
        require_going_on()
        for stem, rest in set(_KERNEL_BYTES.findall(segment.data)) if len(segment.data) <= _SEARCHED else ():
            kernels.setdefault(stem, []).append(words_of(rest.decode()))
    return kernels.values()


def _types(words: Iterable[str]) -> set[ElementType]:
    return {BY_NAME[word] for word in words if word in BY_NAME}


def _reads_elements(module: BytecodeModule) -> bool:
    return any(imported.full_name == "hal.buffer.load" for imported in module.module.imports)


def _sizes(words: Iterable[str]) -> tuple[int, ...]:
    sizes = [0 if word == "D" else int(word) for word in words if is_size(word)]
    return tuple(sizes[:_MOST_SIZES])


def _products(sizes: tuple[int, ...]) -> set[int]:
    """The product of every choice of the sizes that are known."""
    products = {1}
    for size in sizes:
        products |= {product * size for product in products} if size else set()
    return products


def _declared_tensors(module: BytecodeModule) -> Iterable[tuple[ElementType, int]]:
    for function in module.module.functions:
        for sizes, word in _FIXED_TENSOR.findall(function.attrs.get(_DECLARATION, "")):
            if word in BY_NAME:
                count = math.prod(int(size[:_MOST_DIGITS]) for size in sizes.split("x") if size)
                yield BY_NAME[word], count * BY_NAME[word].bits // 8


def _declared_types(module: BytecodeModule) -> Iterable[ElementType]:
    for function in module.module.functions:
        for word in _TENSOR.findall(function.attrs.get(_DECLARATION, "")):
            if word in BY_NAME:
                yield BY_NAME[word]


def require_agreement(program: ReadingProgram, scope: str, requests: Iterable[ParameterRequest]) -> None:
    """INVALID_ARGUMENT for a parameter of another length or element type than the program takes.

    Of bytes without a type, and of elements that callers get as such, a program may take the first ones.
    """
    requests = [request for request in requests if request.length]
    in_parts = {request.parameter.key for request in requests if request.parameter_offset}
    for parameter, _, _, taken in in_turn(requests):
        has = f"parameter '{scope}::{parameter.key}' has {described(parameter)}"
        is_whole = taken == parameter.length or parameter.key in in_parts
        if not is_whole and program.is_initialising and not _has_more_of_them(program, scope, parameter):
            raise InvalidArgumentError(
                f"{has}, and the program takes {taken} bytes: it was compiled for another shape or element "
                "type" + _hint(program, scope, parameter, taken)
            )
        other = _mistaken_for(program, parameter)
        if other is not None:
            raise InvalidArgumentError(
                f"{has}, and of that size the program has {other.name} elements only; convert it, with numpy "
                f"by {_conversion(other)}, {_AS_BYTES}"
            )
        if taken == parameter.length:
            _require_operand(program, scope, parameter, has)
            _require_view(program, scope, parameter, has)


def _has_more_of_them(program: ReadingProgram, scope: str, parameter: StoredParameter) -> bool:
    """Tells whether a parameter's first bytes are what the program means, if anything says."""
    element = _element(parameter)
    return parameter.tensor is None or (
        element is not None
        and _is_told(element)
        and any(
            _kind(row) == _kind(element) and row.bits == element.bits
            for row in program.shown_as(scope, parameter)
        )
    )


def _require_operand(program: ReadingProgram, scope: str, parameter: StoredParameter, has: str) -> None:
    """INVALID_ARGUMENT for other elements than those of the kernels that take the parameter."""
    element = _element(parameter)
    if parameter.tensor is None or not (element is None or _is_told(element)):
        return
    shape = parameter.tensor.shape
    if not program.may_be_taken_for_others(element, shape, parameter.length):
        return
    names = sorted(program.kernels_of(scope, parameter.key))
    operands = [named(name) for name in names]
    types = _common(operands, shape, parameter.length)
    if not types or any(row is None or _has(row.types, element) for row in operands):
        return
    other, count = types[0], 8 * parameter.length // types[0].bits
    same_count = math.prod(parameter.tensor.shape) == count
    remedy = (
        f"convert it, with numpy by {_conversion(other)}"
        if same_count
        else f"pass {count} elements of {other.name}"
    )
    raise InvalidArgumentError(
        f"{has}, and the kernel '{names[0]}', which takes it, computes with {count} elements of "
        f"{other.name}; {remedy}, {_AS_BYTES}"
    )


def _require_view(program: ReadingProgram, scope: str, parameter: StoredParameter, has: str) -> None:
    """INVALID_ARGUMENT for other elements than those as which callers get the parameter."""
    element = _element(parameter)
    if parameter.tensor is None or not (element is None or _is_told(element)):
        return
    if not program.may_be_shown_as_others(element, parameter.length):
        return
    types = program.shown_as(scope, parameter)
    if types and all(map(_is_told, types)) and not _has(types, element):
        raise InvalidArgumentError(
            f"{has}, and the program gives it to its callers as elements of {types[0].name}; convert it, "
            f"with numpy by {_conversion(types[0])}, {_AS_BYTES}"
        )


def _common(
    operands: Sequence[RootOperation | None], shape: Sequence[int] | None, length: int
) -> list[ElementType]:
    """The types of such operands; none if a kernel has none, or one that may stand for elements of another
    size."""
    found = [frozenset() if row is None else row.types_of(shape, length) for row in operands]
    types = frozenset[ElementType]().union(*found)
    return sorted(types) if all(found) and all(map(_is_compared, types)) else []


def _has(types: Iterable[ElementType], element: ElementType | None) -> bool:
    """Whether it is one of the types; None, a type of files only, is none. Integers may hold the bits of
    bfloat16, which numpy does not have."""
    if element is None:
        return False
    kinds = {kind for row in types if row.bits == element.bits for kind in (_kind(row), _holder(row))}
    return _kind(element) in kinds


def _hint(program: ReadingProgram, scope: str, parameter: StoredParameter, taken: int) -> str:
    """Which elements would have the length, as far as that can be told."""
    shape = None if parameter.tensor is None else parameter.tensor.shape
    rows = _common([named(name) for name in program.kernels_of(scope, parameter.key)], shape, taken)
    count = 0 if shape is None else math.prod(shape)
    bits = 8 * taken // count if count and 8 * taken % count == 0 else 0
    rows = [row for row in rows or sorted(program.types or BY_NAME.values()) if row.bits == bits]
    element = _element(parameter)
    likely = [row for row in rows if element is not None and _kind(row) == _kind(element)]
    if program.types:
        likely += [row for row in rows if row not in likely]
    else:
        likely = (likely or rows)[:1]
    if not likely:
        return ""
    names, ways = " or ".join(row.name for row in likely), " or ".join(map(_conversion, likely))
    return f", such as {names}; convert it, with numpy by {ways}"


def _conversion(row: ElementType) -> str:
    package = "numpy" if row.numpy_name in np.sctypeDict else "ml_dtypes"
    return f"array.astype({package}.{row.numpy_name})"


def _mistaken_for(program: ReadingProgram, parameter: StoredParameter) -> ElementType | None:
    """Names the program's type where the parameter has another one of its size."""
    element = _element(parameter)
    if parameter.tensor is None or element is None or not _is_compared(element):
        return None
    if not program.may_compute_with(math.prod(parameter.tensor.shape)):
        return None
    same_size = sorted(row for row in program.types if row.bits == element.bits and _is_compared(row))
    if not same_size or any(_kind(row) == _kind(element) for row in same_size):
        return None
    return same_size[0]


def _element(parameter: StoredParameter) -> ElementType | None:
    """None for what has no type, or one that programs do not have."""
    element = None if parameter.tensor is None else parameter.tensor.element
    return element if isinstance(element, ElementType) else None


def _holder(row: ElementType) -> int:
    return _INTEGER if row == _BFLOAT16 else _kind(row)


def _is_told(row: ElementType) -> bool:
    """Whether elements of other bits are none of its: it is not bytes, which hold anything, nor parts
    of those or pairs of numbers, which kernels take apart."""
    return row.bits in (8, 16, 32, 64) and row not in _BYTES and _kind(row) not in (0, _COMPLEX)


def _is_compared(row: ElementType) -> bool:
    return row in _FLOAT16 or (row.bits >= _COMPARED_BITS and _kind(row) in (_INTEGER, _FLOAT))


_INTEGER: Final = min(INTEGER_CLASSES)
_COMPLEX: Final = BY_NAME["cf64"].numerical_class
_FLOAT: Final = BY_NAME["f32"].numerical_class


def _kind(row: ElementType) -> int:
    """The numerical class; that of integers whatever their sign."""
    return _INTEGER if row.numerical_class in INTEGER_CLASSES else row.numerical_class
