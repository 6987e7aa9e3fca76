"""Compiles kernels of the user for a GPU. They are PTX, CUDA C++, and kernels of CuPy, Triton and numba-cuda.

Libraries are known by what their kernels have, and imported only for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jitree.cuda import ptx
from jitree.cuda.executable import OwnParameter
from jitree.errors import InvalidArgumentError, UnavailableError, UnimplementedError

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext
    from jitree.kernels.kernel import BoundTensor, Kernel

_WARP: Final = 32
_TRITON_TYPES: Final = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "bool": "i1",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16",
    "uint32": "u32", "uint64": "u64",
}  # fmt: skip
_MARKS: Final = ("options", "cache_key", "forall")
"""What kernels of CuPy, Triton and numba-cuda have."""
_TRITON_OPTIONS: Final = ("num_warps", "num_stages")
_DIVISIBLE: Final = ["tt.divisibility", 16]
"""Bindings begin at multiples of 64 bytes, as compiled kernels assume."""


class KernelCode(NamedTuple):
    """Is what launches need of a compiled kernel."""

    text: bytes
    """PTX."""
    name: str
    block: tuple[int, int, int] | None
    """None: as the dispatch's."""
    shared_memory: int | None
    parameters: tuple[OwnParameter | int, ...]


class KernelTarget(NamedTuple):
    """Describes the dispatches that a kernel is for, and the GPU."""

    context: CudaContext
    names: Sequence[str]
    bindings: Sequence[int]
    """How many each dispatch has."""
    constants: Sequence[int]
    tensors: Sequence[Sequence[BoundTensor]]
    """Of each dispatch; empty where their types are not known."""

    @property
    def parameters(self) -> tuple[OwnParameter, ...]:
        """All addresses of bindings, then all constants."""
        bound = (OwnParameter(d, n) for d, count in enumerate(self.bindings) for n in range(count))
        constants = (OwnParameter(d, n, True) for d, count in enumerate(self.constants) for n in range(count))
        return (*bound, *constants)


def code_of(kernel: Kernel, target: KernelTarget) -> KernelCode:
    """Compiles a kernel for dispatches. INVALID_ARGUMENT for one that does not take what they give."""
    function: Any = kernel.function
    if isinstance(function, str):
        is_ptx = ".entry" in function and ".version" in function
        text = function.encode() if is_ptx else _compiled(function, (), target.context)
        return _with_signature(kernel, target, text, kernel.entry)
    if hasattr(function, "code") and hasattr(function, "options"):
        text = _compiled(function.code, function.options, target.context)
        return _with_signature(kernel, target, text, kernel.entry or function.name)
    if hasattr(function, "cache_key") and hasattr(function, "arg_names"):
        return _of_triton(kernel, target)
    if hasattr(function, "py_func") and hasattr(function, "targetoptions") and hasattr(function, "forall"):
        return _of_numba(kernel, target)
    raise UnimplementedError(
        f"kernel {kernel.name}: on a GPU a kernel is PTX, CUDA C++, one of CuPy (RawKernel), Triton or "
        "numba-cuda, or a Python function; C functions run on local devices"
    )


def is_called(kernel: Kernel) -> bool:
    """Whether the host calls a function in place of a launch."""
    is_code = isinstance(kernel.function, str) or kernel.address != 0
    return not is_code and not any(hasattr(kernel.function, mark) for mark in _MARKS)


def _compiled(source: str, options: Sequence[str], context: CudaContext) -> bytes:
    """Compiles CUDA C++ by NVRTC. INVALID_ARGUMENT with its log, UNAVAILABLE without NVRTC."""
    try:
        from cuda.bindings import nvrtc

        error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    except (ImportError, RuntimeError) as caught:
        raise UnavailableError(f"CUDA C++ is compiled by NVRTC, which is not there: {caught}") from caught
    major, minor = context.info.compute_capability
    flags = [f"--gpu-architecture=compute_{major}{minor}".encode(), *(option.encode() for option in options)]
    error, *_ = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if error:
        log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(program)
        message = log.split(b"\0")[0].decode(errors="backslashreplace").strip()
        raise InvalidArgumentError(f"NVRTC refuses the kernel's CUDA C++: {message or error}")
    text = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(text).rstrip(b"\0")


def _entry(text: bytes, wanted: str) -> tuple[str, ptx.KernelSignature | None]:
    """The kernel of a text that is called so, or the only one."""
    found = ptx.signatures(text)
    name = wanted if wanted in found or len(found) != 1 else next(iter(found))
    if name not in found:
        raise InvalidArgumentError(
            f"kernel: its text has {', '.join(found) or 'no kernel'}; entry= is to name one of them"
        )
    return name, found[name]


def _parameter_count(text: bytes, name: str) -> int:
    begin = text.index(f".entry {name}(".encode())
    return text[begin : text.index(b")", begin)].count(b".param")


