"""The loop over workgroups around a compiled kernel. Machine code: a copy for each kernel, which is inlined.

It calls nothing but the kernel, so what does not change from one workgroup to the next is read once.
"""

from __future__ import annotations

from jitree.codegen.primitives import quotient, remainder
from jitree.hal.local.executor.records import KernelDispatch
from jitree.loaders.vmvx_layout import WORKGROUP_DONE, WORKGROUP_LEFT, WORKGROUP_LITTERED, WORKGROUP_REFUSED
from jitree.loaders.vmvx_records import KernelHandle, KernelState, WorkerContextRecord


def kernel(
    state: KernelState, frame: int, values: int, refs: int, fuel: int,
    local: KernelHandle, constants: KernelHandle, bindings: KernelHandle,
    x: int, y: int, z: int, size_x: int, size_y: int, size_z: int, count_x: int, count_y: int, count_z: int,
    part: int, parts: int,
) -> int:  # fmt: skip
    """One part of a workgroup: what is left of the fuel, 0 if it has left machine code,
    or is not to begin. The builder defines it."""
    raise NotImplementedError


def has_room(state: KernelState, frame: int, values: int, refs: int) -> bool:
    """Whether the kernel's frames, value slots and ref registers fit. The builder defines it."""
    raise NotImplementedError


def workgroups(dispatch: KernelDispatch, context: WorkerContextRecord, first: int, last: int) -> int:
    """Runs parts of workgroups (``DISPATCH.parts`` each, often one) from one number up to another in a worker
    context that is aimed at their memory. It stops after one that has released something, and at one that has
    left: ``reached`` is then the number of the first that is not complete. WORKGROUP_*."""
    state = context.state
    frame = context.frame
    values = context.values
    refs = context.refs
    context.reached = first
    if not has_room(state, frame, values, refs):
        return WORKGROUP_REFUSED
    local = context.local
    constants = context.constants
    bindings = context.bindings
    size_x = dispatch.size_x
    size_y = dispatch.size_y
    size_z = dispatch.size_z
    count_x = dispatch.count_x
    count_y = dispatch.count_y
    count_z = dispatch.count_z
    parts = dispatch.parts
    part = 0
    number = first
    if parts > 1:
        part = remainder(first, parts)
        number = quotient(first, parts)
    line = quotient(number, count_x)
    x = remainder(number, count_x)
    y = remainder(line, count_y)
    z = quotient(line, count_y)
    fuel = state.fuel
    scratch = state.scratch
    while True:
        scratch.part = part
        fuel = kernel(
            state, frame, values, refs, fuel, local, constants, bindings,
            x, y, z, size_x, size_y, size_z, count_x, count_y, count_z, part, parts,
        )  # fmt: skip
        if fuel == 0:
            context.reached = first
            return WORKGROUP_LEFT
        first += 1
        if state.released:
            context.reached = first
            return WORKGROUP_LITTERED
        if first >= last:
            context.reached = first
            state.fuel = fuel
            return WORKGROUP_DONE
        part += 1
        if part < parts:
            continue
        part = 0
        x += 1
        if x == count_x:
            x = 0
            y += 1
            if y == count_y:
                y = 0
                z += 1
