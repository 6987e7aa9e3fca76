"""Checks the arguments of `Session`, and names the one that is wrong."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from types import NoneType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import numpy as np

from jitree.api.calls.refusal import describe, listed, refused
from jitree.api.calls.tensor_packing import as_array
from jitree.api.calls.transfers import native_row
from jitree.base.arguments import integer, is_masked, is_one_of, is_released, taken_apart
from jitree.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnimplementedError,
    memory_errors,
    own_error,
    pass_interruption,
)
from jitree.vmfb.words import ARITHMETICS

if TYPE_CHECKING:
    from typing import TypedDict

    import numpy.typing as npt

    from jitree.api.executable_choice import Preference
    from jitree.api.executables import Plugin
    from jitree.api.sandbox import Limits, Sandbox
    from jitree.codegen.image.contents import Pack
    from jitree.dispatch.context import ContextFlags, ModuleLike
    from jitree.dispatch.host_module import HostModule
    from jitree.modules.hal.module import TraceSink
    from jitree.params.provider import ParameterProvider
    from jitree.params.provider import Source as ParameterSource
    from jitree.types import ElementType
    from jitree.vmfb.archive import Source

    class SessionOptions(TypedDict, total=False):
        """The arguments of :class:`jitree.Session` by name, for functions that pass them on."""

        parameters: Iterable[ParameterSource]
        tier: str | None
        flags: ContextFlags
        executable_plugins: Iterable[Plugin]
        executable_modules: Iterable[HostModule]
        builtin_modules: Iterable[str] | None
        trace_sink: TraceSink | None
        cache_dir: str | os.PathLike[str] | None
        watchdog: float | None
        sandbox: bool | str | Sandbox
        limits: Limits | None
        zero_memory: bool
        guard_pages: bool
        arithmetic: str
        prefer: str | None
        check_finite: bool | str | Iterable[str]


Loaded: TypeAlias = "Source | ModuleLike"
"""What modules are loaded from."""
Modules: TypeAlias = "Sequence[ModuleLike]"
Compiled: TypeAlias = "str | os.PathLike[str] | None"
"""Machine code of modules, made beforehand."""
Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""A size, or one for each dimension."""


def require(name: str, what: str, value: object, *classes: Any) -> None:
    """INVALID_ARGUMENT unless a value is of one of the classes; NoneType is that of what may be left out."""
    if not issubclass(type(value), classes):  # as `is_a`
        raise InvalidArgumentError(f"{name}: expected {what} but got {describe(value)}")


def require_name(name: object) -> None:
    require("name", "the name of a function", name, str)


def require_path(path: object) -> None:
    require("path", "a path", path, str, os.PathLike)


def dimensions(shape: Shape) -> tuple[int, ...]:
    # An array of sizes has an index, like a number, and does not give it.
    sizes = taken_apart(shape) if isinstance(shape, (tuple, Sized)) else (shape,)
    try:
        if sizes is not None:
            return tuple(integer("empty", operator.index(size)) for size in sizes)
    except TypeError as error:
        pass_interruption(error)
    raise InvalidArgumentError(
        f"empty: expected a size or a tuple of sizes, which are integers, but got {describe(shape)}"
    )


def element_row(dtype: npt.DTypeLike) -> ElementType:
    """The element type that arrays of a dtype have."""
    found: np.dtype[Any] | None
    try:
        if isinstance(dtype, str):
            import ml_dtypes as ml_dtypes  # its names are known then: bfloat16
        found = np.dtype(dtype)
    except (TypeError, ValueError, RecursionError) as error:  # of lists without end
        pass_interruption(error)
        found = None
    row = None if found is None else native_row(found)
    if row is None:
        raise InvalidArgumentError(f"empty: no device array can have dtype {describe(dtype)}")
    return row


def choose_cache(directory: str | os.PathLike[str]) -> None:
    """Has this process keep compiled code there. INVALID_ARGUMENT for what is no path."""
    require("cache_dir", "a path", directory, str, os.PathLike)
    from jitree.codegen.image.cache import choose_directory

    choose_directory(directory)


