"""Finds names of iree.runtime when they are first asked for.

Their modules are imported then.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from jitree import __version__

BINDING: Final = {
    "buffers": "HalBuffer HalBufferView MappedMemory Shape VmBuffer VmVariantList",
    "arguments": "VmRef",
    "commands": "HalCommandBuffer HalDeviceLoopBridge",
    "dtypes": "BufferCompatibility BufferUsage ExternalTimepointFlags ExternalTimepointType "
    "HalElementType Linkage MemoryAccess MemoryType SemaphoreCompatibility",
    "fences": "HalExternalTimepoint HalFence HalSemaphore",
    "function": "ArgumentPacker InvokeContext _invoke_statics",
    "hal": "HalAllocator HalDevice HalDriver clear_hal_driver_cache create_hal_driver get_cached_hal_driver "
    "parse_flags",
    "io": "FileHandle ParameterIndex ParameterIndexEntry ParameterProvider",
    "modules": "HalModuleDebugSink PyModuleInterface create_hal_module create_io_parameters_module",
    "tokenizer": "Tokenizer TokenizerDecodeStream TokenizerEncodeStream",
    "vm": "VmContext VmFunction VmInstance VmModule disable_leak_checker",
}
"""By module: what upstream has in its native part."""
TOP: Final = {
    "array_interop": "DeviceArray asdevicearray",
    "benchmark": "benchmark_exe benchmark_module",
    "function": "FunctionInvoker",
    "io": "SplatValue parameter_index_add_numpy_ndarray parameter_index_entry_as_numpy_flat_ndarray "
    "parameter_index_entry_as_numpy_ndarray save_archive_file",
    "modules": "HalModuleBufferViewTraceCallback",
    "system_api": "TARGET_BACKEND_TO_DRIVER Config SystemContext get_device get_driver get_first_device "
    "load_vm_flatbuffer load_vm_flatbuffer_file load_vm_module load_vm_modules normalize_value "
    "query_available_drivers",
}
FACES: Final = {
    "_binding": BINDING,
    "flags": {"hal": "FUNCTION_INPUT_VALIDATION parse_flags"},
    "system_setup": {
        "system_api": "DEFAULT_DRIVER_NAMES get_device get_driver get_first_device query_available_drivers",
    },
    "typing": {"modules": "HalModuleBufferViewTraceCallback TraceKey"},
    "version": {"names": "PACKAGE_SUFFIX REVISIONS VERSION"},
}
"""Modules of upstream's that are no file here: their names, by the file that has them."""
SUBMODULES: Final = (*FACES, "array_interop", "benchmark", "dtypes", "function", "io", "system_api")
"""The modules that upstream has too."""
_PACKAGE: Final = "jitree.compat.iree_runtime"

VERSION: Final = __version__
"""jitree's own."""
REVISIONS: Final[dict[str, str]] = {"JITREE": __version__}
PACKAGE_SUFFIX: Final = ""


def finder(module: str, *tables: dict[str, str]) -> tuple[list[str], Callable[[str], Any]]:
    """The names of tables, and a module's ``__getattr__`` that finds them."""
    places = {name: place for table in tables for place, names in table.items() for name in names.split()}

    def find(name: str) -> Any:
        if name in places:
            found = getattr(importlib.import_module(f"{_PACKAGE}.{places[name]}"), name)
            setattr(sys.modules[module], name, found)  # the next look-up does not come here
            return found
        if module == _PACKAGE and name in SUBMODULES:
            return importlib.import_module(f"{_PACKAGE}.{name}")
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    return sorted(places), find


def add_faces() -> None:
    """Makes the modules that are no files importable."""
    for name, table in FACES.items():
        face = ModuleType(f"{_PACKAGE}.{name}")
        face.__spec__ = ModuleSpec(face.__name__, None)
        face.__all__, face.__getattr__ = finder(face.__name__, table)  # type: ignore[attr-defined, method-assign]
        sys.modules[face.__name__] = face
