"""Builds the machine code that modules will need: ``jitree cache warm``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.codegen.image import Provider, Recipe
    from jitree.codegen.image.batch import ImageBatch
    from jitree.dispatch.bytecode_module import BytecodeModule

FLAGS: Final = flag_set(
    "cache warm",
    "builds the machine code that running modules takes, so that no run waits or starts slowly",
    "warm",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Builds what is missing and prints a line per image. UNAVAILABLE if something cannot be built."""
    for images in batches(flags.texts("module")):
        start = time.perf_counter()
        ready = images.find()
        images.wait()
        taken = "ready" if ready else f"built in {time.perf_counter() - start:.1f} s"
        print(f"{images.title}: {taken}", flush=True)
    return 0


def batches(paths: Sequence[str]) -> Iterator[Provider | ImageBatch]:
    """What every program uses, then what each module does; statuses as of loading a module."""
    from jitree.codegen.image import provider
    from jitree.dispatch.bytecode_module import BytecodeModule
    from jitree.dispatch.native import tiering
    from jitree.hal.local import executor
    from jitree.loaders.vmvx import kernels as vmvx_kernels

    own = (item for item in own_recipes() if item != executor.RECIPE or executor.supported())
    yield from map(provider, own)
    for path in paths:
        module = BytecodeModule.load(path)
        yield provider(tiering.recipe(module.program, module.name))
        yield from map(vmvx_kernels.batch, vmvx_kernels.executables(module.module))


def recipes_of(module: BytecodeModule, arithmetic: str = FUSED) -> Iterator[Recipe]:
    """What a module and its executables run as, in sessions of an arithmetic."""
    from jitree.dispatch.native import tiering
    from jitree.loaders.vmvx import kernels as vmvx_kernels

    yield tiering.recipe(module.program, module.name)
    for executable in vmvx_kernels.executables(module.module, arithmetic):
        yield from vmvx_kernels.recipes(executable)


def own_recipes() -> tuple[Recipe, ...]:
    """The images of the package itself, for any program."""
    from jitree.api.calls.native import RECIPE as CALLS
    from jitree.dispatch.fast import LOOP
    from jitree.dispatch.native.prelude import BASE
    from jitree.hal.local import executor
    from jitree.loaders.vmvx.kernels import SPANS
    from jitree.modules.hal import native as hal
    from jitree.modules.vmvx import native as vmvx
    from jitree.vmfb.native.code import RECIPE as LOAD

    return LOOP, executor.RECIPE, hal.RECIPE, CALLS, vmvx.RECIPE, SPANS, LOAD, BASE
