"""Runs programs compiled by IREE.

import jitree

session = jitree.Session(device="local-task")
module = session.load("model.vmfb")
y = module.predict(x)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitree import errors
from jitree.errors import StatusCode, StatusError

if TYPE_CHECKING:
    from jitree.api.array import Array
    from jitree.api.calls.storage_arguments import donate
    from jitree.api.custom_module import CustomModule
    from jitree.api.custom_types import f32, f64, i32, i64
    from jitree.api.function import Function
    from jitree.api.inspection import ModuleSummary, inspect
    from jitree.api.module import Call, Module
    from jitree.api.session import Instance, Session, load
    from jitree.dispatch.context import ContextFlags
    from jitree.dispatch.host_export import HostExport
    from jitree.dispatch.host_module import HostModule
    from jitree.hal.device import Device
    from jitree.regs.objects import VmBuffer, VmList

__version__ = "0.1.0"

_LAZY = {
    "Array": "jitree.api.array",
    "Call": "jitree.api.module",
    "ContextFlags": "jitree.dispatch.context",
    "CustomModule": "jitree.api.custom_module",
    "Device": "jitree.hal.device",
    "Function": "jitree.api.function",
    "Instance": "jitree.api.session",
    "Module": "jitree.api.module",
    "ModuleSummary": "jitree.api.inspection",
    "HostExport": "jitree.dispatch.host_export",
    "HostModule": "jitree.dispatch.host_module",
    "Session": "jitree.api.session",
    "VmBuffer": "jitree.regs.objects",
    "VmList": "jitree.regs.objects",
    "donate": "jitree.api.calls.storage_arguments",
    "f32": "jitree.api.custom_types",
    "f64": "jitree.api.custom_types",
    "i32": "jitree.api.custom_types",
    "i64": "jitree.api.custom_types",
    "inspect": "jitree.api.inspection",
    "load": "jitree.api.session",
}
"""Imported when first asked for: ``import jitree`` alone costs next to nothing."""
_RENAMED = {"NativeExport": "HostExport", "NativeModule": "HostModule"}
"""Old names, each of which warns when it is first used."""

__all__ = [
    "Array",
    "Call",
    "ContextFlags",
    "CustomModule",
    "Device",
    "Function",
    "HostExport",
    "HostModule",
    "Instance",
    "Module",
    "ModuleSummary",
    "Session",
    "StatusCode",
    "StatusError",
    "VmBuffer",
    "VmList",
    "__version__",
    "donate",
    "errors",
    "f32",
    "f64",
    "i32",
    "i64",
    "inspect",
    "load",
]


def __getattr__(name: str) -> Any:
    present = _RENAMED.get(name, name)
    path = _LAZY.get(present)
    if path is None:
        raise AttributeError(f"module 'jitree' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(path), present)
    if name != present:
        import warnings

        warnings.warn(f"jitree.{name} is called jitree.{present} now", DeprecationWarning, stacklevel=2)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
