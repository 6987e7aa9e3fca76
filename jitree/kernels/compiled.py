"""Compiles a Numba function for executables: threads call it without Python."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, imputils, types
from numba.extending import intrinsic

from jitree.base.finalizers import SharedWeakKeys
from jitree.base.records import NamedTuple
from jitree.codegen.record import layout_of
from jitree.errors import InvalidArgumentError, PermissionDeniedError, again, pass_interruption
from jitree.hal.command_layout import Job, KernelDispatch, Workgroup
from jitree.kernels import run
from jitree.kernels.kernel import WORKGROUP, Kernel, KernelCall
from jitree.observe.export_names import PADDING
from jitree.regs.layout import ACCESS_PRIVATE, ACCESS_WRITE

if TYPE_CHECKING:
    from jitree.kernels.kernel import BoundTensor

_DISPATCH: Final = layout_of(KernelDispatch)
_JOB: Final = layout_of(Job)
_GROUP: Final = layout_of(Workgroup)
_DATA: Final = 4
"""The place of the elements' address among the words of an array that Numba passes."""
_SIGNATURE: Final = types.int32(types.int64, types.int64, types.int64)
STORED: Final = ACCESS_WRITE | ACCESS_PRIVATE
"""What a buffer allows that kernels may store to."""
_inner: Final = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Compiles what only machine code calls, for a tenth less time."""
FALLBACK: Final = 0
ENTRIES: Final = 8
"""Where an environment has the address of a function like the compiled one, which does what that cannot do,
also since the kernel raises; and where that of the addresses of the run's KernelEntry records."""

_SOURCE: Final = """
def entry(environment, dispatch, workgroup):
    first, last = load64(workgroup + {first}), load64(workgroup + {last})
{run}{places}
{rights}{counts}{copies}    number = first
    while number < last:
        if load64(load64(dispatch + {failure})) != 0:
            return np.int32(-1)
        ok = True
        try:
            kernel({arguments})
        except Exception:
            ok = False
        if not ok:
            store64(workgroup + {first}, number)
            store64(workgroup + {last}, number + 1)
            result = call_at(load64(environment + {fallback}), environment, dispatch, workgroup)
            if result != 0:
                return np.int32(result)
        number += 1
    return np.int32(0)
"""
_COUNTS: Final = """    x, y = np.int64(load32(dispatch + {count_x})), np.int64(load32(dispatch + {count_y}))
    workgroups = x, y, np.int64(load16(dispatch + {count_z}))
    constants = array_at(load64(dispatch + {constants}), np.int64(load16(dispatch + {count})), uint32)
"""
"""For kernels that take a KernelCall: that is a tenth and more of what Numba compiles."""
_LOOK: Final = """    row = first_of_run(dispatch, load64(environment + {entries}), {parts}, {part})
    if row == 0:
        return np.int32(call_at(load64(environment + {fallback}), environment, dispatch, workgroup))
"""
_RIGHT: Final = """    if load64(accesses{part} + {place}) & {stored} == 0:
        return np.int32(call_at(load64(environment + {fallback}), environment, dispatch, workgroup))
"""
"""What the program may only read comes to the kernel as an array that is not writable, or not at all."""
_HEAD: Final = "def entry(environment, dispatch, workgroup):\n"
_GRID: Final = "    first, last = np.int64(0), np.int64(first == 0)\n    number = first\n"


def _memory(bits: int, is_store: bool = False) -> Any:
    """Loads or stores so many bits at an address."""
    number: Any = types.int64 if is_store else getattr(types, f"uint{bits}" if bits < 64 else "int64")
    signature = types.void(types.int64, types.int64) if is_store else number(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
        if is_store:
            builder.store(arguments[1], place)
            return context.get_dummy_value()
        return builder.load(place)

    if is_store:
        return intrinsic(lambda typing_context, address, value: (signature, generate))
    return intrinsic(lambda typing_context, address: (signature, generate))


def _call_type(typing_context: Any, address: Any, environment: Any, dispatch: Any, workgroup: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)] * 3)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(*[types.int64] * 4), generate