def _with_signature(kernel: Kernel, target: KernelTarget, text: bytes, wanted: str) -> KernelCode:
    name, signature = _entry(text, wanted)
    bindings, constants = sum(target.bindings), sum(target.constants)
    if signature != (bindings, constants):
        takes = (
            "other parameters"
            if signature is None
            else (f"{signature.binding_count} pointers and {signature.constant_count} words")
        )
        raise InvalidArgumentError(
            f"kernel {name} takes {takes}, but {' and '.join(target.names)} gives {bindings} pointers, to "
            f"its bindings, then {constants} words of 32 bits, its constants"
        )
    return KernelCode(text, name, None, None, target.parameters)


def _of_triton(kernel: Kernel, target: KernelTarget) -> KernelCode:
    import triton  # type: ignore[import-not-found]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]
    from triton.compiler import ASTSource  # type: ignore[import-not-found]

    function: Any = kernel.function
    fixed = {n: v for n, v in kernel.arguments.items() if n not in _TRITON_OPTIONS}
    options = {n: v for n, v in kernel.arguments.items() if n in _TRITON_OPTIONS}
    names = list(function.arg_names)
    free = [name for name in names if name not in fixed]
    unknown = [name for name in fixed if name not in names]
    given = target.parameters
    if len(free) != len(given) or unknown:
        no_other = f" and no {', '.join(unknown)}" if unknown else ""
        raise InvalidArgumentError(
            f"kernel {kernel.name} takes {', '.join(free)}{no_other}, but {' and '.join(target.names)} gives "
            f"{sum(target.bindings)} pointers, to its bindings, and {sum(target.constants)} constants; "
            "arguments= gives all others"
        )
    kinds = [*map(_triton_type, _bound(kernel, target)), *["i32"] * sum(target.constants)]
    signature = dict(zip(free, kinds, strict=True)) | dict.fromkeys(fixed, "constexpr")
    source = ASTSource(
        function, {name: signature[name] for name in names}, {(names.index(n),): v for n, v in fixed.items()},
        {(names.index(n),): [_DIVISIBLE] for n, kind in zip(free, kinds, strict=True) if kind[0] == "*"},
    )  # fmt: skip
    major, minor = target.context.info.compute_capability
    made = triton.compile(source, target=GPUTarget("cuda", 10 * major + minor, _WARP), options=options)
    text = made.asm["ptx"].encode()
    name, _ = _entry(text, made.metadata.name)
    scratch = (0,) * (_parameter_count(text, name) - len(given))  # memory that these kernels do not ask for
    block = (_WARP * made.metadata.num_warps, 1, 1)
    return KernelCode(text, name, block, made.metadata.shared, (*given, *scratch))


def _of_numba(kernel: Kernel, target: KernelTarget) -> KernelCode:
    from numba import cuda, types
    from numba.np.numpy_support import from_dtype

    function: Any = kernel.function
    bound = _bound(kernel, target)
    if any(tensor is None or min(tensor.shape, default=0) < 0 for tensor in bound):
        raise InvalidArgumentError(
            f"kernel {kernel.name}: types= is to give the shape of each of the {len(bound)} bindings"
        )
    arrays = [types.Array(from_dtype(each.dtype), len(each.shape), "C") for each in bound if each is not None]
    signature = types.void(*arrays, *[types.uint32] * sum(target.constants))
    made, _ = cuda.compile(
        function.py_func, signature, cc=target.context.info.compute_capability, abi="numba", device=False
    )
    text = made.encode() if isinstance(made, str) else bytes(made)
    name, _ = _entry(text, "")
    addresses = target.parameters[: len(bound)]
    described = (_array(tensor, place) for tensor, place in zip(bound, addresses, strict=True) if tensor)
    parameters = (*chain.from_iterable(described), *target.parameters[len(bound) :])
    return KernelCode(text, name, None, None, parameters)


def _array(tensor: BoundTensor, address: OwnParameter) -> tuple[OwnParameter | int, ...]:
    """An array as Numba passes it: owner, parent, items, bytes of one, address, shape, strides."""
    size = tensor.dtype.itemsize
    strides, step = list[int](), size
    for length in reversed(tensor.shape):
        strides.insert(0, step)
        step *= length
    return 0, 0, step // size, size, address, *tensor.shape, *strides


def _bound(kernel: Kernel, target: KernelTarget) -> list[BoundTensor | None]:
    """The tensor of each binding; None where its type is not known. INVALID_ARGUMENT for several in one, and
    for those with bytes before them: kernels get the addresses of bindings."""
    found: list[BoundTensor | None] = []
    for number, count in enumerate(target.bindings):
        tensors = target.tensors[number] if target.tensors else ()
        for binding in range(count):
            own = [tensor for tensor in tensors if tensor.binding == binding]
            if len(own) > 1 or any(tensor.offset for tensor in own):
                raise InvalidArgumentError(
                    f"types: kernel {kernel.name} gets the address of binding {binding} of "
                    f"{target.names[number]}, so its type is to be that of one tensor, at its beginning"
                )
            found.append(own[0] if own else None)
    return found


def _triton_type(tensor: BoundTensor | None) -> str:
    if tensor is None:
        raise InvalidArgumentError("types: a Triton kernel needs the type of each binding, such as '?xf32'")
    return f"*{_TRITON_TYPES.get(tensor.dtype.name, 'u8')}"
