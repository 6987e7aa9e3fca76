"""VMVX executables for tests: compiled ones, and assembled ones with known behaviour."""

from __future__ import annotations

from collections.abc import Sequence

from jitree.dispatch.engine import Engine
from jitree.dispatch.host_module import HostModule
from jitree.hal.executable import ExecutableParameters
from jitree.loaders.vmvx.executable import VmvxExecutable
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.loaders.vmvx.loader import FORMAT, VmvxLoader
from jitree.modules.vmvx import VmvxModule
from jitree.regs.memory import UNBOUNDED, Bounds
from tests.assembler import Assembler
from tests.loaders.samples import sample

NUMBER = """
    %i10 = mul.i32 %i7, %i2
    %i10 = add.i32 %i10, %i1
    %i10 = mul.i32 %i10, %i6
    %i10 = add.i32 %i10, %i0
    %i12 = ext.i32.i64.u %i10
    %i9 = const.i32 0
    %r3 = list.get.ref %r2, %i9, !vm.buffer
"""
"""Leaves the number of the workgroup in %i10 and %i12:13, the first binding in %r3."""
COUNT = f"""{NUMBER}
    %i14 = buffer.load.i32 %r3, %i12:13
    %i15 = const.i32 1
    %i14 = add.i32 %i14, %i15
    buffer.store.i32 %r3, %i12:13, %i14
    return []
"""
"""Adds 1 to the workgroup's element."""
FAIL = f"""{NUMBER}
    %i16 = const.i64 0
    %i14 = buffer.load.i32 %r1, %i16:17
    %i15 = cmp.eq.i32 %i10, %i14
    cond_br %i15, ^bad, ^good
    ^bad:
    %i15 = const.i32 8
    fail %i15, "no room for this"
    ^good:
    return []
"""
"""RESOURCE_EXHAUSTED in the workgroup whose number is the first constant."""


def kernels(name: str = "kernels") -> Assembler:
    return (
        Assembler(name)
        .function("count", ENTRY_CONVENTION, COUNT, attrs={"binding_count": "1"})
        .function("fail", ENTRY_CONVENTION, FAIL, attrs={"constant_count": "1", "local_memory": "5000"})
    )


def load(
    data: bytes | Assembler,
    tier: str | Engine = "plain",
    constants: Sequence[int] = (),
    modules: Sequence[HostModule] = (),
    bounds: Bounds = UNBOUNDED,
    **parameters: object,
) -> VmvxExecutable:
    if isinstance(data, Assembler):
        data = data.build()
    loader = VmvxLoader((VmvxModule(), *modules), tier, bounds)
    return loader.try_load(
        ExecutableParameters(FORMAT, memoryview(data), tuple(constants), **parameters)  # type: ignore[arg-type]
    )


def load_sample(name: str, tier: str = "plain") -> VmvxExecutable:
    return load(sample(f"vmvx_{name}.fb"), tier)
