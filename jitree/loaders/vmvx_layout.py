"""Records that compiled VMVX kernels share with Python."""

from __future__ import annotations

from typing import Final

from jitree.base.layout import Record

KEEPS: Final = frozenset(("global.store.ref", "global.store.indirect.ref"))
"""Instructions of an executable due to which a kernel may find less scratch memory than another one did."""
CHANGE_LISTS: Final = ("list.set", "list.resize", "list.reserve", "list.swap")
"""Beginnings of mnemonics that could leave a worker context's list of bindings changed for the next span."""

ENVIRONMENT: Final = Record(
    "vmvx environment",
    """
    i64 function          # the Python object that the record belongs to
    i64 contexts          # address of the executable's CONTEXTS record
    i64 run               # address of the C function that runs a span on the VM
    i64 slow_path         # address of the one that runs a span when no worker context is free
    i64 finish            # address of the C function that finishes a workgroup which left machine code
    i64 workgroup         # address of the compiled kernel: `i64 (dispatch, context, fuel, x, y, z)`, 0 = none
    i64 frames            # bytes of frames that it and what it calls take
    i64 values            # … of value slots
    i64 refs              # … of ref registers
    i64 kernel            # number of the kernel's function in the module
    i64 stores            # a bit for each binding that the kernel may store to
    i64 changed           # address of constants that it stores to, of which no copies are read; 0 = none
    i64 changed_size      # their bytes
    """,
)
"""What a function's calls get as environment; the function owns it. The C functions take environment,
dispatch state and workgroup state, the last one also the CONTEXT record that the workgroup left in; they
return 0, or the number of a failure."""

MAXIMUM_CONTEXTS: Final = 64
CONTEXTS: Final = Record(
    "vmvx worker contexts",
    """
    i64 count
    i64 interval          # ticks between two looks at the memory that is left; 0: no look is needed
    i64 due               # when the next one is; 0 before the first span
    i64 look              # address of the C function that looks
    i64 first             # address of a CONTEXT record; count of them follow
    """,
)
"""The worker contexts of one executable: ``count`` grows when another one is complete, up to
MAXIMUM_CONTEXTS. The C function takes and returns what those of ENVIRONMENT do."""

MAXIMUM_BINDINGS: Final = 64
CONTEXT: Final = Record(
    "vmvx worker context",
    """
    i64 busy              # 1 while a thread has it
    i64 state             # address of the STATE of its machine
    i64 frame             # address of the frame record of a kernel, the one after the host's
    i64 values            # of its value slots
    i64 refs              # of its ref registers
    i64 local             # address of the ENTRY of the buffer of local memory
    i64 constants         # … of constants
    i64 bindings          # … of the list of bindings
    i64 scratch           # address of the first byte of scratch memory
    i64 dispatch          # address of the dispatch state of the span
    i64 reached           # by a run of workgroups: number of the first that is not complete
    i64 binding           # … of the buffer of the first binding; MAXIMUM_BINDINGS addresses
    """,
)
"""What one thread at a time runs compiled kernels with: a machine, and handles that are aimed at other memory
for each span."""

SCRATCH_MARK: Final = 0x53435254
"""The value of ENTRY.encoding in handles that a worker context keeps for scratch buffers."""

WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED = range(4)
"""Why a run of workgroups has stopped: it is complete, one has left machine code, one has released handles,
the machine has no room."""
STACK_SIZE: Final = 256 << 10
"""Bytes of a thread's stack that kernels may take, whatever thread it is; deeper calls are the VM's."""
MOST_FINISHED: Final = 4
"""Workgroups of a span that may leave machine code before the rest is left to the VM."""
