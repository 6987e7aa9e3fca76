"""The loop over the workgroups of a span. Machine code, one for all kernels: it calls theirs by address."""

from __future__ import annotations

from jitree.codegen.primitives import call, quotient, remainder
from jitree.codegen.record import place_of
from jitree.hal.local.executor.records import KernelDispatch
from jitree.loaders.vmvx.records import (
    WORKGROUP_DONE,
    WORKGROUP_LEFT,
    WORKGROUP_LITTERED,
    WORKGROUP_REFUSED,
    KernelEnvironment,
    WorkerContextRecord,
)
from jitree.regs.fuel import FuelState, refuel_function


def has_room(environment: KernelEnvironment, context: WorkerContextRecord) -> bool:
    """Whether the frames, value slots and ref registers of the kernel fit."""
    state = context.state
    return (
        context.frame + environment.frames <= state.frames_limit
        and context.values + environment.values <= state.values_limit
        and context.refs + environment.refs <= state.refs_limit
    )


def workgroups(
    environment: KernelEnvironment,
    dispatch: KernelDispatch,
    context: WorkerContextRecord,
    first: int,
    last: int,
) -> int:
    """Runs parts of workgroups (``DISPATCH.parts`` each, often one) from one number up to another in a worker
    context that is aimed at their memory. It stops after one that has released something, and at one that has
    left: ``reached`` is then the number of the first that is not complete. WORKGROUP_*."""
    context.reached = first
    if not has_room(environment, context):
        return WORKGROUP_REFUSED
    state = context.state
    scratch = state.scratch
    code = environment.workgroup
    count_x = dispatch.count_x
    count_y = dispatch.count_y
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
    while True:
        scratch.part = part
        if fuel <= 1:
            fuel = refuel_function(FuelState(place_of(state))) + 1
        if fuel > 1:
            fuel = call(code, place_of(dispatch), place_of(context), fuel - 1, x, y, z)
        else:  # it is not to begin
            fuel = 0
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
