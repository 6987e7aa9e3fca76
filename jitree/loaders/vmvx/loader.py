"""Loads VMVX executables: reads the modules, finds their kernels, makes executables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from jitree.dispatch.context import create_engine, default_tier
from jitree.dispatch.host_module import HostModule
from jitree.errors import InvalidArgumentError, StatusError, error_context, pass_interruption
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders.library import LOCAL_MEMORY_PAGE, MAXIMUM_COUNT, EntryPoint
from jitree.loaders.vmvx.executable import VmvxExecutable, Workers
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, kernels
from jitree.loaders.vmvx.worker import SET_CONSTANTS, Worker
from jitree.regs.memory import UNBOUNDED, Bounds
from jitree.vmfb.archive import looks_like_module
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.schema import Export, FunctionRow, ModuleTables
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.dispatch.engine import Engine
    from jitree.hal.pipeline_layout import PipelineLayout
    from jitree.loaders.vmvx.native import CompiledKernels

FORMAT: Final = "vmvx-bytecode-fb"
_WAITS: Final = "native"
_COMPILING: Final = ("auto", _WAITS)
"""Tiers on which whole kernels are compiled; ``auto`` does so in the background when they are used much."""
_TIERS_ON_VM: Final = {"native": "fast"}
"""What runs kernels that are not compiled; other tiers run them themselves."""
_MAXIMUM_LOCAL_MEMORY: Final = 1 << 30
"""Bytes; what a corrupt attribute may ask for at most."""

_PREPARED: Final = 3
"""How many different numbers of bindings the first worker is prepared for."""


class VmvxLoader(ExecutableLoader):
    """Loads ``vmvx-bytecode-fb`` and runs it on this package's VM, one VM context per thread."""

    def __init__(
        self,
        modules: Sequence[HostModule] = (),
        tier: str | Engine | None = None,
        bounds: Bounds = UNBOUNDED,
        arithmetic: str = FUSED,
    ) -> None:
        """``modules`` are what executables may import, ``vmvx`` among them; ``tier`` is what runs their
        bytecode, None takes JITREE_TIER from the environment. ``bounds``: what each worker's context may
        have. ``arithmetic``: how kernels round (:mod:`jitree.vmfb.words`)."""
        self._bounds = bounds
        self._arithmetic = arithmetic
        self._modules = tuple(modules)
        self._tier = tier

    @property
    def runs_in_python(self) -> bool:
        """``auto`` does until machine code is there."""
        engine = (
            create_engine(self._tier) if self._tier is None or isinstance(self._tier, str) else self._tier
        )
        return engine.entry is None

    def query_support(self, format: str) -> bool:
        return format == FORMAT

    def stores(self, data: memoryview) -> Sequence[tuple[str, int]]:
        """See :mod:`jitree.loaders.vmvx.analysis`."""
        if not looks_like_module(data):
            return ()
        from jitree.dispatch.native.source import from_program  # few programs ask
        from jitree.loaders.vmvx.analysis import stored_bindings

        try:
            executable = BytecodeModule.load(bytes(data), "executable")
        except StatusError as error:  # who loads it says so
            pass_interruption(error)
            return ()
        source = from_program(executable.program)
        return [(row.name, stored_bindings(source, row.ordinal)) for row in kernels(executable.module)]

    def try_load(self, parameters: ExecutableParameters) -> VmvxExecutable:
        """Reads, verifies and links the module and runs its initialiser.

        INVALID_ARGUMENT for a function of another signature and for constants that the module does not
        take or lacks; else what a module of a program fails with.
        """
        with error_context(f"loading an executable of format '{parameters.format}'"):
            # A copy: the archive that the executable lies in may be closed or written to.
            data = bytes(parameters.data)
            executable = BytecodeModule.load(data, "executable", self._arithmetic)
            rows = _entry_points(executable.module, parameters.layouts)
            _check_constants(executable.module, len(parameters.constants))
            names = [row.name or "" for row in rows]
            tier = self._tier or default_tier()
            on_vm = _TIERS_ON_VM.get(tier, tier) if isinstance(tier, str) else tier
            create = partial(
                Worker, executable, self._modules, names, parameters.constants, on_vm, self._bounds
            )
            compiled = _compiled(tier, executable, rows, create, self._bounds, self._file(parameters.data))
            places = partial(kernel_places, executable.module)
            workers = Workers(create, compiled, _usual_binding_counts(rows), _starter(on_vm))
            loaded = VmvxExecutable(executable.name, rows, workers, compiled, places)
            if tier == _WAITS:
                loaded.require_compiled()
            else:
                loaded.prepare()
            return loaded

    def _file(self, data: memoryview) -> memoryview | None:
        """An executable in its program's file, if kernels may keep copies of constants: not where memory is
        counted and nothing counts theirs."""
        is_counted = self._bounds.limited_charge is not None
        return None if is_counted and self._bounds.lender is None else data