_call_at: Final = intrinsic(_call_type)


def _pointer_type(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _shown_type(typing_context: Any, array: Any) -> Any:
    """The same array, which Numba compiles no stores to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return imputils.impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return array.copy(readonly=True)(array), generate


_pointer: Final = intrinsic(_pointer_type)
_shown: Final = intrinsic(_shown_type)
_array_at: Final = _inner(lambda address, count, dtype: _shown(numba.carray(_pointer(address), count, dtype)))


_FITTING: Final = """    length -= offset
    count = {count}
    size = known * count
    if size > length or length < 0{other}:
        {misfit}
"""
_VIEW: Final = "def view(address, length{own}):\n{fitting}    return {found}\n"
_COPY: Final = """def view(address, length, access):
{fitting}    found = {array}
    return found if access & stored != 0 else found.copy()
"""
_ARRAY: Final = "carray(pointer(address + offset), ({sizes}), dtype)"


@lru_cache(256)  # other bindings and kernels have tensors of the type: to compile it takes long
def _view_of(kind: BoundTensor) -> Any:
    """Makes the function (address, bytes) that gives the array of a binding.

    ValueError where the memory has another size. A copy, made before, is a third argument."""
    if kind.is_copied:
        return _viewing(kind, _VIEW, "raise ValueError", own=", own", found="own")
    found = f"shown({_ARRAY})" if kind.is_locked else _ARRAY
    return _viewing(kind, _VIEW, "raise ValueError", own="", found=found)


@lru_cache(256)
def _copy_of(kind: BoundTensor) -> Any:
    """Makes the function (address, bytes, access) that copies what may only be read.

    Else it gives the array itself, and anything where the memory has another size: the view says so."""
    nothing = f"return empty(({'0, ' * len(kind.array_shape)}), dtype)"
    return _viewing(kind, _COPY, nothing, array=_ARRAY)


def _viewing(kind: BoundTensor, source: str, misfit: str, **texts: str) -> Any:
    dtype = kind.dtype
    if dtype.kind == "V" or dtype.name not in np.sctypeDict:  # of ml_dtypes
        dtype = np.dtype(f"u{dtype.itemsize}")
    shape = kind.array_shape
    known = dtype.itemsize * math.prod(size for size in shape if size >= 0)
    sizes = "".join(f"{'count' if size < 0 else size}, " for size in shape)
    other = f" or length not in (size, -(-size // {PADDING}) * {PADDING})" if kind.offset is None else ""
    count = "length // known" if -1 in shape and known else "1"
    fitting = _FITTING.format(count=count, other=other, misfit=misfit)
    names = {
        "carray": numba.carray, "pointer": _pointer, "shown": _shown, "dtype": numba.from_dtype(dtype),
        "known": known, "offset": kind.offset or 0, "stored": STORED, "empty": np.empty,
    }  # fmt: skip
    text = source.format(fitting=fitting, **{name: part.format(sizes=sizes) for name, part in texts.items()})
    exec(compile(text, "<kernel of the user>", "exec"), names)
    return _inner(names["view"])


def _in_numba(function: Any, **others: Any) -> Any:
    """A function of ``run.py`` that is compiled, with what it calls."""
    names = {**function.__globals__, "load32": _memory(32), "load64": _memory(64), **others}
    return _inner(FunctionType(function.__code__, names, function.__name__))


_neighbour: Final = _in_numba(run.neighbour)
_job_of: Final = _in_numba(run.job_of)
_first_of_run: Final = _in_numba(run.first_of_run, neighbour=_neighbour, job_of=_job_of)
_operand_of: Final = _in_numba(run.operand_of)


def compiled_kernel(kernel: Kernel, tensors: Sequence[Sequence[BoundTensor]]) -> list[Any]:
    """Compiles a kernel for the tensors of a run, once: a ``numba.cfunc`` for each dispatch. Its ``address``
    is a function of spans (ENTRY_SPAN), whose environment has FALLBACK and ENTRIES.

    INVALID_ARGUMENT if Numba cannot compile the kernel for arrays of these types. A store to what may only be
    read is told again without compiling it again."""
    unnamed = (*(tuple(kind._replace(dispatch="") for kind in part) for part in tensors),)
    key, all_kept = (kernel.function, kernel.by, unnamed), _kept.setdefault(kernel, {})
    kept = all_kept.get(key)
    if kept is None or not kept.is_of(kernel.function):
        try:
            code = _compiled(kernel, tensors)
        except PermissionDeniedError as error:  # kept without the frames that it came through
            if not isinstance(error.__cause__, (MemoryError, RecursionError)):  # as it may not be again
                all_kept[key] = _Kept([], PermissionDeniedError(error.message), _overloads(kernel.function))
            raise
        kept = all_kept[key] = _Kept(code, None, _overloads(kernel.function))
    if kept.refusal is not None:
        raise again(kept.refusal)
    return kept.code


class _Kept(NamedTuple):
    """Machine code, and what Numba had of the kernel itself when that was compiled."""

    code: list[Any]
    refusal: PermissionDeniedError | None
    """Why there is none."""
    overloads: dict[int, Any]
    """By ``id``: they stay what they are."""

    def is_of(self, function: Any) -> bool:
        """Whether the function has not been compiled anew since (``function.recompile()``)."""
        return self.overloads.keys() <= _overloads(function).keys()


_kept: Final = SharedWeakKeys[Kernel, dict[object, _Kept]]()
"""By the types of tensors: sessions share it. A copy of a kernel, or a pickle, has none of it."""


def _overloads(function: Any) -> dict[int, Any]:
    return {id(found): found for found in tuple(getattr(function, "overloads", {}).values())}


def _typed_anew(function: Any) -> Any:
    """The function without the types that it was declared with: arrays are writable there."""
    if function._can_compile:
        return function
    return numba.jit(**function.targetoptions, locals=function.locals)(function.py_func)


def _only_reads(function: Any, number: int) -> bool:
    """Whether LLVM knows that nothing is stored to an argument of a kernel.

    Numba's types leave some ways: ``flat``, ``sort``, results of ``numpy.dot``. Of one that is written into
    its callers LLVM says nothing."""
    overloads = function.overloads.values()
    if not overloads or function.targetoptions.get("inline", "never") != "never":
        return False
    for made in overloads:
        of = made.fndesc
        if number >= len(of.args) or not isinstance(of.argtypes[number], types.Array):  # ``*arguments``
            return False
        head = f'^define [^@]*@"?{re.escape(of.llvm_func_name)}"?\\((.*)$'
        parameters = re.search(head, str(made.library._final_module), re.MULTILINE)
        at = re.escape(f"%arg.{of.args[number]}.{_DATA}")
        pointer = None if parameters is None else re.search(f"([^,]*) {at}\\b", parameters[1])
        if not pointer or not {"readonly", "readnone"} & {*pointer[1].split()}:
            return False
    return True


def _compiled(kernel: Kernel, tensors: Sequence[Sequence[BoundTensor]]) -> list[Any]:
    """Compiles the kernel; of what the program may only read it gets a copy.

    Where it is known to store to none, it gets the memory itself."""
    kinds = [kind for part in tensors for kind in part]
    if not any(kind.is_locked for kind in kinds):
        return _entries(kernel, kernel.function, tensors)
    function = _typed_anew(kernel.function)
    found = _entries(kernel, function, tensors)
    numbers = count()
    copied = [
        tuple(
            kind._replace(is_copied=kind.is_locked and not _only_reads(function, number))
            for kind, number in zip(part, numbers, strict=False)
        )
        for part in tensors
    ]
    return found if copied == [*map(tuple, tensors)] else _entries(kernel, function, copied)


def _entries(kernel: Kernel, function: Any, tensors: Sequence[Sequence[BoundTensor]]) -> list[Any]:
    looks = [
        _LOOK.format(entries=ENTRIES, fallback=FALLBACK, parts=len(tensors), part=part)
        for part in range(len(tensors))
    ]
    sources = [f"{_HEAD}{look}    return np.int32(0)\n" for look in looks]  # the last one does the work
    sources[-1] = _source(kernel, tensors, looks[-1] if len(tensors) > 1 else "")
    names = {
        "np": np, "kernel": function, "KernelCall": KernelCall, "array_at": _array_at,
        "load16": _memory(16), "load32": _memory(32), "load64": _memory(64), "store64": _memory(64, True),
        "uint32": types.uint32, "first_of_run": _first_of_run, "operand_of": _operand_of, "job_of": _job_of,
        "call_at": _call_at,
    }  # fmt: skip
    kinds = [kind for part in tensors for kind in part]
    alike = [kind._replace(binding=0, dispatch="") for kind in kinds]
    names |= {f"view{number}": _view_of(kind) for number, kind in enumerate(alike)}
    names |= {f"copy{number}": _copy_of(kind) for number, kind in enumerate(alike) if kind.is_copied}
    return [_entry(source, names, kernel, kinds) for source in sources]


def _source(kernel: Kernel, tensors: Sequence[Sequence[BoundTensor]], look: str) -> str:
    places = ["    job = job_of(dispatch)"]
    arguments: list[str] = []
    rights, copies = dict[str, None](), ""
    for part, kinds in enumerate(tensors):
        if look:
            places.append(f"    place{part} = 8 * np.int64(operand_of(row, {part}))")
        for what in ("addresses", "lengths", "accesses"):
            own = f"load64(dispatch + {_DISPATCH[what]})"
            there = f"load64(job + {_JOB[what]}) + place{part}"
            places.append(f"    {what}{part} = {there if look else own}")
        for tensor in kinds:
            number, place = len(arguments), 8 * tensor.binding
            at = [f"load64({what}{part} + {place})" for what in ("addresses", "lengths")]
            if tensor.is_copied:
                copies += (
                    f"    own{number} = copy{number}({', '.join(at)}, load64(accesses{part} + {place}))\n"
                )
                at.append(f"own{number}")
            arguments.append(f"view{number}({', '.join(at)})")
            if not tensor.is_locked:
                right = _RIGHT.format(part=part, place=place, stored=STORED, fallback=FALLBACK)
                rights[right] = None
    takes_call = kernel.takes_call(len(arguments))
    if takes_call:
        arguments.append(
            "KernelCall((number % x, number // x % y, number // (x * y)), workgroups, constants)"
        )
    source = _SOURCE.replace("{counts}", _COUNTS * takes_call).format(
        run=look,
        places="\n".join(places),
        rights="".join(rights),
        copies=copies,
        arguments=", ".join(arguments),
        count=_DISPATCH["constant_count"],
        fallback=FALLBACK,
        **{name: _DISPATCH[name] for name in ("count_x", "count_y", "count_z", "constants", "failure")},
        **{name: _GROUP[name] for name in ("first", "last")},
    )
    return source if kernel.by == WORKGROUP else source.replace("    number = first\n", _GRID)


def _entry(source: str, names: dict[str, Any], kernel: Kernel, kinds: Sequence[BoundTensor]) -> Any:
    exec(compile(source, "<kernel of the user>", "exec"), names)
    try:
        return numba.cfunc(_SIGNATURE)(names["entry"])
    except Exception as error:
        pass_interruption(error)
        text = ", ".join(map(str, kinds))
        locked = [kind for kind in kinds if kind.is_locked]
        if locked:
            raise PermissionDeniedError(
                f"kernel {kernel.name} stores to what a program may only read, such as parameters of files, "
                f"or Numba cannot compile it for arrays that are not writable "
                f"({', '.join(map(_binding, locked))}): {error}; have it store to a copy"
            ) from error
        raise InvalidArgumentError(
            f"Numba cannot compile kernel {kernel.name} for ({text}): {error}"
        ) from error


def _binding(kind: BoundTensor) -> str:
    return f"{kind} in binding {kind.binding}"
