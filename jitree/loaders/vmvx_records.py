"""Records of compiled VMVX kernels, by name of their fields."""

from __future__ import annotations

from jitree.codegen.atomics import Atomic
from jitree.codegen.record import MemoryRecord
from jitree.loaders.vmvx_layout import CONTEXT, CONTEXTS, ENVIRONMENT
from jitree.regs.layout import ENTRY, SCRATCH, STATE


class KernelEnvironment(MemoryRecord, layout=ENVIRONMENT):
    contexts: Contexts


class Contexts(MemoryRecord, layout=CONTEXTS):
    count: Atomic
    due: Atomic


class WorkerContextRecord(MemoryRecord, layout=CONTEXT):
    busy: Atomic
    state: KernelState
    local: KernelHandle
    constants: KernelHandle
    bindings: KernelHandle


class KernelState(MemoryRecord, layout=STATE):
    released: KernelHandle
    scratch: KernelScratch


class KernelHandle(MemoryRecord, layout=ENTRY):
    link: KernelHandle


class KernelScratch(MemoryRecord, layout=SCRATCH):
    free: KernelHandle
    room: Atomic