def open_parameters(parameters: Iterable[ParameterSource], sandbox: object) -> tuple[ParameterProvider, ...]:
    """The parameters of a session. PERMISSION_DENIED for files of a sandbox."""
    if isinstance(parameters, tuple) and not parameters:  # imports nothing that reads archives
        return ()
    if sandbox:
        from jitree.api.sandbox import require_objects

        parameters = require_objects(parameters)
    from jitree.params.provider import open_providers

    return open_providers(parameters)


def is_process(sandbox: object) -> bool:
    """Whether a session is to have a process; INVALID_ARGUMENT for what is no choice of sandbox."""
    from jitree.api.sandbox import Sandbox

    if isinstance(sandbox, str) and sandbox == "process":
        return True
    require("sandbox", "True, False or 'process'", sandbox, Sandbox)
    return False


def require_arithmetic(arithmetic: object) -> None:
    """INVALID_ARGUMENT for what is no arithmetic."""
    if not is_one_of(arithmetic, ARITHMETICS):
        raise InvalidArgumentError(f"arithmetic: expected 'fused' or 'strict' but got {describe(arithmetic)}")


def preference(prefer: object, sandbox: object, arithmetic: str) -> Preference | None:
    """What a session prefers, None without. INVALID_ARGUMENT for what is none, UNIMPLEMENTED in a sandbox."""
    if prefer is None:
        return None
    from jitree.api.executable_choice import PREFERENCES, Preference

    if not is_one_of(prefer, PREFERENCES):
        names = ", ".join(map(repr, PREFERENCES))
        raise InvalidArgumentError(f"prefer: expected None, {names} but got {describe(prefer)}")
    if sandbox:
        raise UnimplementedError("prefer: a sandbox takes VMVX executables where a module has them")
    return Preference(prefer, arithmetic)


def require_memory(zero_memory: object, guard_pages: object) -> None:
    """INVALID_ARGUMENT for options of memory that are none, and guard pages in this process."""
    require("zero_memory", "True or False", zero_memory, bool)
    require("guard_pages", "True or False", guard_pages, bool)
    require("guard_pages", "sandbox='process' with it", guard_pages or None, NoneType)


def create_sandbox(
    sandbox: bool | str | Sandbox,
    limits: Limits | None,
    tier: str | None,
    plugins: Iterable[Plugin],
    modules: Iterable[HostModule],
    arithmetic: str,
) -> Sandbox | None:
    """None without one. INVALID_ARGUMENT for limits of no sandbox, PERMISSION_DENIED for plugins."""
    if sandbox is False and limits is None:
        return None
    from jitree.api.sandbox import Sandbox

    if isinstance(sandbox, Sandbox):  # of the process that a sandbox has for itself
        return sandbox
    if not sandbox:
        raise InvalidArgumentError("limits: only a sandbox has limits; pass sandbox=True with them")
    if listed("executable_plugins", "plugins", plugins):
        raise PermissionDeniedError("executable_plugins: they are native code, and a sandbox runs none")
    from jitree.dispatch.host_module import HostModule

    require_arithmetic(arithmetic)
    host_modules = listed("executable_modules", "host modules", modules, HostModule)
    return Sandbox(limits, tier, host_modules, arithmetic)


def machine_code(
    compiled: Compiled, modules: Sequence[ModuleLike], arithmetic: str, sandbox: object
) -> tuple[Pack, ...]:
    """As :func:`jitree.api.packed_code.open_pack`; nothing without a path."""
    if compiled is None:
        return ()
    from jitree.api.packed_code import open_pack

    return open_pack(compiled, modules, arithmetic, sandbox)


def loading(sandbox: Sandbox | None) -> AbstractContextManager[object]:
    """A block that loads modules."""
    return nullcontext() if sandbox is None else sandbox.loading()


def host_array(value: Any) -> tuple[npt.NDArray[Any], ElementType]:
    """Makes a host array of what goes to a device, with its type."""
    if is_masked(value) or is_released(value):
        raise refused("to_device", "an array", value)
    array = as_array(value)
    if array is None:
        try:
            with memory_errors("to_device"):  # an object may say that it has any number of items
                array = np.asarray(value)
        except (TypeError, ValueError, OverflowError) as error:  # sequences of different lengths, no arrays
            pass_interruption(error)
            raise InvalidArgumentError(f"to_device: {error}") from own_error(error)
    row = native_row(array.dtype)
    if row is None:
        raise InvalidArgumentError(f"to_device: no device array can hold {describe(value)}")
    return array, row
