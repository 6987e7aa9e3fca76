"""Records that compiled VMVX kernels share with Python."""

from __future__ import annotations

from typing import Final

from jitree.regs.layout import Record

ENVIRONMENT: Final = Record(
    "vmvx environment",
    """
    i64 function          # the Python object that the record belongs to
    i64 lanes             # address of the executable's LANES record
    i64 run               # address of the C function that runs a span on the VM
    i64 crowd             # address of the C function that runs a span when no lane is free
    i64 finish            # address of the C function that finishes a workgroup which left machine code
    """,
)
"""What a function's calls get as environment; the function owns it. The C functions take environment,
dispatch state and workgroup state, the last one also the LANE record that the workgroup left on; they return
0, or the number of a failure."""

MAXIMUM_LANES: Final = 64
LANES: Final = Record(
    "vmvx lanes",
    """
    i64 count
    i64 first             # address of a LANE record; count of them follow
    """,
)
"""The lanes of one executable: ``count`` grows when another one is complete, up to MAXIMUM_LANES."""

MAXIMUM_BINDINGS: Final = 64
LANE: Final = Record(
    "vmvx lane",
    """
    i64 busy              # 1 while a thread has it
    i64 state             # address of the STATE of its machine
    i64 frame             # address of the frame record of a kernel, the one behind the host's
    i64 values            # of its value slots
    i64 refs              # of its ref registers
    i64 local             # address of the ENTRY of the buffer of local memory
    i64 constants         # … of constants
    i64 bindings          # … of the list of bindings
    i64 scratch           # address of the first byte of scratch memory
    i64 binding           # … of the buffer of the first binding; MAXIMUM_BINDINGS addresses
    """,
)
"""What one thread at a time runs compiled kernels with: a machine, and handles that are aimed at other memory
for each span."""

SCRATCH_MARK: Final = 0x53435254
"""In ENTRY.encoding of the handles that a lane keeps for scratch buffers."""

WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED = range(4)
"""Why a run of workgroups has stopped: it is complete, one has left machine code, one has released handles,
the machine has no room."""
MOST_FINISHED: Final = 4
"""Workgroups of a span that may leave machine code before the rest is left to the VM."""


def span_symbol(ordinal: int) -> str:
    """The name of the span function of a kernel, by its ordinal in the module."""
    return f"span.{ordinal}"
