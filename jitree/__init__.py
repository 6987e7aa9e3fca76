"""Runs programs compiled by IREE.

import jitree

session = jitree.Session(device="local-task")
module = session.load("model.vmfb")
y = module.predict(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitree import errors
from jitree.base import forks as forks
from jitree.errors import StatusCode, StatusError

if TYPE_CHECKING:
    from jitree.api.array import Array as Array
    from jitree.api.calls.storage_arguments import donate as donate
    from jitree.api.custom_module import CustomModule as CustomModule
    from jitree.api.custom_types import f32 as f32
    from jitree.api.custom_types import f64 as f64
    from jitree.api.custom_types import i32 as i32
    from jitree.api.custom_types import i64 as i64
    from jitree.api.function import Function as Function
    from jitree.api.module import Call as Call
    from jitree.api.module import Module as Module
    from jitree.api.program import Program as Program
    from jitree.api.program_files import ModuleSummary as ModuleSummary
    from jitree.api.program_files import inspect as inspect
    from jitree.api.sandbox import Limits as Limits
    from jitree.api.session import Instance as Instance
    from jitree.api.session import Session as Session
    from jitree.api.session import load as load
    from jitree.base.logs import progress as progress
    from jitree.compare.differences import Difference as Difference
    from jitree.compare.differences import diff as diff
    from jitree.compare.lone_dispatch import LoneDispatch as LoneDispatch
    from jitree.compare.reduction import reduce as reduce
    from jitree.compiling.models import compile as compile
    from jitree.debug.shell import post_mortem as post_mortem
    from jitree.dispatch.context import ContextFlags as ContextFlags
    from jitree.dispatch.host_export import HostExport as HostExport
    from jitree.dispatch.host_module import HostModule as HostModule
    from jitree.hal.device import Device as Device
    from jitree.regs.buffer import VmBuffer as VmBuffer
    from jitree.regs.list import VmList as VmList

__version__ = "1.0.0"

_archive = getattr(__spec__.loader, "archive", None)  # of zipimport
if _archive is not None:
    raise ImportError(
        f"jitree cannot run from the archive '{_archive}': it maps machine code and reads tables from files "
        "beside its sources; unpack the archive, or install jitree into a folder (pip install --target)",
        name="jitree",
    )

_LAZY = {
    "Array": "jitree.api.array",
    "Call": "jitree.api.module",
    "ContextFlags": "jitree.dispatch.context",
    "CustomModule": "jitree.api.custom_module",
    "Device": "jitree.hal.device",
    "Difference": "jitree.compare.differences",
    "Function": "jitree.api.function",
    "Instance": "jitree.api.session",
    "Limits": "jitree.api.sandbox",
    "LoneDispatch": "jitree.compare.lone_dispatch",
    "Module": "jitree.api.module",
    "ModuleSummary": "jitree.api.program_files",
    "Program": "jitree.api.program",
    "HostExport": "jitree.dispatch.host_module",
    "HostModule": "jitree.dispatch.host_module",
    "Session": "jitree.api.session",
    "VmBuffer": "jitree.regs.buffer",
    "VmList": "jitree.regs.list",
    "compile": "jitree.compiling.models",
    "diff": "jitree.compare.differences",
    "donate": "jitree.api.calls.storage_arguments",
    "f32": "jitree.api.custom_types",
    "f64": "jitree.api.custom_types",
    "i32": "jitree.api.custom_types",
    "i64": "jitree.api.custom_types",
    "inspect": "jitree.api.program_files",
    "load": "jitree.api.session",
    "post_mortem": "jitree.debug.shell",
    "progress": "jitree.base.logs",
    "reduce": "jitree.compare.reduction",
}
"""Imported when first asked for: ``import jitree`` alone costs next to nothing."""
_PARTS = ("kernels",)
"""Packages that are imported when first asked for."""
_RENAMED = {"NativeExport": "HostExport", "NativeModule": "HostModule"}
"""Old names, each of which warns when it is first used."""

_BUILT_IN = "compile"
"""A name of Python's own function, which ``from jitree import *`` leaves as it is."""
__all__ = [
    *(name for name in _LAZY if name != _BUILT_IN),
    "StatusCode",
    "StatusError",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> Any:
    present = _RENAMED.get(name, name)
    path = _LAZY.get(present)
    if name in _PARTS:
        from importlib import import_module

        return import_module(f"jitree.{name}")
    if path is None:
        raise AttributeError(f"module 'jitree' has no attribute '{name}'")
    from jitree.base import start

    value = getattr(start.imported(path), present)
    if name != present:
        from jitree.base.folding import warn

        warn(f"jitree.{name} is called jitree.{present} now", DeprecationWarning)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, _BUILT_IN, *(name for name in globals() if name.startswith("__"))})
