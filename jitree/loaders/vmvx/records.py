"""Declares the records that compiled VMVX kernels share with Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.codegen.record import Atomic, MemoryRecord
from jitree.regs.layout import Entry, MachineState

if TYPE_CHECKING:
    from jitree.codegen.record import i64

KEEPS: Final = frozenset(("global.store.ref", "global.store.indirect.ref"))
"""Instructions of an executable due to which a kernel may find less scratch memory than another one did."""
CHANGE_LISTS: Final = ("list.set", "list.resize", "list.reserve", "list.swap")
"""Beginnings of mnemonics that could leave a worker context's list of bindings changed for the next span."""

MAXIMUM_CONTEXTS: Final = 64
MAXIMUM_BINDINGS: Final = 64
SCRATCH_MARK: Final = 0x53435254
"""The value of ENTRY.encoding in handles that a worker context keeps for scratch buffers."""

WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED = range(4)
"""Why a run of workgroups has stopped: it is complete, one has left machine code, one has released handles,
the machine has no room."""
STACK_SIZE: Final = 256 << 10
"""Bytes of a thread's stack that kernels may take, whatever thread it is; deeper calls are the VM's."""
MOST_FINISHED: Final = 4
"""Workgroups of a span that may leave machine code before the rest is left to the VM."""


class KernelEnvironment(MemoryRecord):
    """Gives a function's calls their environment; the function owns it.

    The C functions take environment, dispatch state and workgroup state, the last one also the worker context
    that the workgroup left in; they return 0, or the number of a failure.
    """

    function: i64  # the Python object that the record belongs to
    contexts: Contexts  # those of the executable
    run: i64  # address of the C function that runs a span on the VM
    slow_path: i64  # address of the one that runs a span when no worker context is free
    finish: i64  # address of the C function that finishes a workgroup which left machine code
    workgroup: i64  # the compiled kernel's address: `i64 (dispatch, context, fuel, x, y, z)`, 0 = none
    frames: i64  # bytes of frames that it and what it calls take
    values: i64  # … of value slots
    refs: i64  # … of ref registers
    kernel: i64  # number of the kernel's function in the module
    stores: i64  # a bit for each binding that the kernel may store to
    changed: i64  # address of constants that it stores to, of which no copies are read; 0 = none
    changed_size: i64  # their bytes


class Contexts(MemoryRecord):
    """Lists the worker contexts of one executable.

    ``count`` grows when another one is complete, up to MAXIMUM_CONTEXTS. The C function takes and returns
    what those of :class:`KernelEnvironment` do.
    """

    count: Atomic
    interval: i64  # ticks between two looks at the memory that is left; 0: no look is needed
    due: Atomic  # when the next one is; 0 before the first span
    look: i64  # address of the C function that looks
    first: i64  # address of a worker context; count of them follow


class WorkerContextRecord(MemoryRecord):
    """Aims a machine's handles at other memory for each span.

    One thread at a time runs compiled kernels with it.
    """

    busy: Atomic  # 1 while a thread has it
    state: MachineState  # address of the STATE of its machine
    frame: i64  # address of the frame record of a kernel, the one after the host's
    values: i64  # of its value slots
    refs: i64  # of its ref registers
    local: Entry  # address of the ENTRY of the buffer of local memory
    constants: Entry  # … of constants
    bindings: Entry  # … of the list of bindings
    scratch: i64  # address of the first byte of scratch memory
    dispatch: i64  # address of the dispatch state of the span
    reached: i64  # by a run of workgroups: number of the first that is not complete
    binding: i64  # … of the buffer of the first binding; MAXIMUM_BINDINGS addresses
