"""Short ways to make a context, load assembled programs into it and call them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jitree.codegen import image
from jitree.dispatch.context import Context
from jitree.dispatch.function import VmFunction
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.dispatch.native import tiering
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from tests.assembler import Assembler

TIERS = ("plain", "fast", "native")


class Thing:
    """A reference type that only host functions know."""


class HostFunctions(HostModule):
    """A host module made of (name, cconv, function) rows; functions do not get the state."""

    def __init__(
        self, name: str, rows: Iterable[tuple[str, str, Callable[..., Any]]], version: int = 0
    ) -> None:
        self.name = name
        self.version = version
        self._rows = list(rows)

    def exports(self) -> Iterable[HostExport]:
        return [HostExport(name, cconv, _without_state(function)) for name, cconv, function in self._rows]

    def register_types(self, ref_types: RefTypes) -> None:
        ref_types.register("test.thing", Thing)


def _without_state(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, *arguments: function(*arguments)


def compile_here(module: BytecodeModule) -> tiering.NativeModule:
    """Builds a module's native code in this process."""
    from jitree.codegen.image.flat import map_image
    from tests.codegen.images import built  # imports llvmlite

    recipe = tiering.recipe(module.program, module.name)
    native = tiering.NativeModule(image.provider(recipe))
    native.provider.image = map_image(built(native.provider.recipe))
    tiering._modules[module.program] = {None: native}
    return native


def start_here(provider: image.Provider, niceness: int | None) -> None:
    """In place of the builder process of what is waited for: starting one takes longer than most tests."""
    from tests.codegen.images import built

    if niceness == 0:
        provider._map(built(provider.recipe))
    else:
        _start(provider, niceness)


_start = image.Provider._start


def load(assembler: Assembler) -> BytecodeModule:
    return BytecodeModule.load(assembler.build(), assembler.name)


class Vm:
    """A context. Functions are named ``module:function``, or by their name in the module added last."""

    def __init__(self, tier: str) -> None:
        self.context = Context(RefTypes(), tier=tier)
        self.context.ref_types.register("test.thing", Thing)

    def add(self, *modules: Assembler | HostModule | BytecodeModule) -> Vm:
        self.context.register([load(item) if isinstance(item, Assembler) else item for item in modules])
        return self

    def function(self, name: str) -> VmFunction:
        module, _, function = name.rpartition(":")
        return self.context.lookup(f"{module or self.context.modules[-1].name}.{function}")

    def call(self, name: str, *arguments: object) -> list[Any]:
        """Calls and checks that the call left no reference."""
        before = self.context.table.live_count
        try:
            results = self.context.invoke(self.function(name), arguments)
        finally:
            after = self.context.table.live_count
        assert after == before, "references leaked"
        return results

    def keep(self, name: str, *arguments: object) -> list[Any]:
        """Calls what may store references, or return a list of some."""
        return self.context.invoke(self.function(name), arguments)

    def run(self, cconv: str, text: str, arguments: Sequence[object] = (), **options: Any) -> list[Any]:
        """Assembles one function ``f``, loads it as a module of its own and calls it."""
        assembler = Assembler(f"m{len(self.context.modules)}", **options).function("f", cconv, text)
        return self.add(assembler).call("f", *arguments)