def _starter(engine: str | Engine | None) -> Callable[[], Engine] | None:
    """What runs the initialiser of workers after the first; None: what runs kernels."""
    if engine is None or isinstance(engine, str):
        return None
    from jitree.dispatch.plain.counting import CountingEngine

    return engine.beside if isinstance(engine, CountingEngine) else None


def _usual_binding_counts(rows: Sequence[EntryPoint]) -> list[int]:
    """How many bindings most kernels have; the rest of what they need is made when they come."""
    counts = Counter(row.binding_count for row in rows if row.binding_count is not None)
    return [count for count, _ in counts.most_common()[:_PREPARED]]  # most_common(n) imports heapq


def kernel_places(module: ModuleTables, number: int) -> list[str]:
    """Where a kernel comes from, if the executable says it."""
    return [] if module.debug is None else module.debug.places(kernels(module)[number].ordinal)


def _compiled(
    tier: str | Engine,
    executable: BytecodeModule,
    rows: Sequence[EntryPoint],
    create: Callable[[], Worker],
    bounds: Bounds,
    file: memoryview | None,
) -> CompiledKernels | None:
    """``file``: the executable in its program's file, if kernels may keep copies of constants."""
    exports = kernels(executable.module)
    ordinals = [export.ordinal for export in exports]
    if tier not in _COMPILING or not ordinals:
        return None
    from jitree.codegen import image
    from jitree.loaders.vmvx import kernels as vmvx_kernels
    from jitree.loaders.vmvx.context import WorkerContext
    from jitree.loaders.vmvx.kernels import MAXIMUM_BINDINGS
    from jitree.loaders.vmvx.native import CompiledKernels
    from jitree.loaders.vmvx.packed import PackedConstants, copies_for

    def hot(ordinal: int) -> image.Provider:
        return image.provider(vmvx_kernels.hot_recipe(executable, ordinal), bounds.builds)

    def context(packed: PackedConstants | None) -> WorkerContext:
        return WorkerContext(create(), binding_count, packed)

    @cache
    def sizes(kernel: int) -> float:
        from jitree.loaders.vmvx.analysis import KernelCosts  # now: most calls are too short to ask

        return KernelCosts(executable.program, ordinals).of_workgroup(kernel)

    counts = (row.binding_count for row in rows)
    binding_count = max((MAXIMUM_BINDINGS if count is None else count for count in counts), default=0)
    batch = vmvx_kernels.batch(executable, bounds.builds)
    names = [f"{executable.name}.{export.name}" for export in exports]
    copies = None if file is None else copies_for(file, bounds.lender)
    return CompiledKernels(batch, hot, ordinals, names, context, sizes, copies)


def _entry_points(module: ModuleTables, layouts: Sequence[PipelineLayout]) -> list[EntryPoint]:
    exports = kernels(module)
    if layouts and len(layouts) != len(exports):
        raise InvalidArgumentError(
            f"the executable exports {len(exports)} functions, but {len(layouts)} pipeline layouts were given"
        )
    return [
        _entry_point(export, module.functions[export.ordinal], layouts[index] if layouts else None)
        for index, export in enumerate(exports)
    ]


def _entry_point(export: Export, function: FunctionRow, layout: PipelineLayout | None) -> EntryPoint:
    if function.cconv != ENTRY_CONVENTION:
        raise InvalidArgumentError(
            f"function '{export.name}' of the executable has signature '{function.cconv}'; kernels have "
            f"'{ENTRY_CONVENTION}'"
        )
    constants = _count(export.name, function, "constant_count", MAXIMUM_COUNT)
    bindings = _count(export.name, function, "binding_count", MAXIMUM_COUNT)
    if layout is not None:
        constants = layout.constant_count if constants is None else constants
        bindings = len(layout.bindings) if bindings is None else bindings
    local_memory = _count(export.name, function, "local_memory", _MAXIMUM_LOCAL_MEMORY) or 0
    pages = -(-local_memory // LOCAL_MEMORY_PAGE)
    return EntryPoint(export.name, 0, 0, pages * LOCAL_MEMORY_PAGE, constants, bindings, 0)


def _count(name: str, function: FunctionRow, key: str, most: int) -> int | None:
    text = function.attrs.get(key)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(most)) or int(text) > most:
        raise InvalidArgumentError(
            f"function '{name}' of the executable states {key} = '{text}'; expected 0 to {most}"
        )
    return int(text)


def _check_constants(module: ModuleTables, supplied: int) -> None:
    takes = module.export(SET_CONSTANTS) is not None
    if takes and not supplied:
        raise InvalidArgumentError(
            f"the executable takes specialization constants ({SET_CONSTANTS}), but none were supplied"
        )
    if supplied and not takes:
        raise InvalidArgumentError(
            f"{supplied} specialization constants were supplied, but the executable takes none (it has no "
            f"{SET_CONSTANTS})"
        )
