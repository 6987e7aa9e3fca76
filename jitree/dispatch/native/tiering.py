"""Provides the native code of modules to contexts.

It is asked for, waited for, and given to the function records of a context.

It imports neither numba nor llvmlite; the code is an image (:mod:`jitree.codegen.image`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import SharedWeakKeys
from jitree.base.memory import NAMES_CODE, name_code
from jitree.codegen import image
from jitree.codegen.record import words_of
from jitree.dispatch.native import source
from jitree.regs.layout import FunctionEntry
from jitree.regs.machine import Machine
from jitree.regs.records import FunctionRecord, ModuleRecord
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables

if TYPE_CHECKING:
    from jitree.codegen.image.builder import BuilderLimits

_FUNCTION: Final = words_of(FunctionEntry)
_WAYS: Final = (("places", "resume"), ("tails", "tail"))
"""Notes that list the ways into functions, and their entries."""


def recipe(program: DecodedModule, name: str) -> image.Recipe:
    """How the image of a module is made; ``name`` is for messages."""
    return image.Recipe(
        name="native",
        title=f"native code of module '{name}'",
        generator="jitree.dispatch.native.lower:program",
        seconds=0.5,
        data=(source.encode(source.from_program(program)),),
    )


class NativeModule:
    """Holds native code of a module, shared by its states. It may have some of its functions only."""

    def __init__(self, provider: image.Provider) -> None:
        self.provider = provider
        self._notes: dict[str, dict[str, object]] | None = None

    @property
    def refusals(self) -> dict[int, str]:
        """Why functions are not native, by ordinal; empty as long as the image is not there."""
        return {int(ordinal): str(text) for ordinal, text in self._note("refusals").items()}

    def places(self, ordinal: int, way: str = "places") -> list[int]:
        """Word indices at which a function can be entered in the middle: ``places``, or ``tails`` inside its
        nests."""
        found = self._note(way).get(str(ordinal), [])
        assert isinstance(found, list)
        return found

    def _note(self, name: str) -> dict[str, object]:
        ready = self.provider.image
        if ready is None:
            return {}
        if self._notes is None:
            import json  # 1 ms: only programs that run long pay for it

            self._notes = json.loads(ready.notes)
        return self._notes[name]

    def link(self, record: ModuleRecord) -> None:
        """Gives the code to the functions of a module's state."""
        ready = self.provider.image
        assert ready is not None
        record.native = self
        for ordinal in range(len(record.program.functions)):
            address = ready.addresses.get(f"enter.{ordinal}")
            if address is not None:
                record.link_native(ordinal, address)
        if NAMES_CODE:
            self._name(record.module, ready)

    @staticmethod
    def _name(module: ModuleTables, ready: image.Image) -> None:
        parts = ((key.partition("."), address) for key, address in ready.addresses.items())
        functions = {
            f"{module.name}.{module.function_name(int(ordinal))} ({way})": address
            for (way, _, ordinal), address in parts
        }
        name_code(functions, ready.end)

    def resume_address(self, function: FunctionRecord, pc: int) -> int:
        """Machine code that goes on at a word index of a function; 0 if there is none."""
        ready = self.provider.image
        if ready is None:
            return 0
        for way, entry in _WAYS:
            if pc in self.places(function.ordinal, way):
                return ready.addresses[f"{entry}.{function.ordinal}"]
        return 0


_modules: Final[SharedWeakKeys[DecodedModule, dict[BuilderLimits | None, NativeModule]]] = SharedWeakKeys()


def native_module(record: ModuleRecord) -> NativeModule:
    """The native code of a module, whether it is there yet or not."""
    by_builds = _modules.setdefault(record.program, {})
    found = by_builds.get(record.builds)
    if found is None:
        provider = image.provider(recipe(record.program, record.module.name), record.builds)
        found = by_builds[record.builds] = NativeModule(provider)
    return found


def wait(record: ModuleRecord) -> None:
    """Gives a module's state its native code, waiting for it if need be.

    UNAVAILABLE if it cannot be built."""
    module = native_module(record)
    module.provider.wait()
    module.link(record)


def look(record: ModuleRecord) -> NativeModule | None:
    """Gives a module's state its native code if that is there; else sees to it that it is built."""
    if isinstance(record.native, NativeModule):
        return record.native
    module = native_module(record)
    if module.provider.get() is None:
        return None
    module.link(record)
    return module


def resume_address(machine: Machine, module: NativeModule, pc: int) -> int:
    """Machine code to go on with at ``pc`` of a machine's current function: from its beginning or from a
    place in it; 0 if there is none."""
    function = machine.function
    if function.code_address != function.module.function(function.ordinal).code_address:
        return 0  # the host's two instructions
    if pc == function.start:
        return int(function.memory[_FUNCTION.native])
    return module.resume_address(function, pc)
