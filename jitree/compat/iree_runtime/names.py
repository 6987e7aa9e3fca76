"""Where each name of iree.runtime is: modules are imported when a name of theirs is first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

BINDING: Final = {
    "buffers": "HalBuffer HalBufferView MappedMemory Shape",
    "commands": "HalCommandBuffer",
    "enumerations": "BufferCompatibility BufferUsage ExternalTimepointFlags ExternalTimepointType "
    "HalElementType Linkage MemoryAccess MemoryType SemaphoreCompatibility",
    "fences": "HalExternalTimepoint HalFence HalSemaphore",
    "flags": "parse_flags",
    "function": "ArgumentPacker InvokeContext _invoke_statics",
    "hal": "HalAllocator HalDevice HalDriver clear_hal_driver_cache create_hal_driver get_cached_hal_driver",
    "loops": "HalDeviceLoopBridge",
    "modules": "HalModuleDebugSink PyModuleInterface create_hal_module create_io_parameters_module",
    "parameters": "FileHandle ParameterIndex ParameterIndexEntry ParameterProvider",
    "references": "VmRef",
    "tokenizer": "Tokenizer TokenizerDecodeStream TokenizerEncodeStream",
    "variants": "VmBuffer VmVariantList",
    "vm": "VmContext VmFunction VmInstance VmModule disable_leak_checker",
}
"""By module: what upstream has in its native part."""
TOP: Final = {
    "array_interop": "DeviceArray asdevicearray",
    "benchmark": "benchmark_exe benchmark_module",
    "function": "FunctionInvoker",
    "io": "SplatValue parameter_index_add_numpy_ndarray parameter_index_entry_as_numpy_flat_ndarray "
    "parameter_index_entry_as_numpy_ndarray save_archive_file",
    "system_api": "TARGET_BACKEND_TO_DRIVER Config SystemContext load_vm_flatbuffer load_vm_flatbuffer_file "
    "load_vm_module load_vm_modules normalize_value",
    "system_setup": "get_device get_driver get_first_device query_available_drivers",
    "typing": "HalModuleBufferViewTraceCallback",
}
SUBMODULES: Final = (
    "_binding", "array_interop", "benchmark", "dtypes", "flags", "function", "io", "system_api",
    "system_setup", "typing", "version",
)  # fmt: skip
"""Those that upstream has too."""
_PACKAGE: Final = "jitree.compat.iree_runtime"


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
