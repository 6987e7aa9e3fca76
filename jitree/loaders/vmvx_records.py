"""Records of compiled VMVX kernels, by name of their fields."""

from __future__ import annotations

from jitree.codegen.atomics import Atomic
from jitree.codegen.record import MemoryRecord
from jitree.loaders.vmvx_layout import CONTEXT, CONTEXTS, ENVIRONMENT
from jitree.regs.layout import ENTRY, SCRATCH, STATE


class Environment(MemoryRecord, layout=ENVIRONMENT):
    contexts: Contexts


class Contexts(MemoryRecord, layout=CONTEXTS):
    count: Atomic


class WorkerContext(MemoryRecord, layout=CONTEXT):
    busy: Atomic
    state: State
    local: Entry
    constants: Entry
    bindings: Entry


class State(MemoryRecord, layout=STATE):
    released: Entry
    scratch: Scratch


class Entry(MemoryRecord, layout=ENTRY):
    link: Entry


class Scratch(MemoryRecord, layout=SCRATCH):
    free: Entry
