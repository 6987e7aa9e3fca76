"""Replaces dispatches of a session by kernels, also those loaded later."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree import errors
from jitree.base.arguments import shown
from jitree.base.memory import note_native
from jitree.hal.executable import Executable, LocalExecutable
from jitree.kernels.kernel import Kernel
from jitree.kernels.local import LocalKernel
from jitree.modules.hal.constant_stores import may_store_to_constants
from jitree.observe.taps import near
from jitree.observe.tolerance import EXACT, Tolerance, tolerance
from jitree.regs.memory import address_of
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.dispatch.context import Context
    from jitree.hal.device import Device
    from jitree.hal.executable import ExecutableLoader
    from jitree.kernels.cuda import CudaLaunches


class Replacements:
    """Holds what runs in place of a session's dispatches and imports."""

    def __init__(self, context: Context, devices: Sequence[Device]) -> None:
        self.context = context
        self.devices = devices
        self.active: list[Replacement] = []

    def add(self, replacement: Replacement) -> Replacement:
        """Replaces what is meant (:meth:`jitree.Session.replace`)."""
        try:
            with self.context.invoker.entrance():
                self.become_idle()
                self.active.append(replacement)
                replacement.extend()
                replacement.require_some()
        except BaseException:
            if replacement in self.active:
                self.remove(replacement)
            raise
        return replacement

    def extend(self) -> None:
        """Replaces dispatches of modules that have just been loaded."""
        with self.context.invoker.entrance():
            self.become_idle()
            for replacement in self.active:
                replacement.extend()

    def remove(self, replacement: Replacement) -> None:
        with self.context.invoker.entrance():
            if replacement in self.active:
                self.become_idle()
                replacement.restore()
                self.active.remove(replacement)  # last: an interrupt before leaves what undoes it

    def end(self) -> None:
        """Undoes all, of a session that is closed."""
        for replacement in self.active:
            replacement.restore()
        self.active.clear()

    def become_idle(self) -> None:
        """Machine code looks at functions only while something runs."""
        if not self.context.invoker.closed:
            self.context.invoker.require_idle()
        for device in self.devices:
            device.finish_submitted()

    def require_own(self, place: tuple[object, int], name: str) -> None:
        """FAILED_PRECONDITION for what another kernel replaces."""
        for other in self.active:
            if place in other.replaced:
                raise errors.FailedPreconditionError(
                    f"replace: {name} is replaced already, by '{other.kernel.name}'; undo that first"
                )

    def note_stores(self) -> None:
        """Gives up copies of constants, where a dispatch stores to some: a kernel of the user in its place
        does so without a word."""
        for executable, loaders in self._executables():
            parameters = executable.parameters
            if parameters is not None and may_store_to_constants(self.context.modules, loaders):
                note_native(parameters.data)

    def _executables(self) -> Iterator[tuple[Executable, Sequence[ExecutableLoader]]]:
        """Those that the modules have, with the loaders of their devices."""
        for device in self.devices:
            for executable in device.executables:
                if self.context.table.address_of(executable):
                    yield executable, device.loaders

    def functions(self) -> Iterator[tuple[Executable, int, str, str]]:
        """(executable, ordinal, ``module.name``, ``name``) of all dispatches that the modules have."""
        for executable, _ in self._executables():
            module = self._module_of(executable)
            for ordinal in range(executable.function_count):
                name = executable.function_name(ordinal)
                yield executable, ordinal, f"{module}.{name}", name

    def _module_of(self, executable: Executable) -> str:
        """The name of the module that has the bytes of an executable; empty if it is not known."""
        parameters = executable.parameters
        place = 0 if parameters is None else _address(parameters.data)
        for module in self.context.modules:
            for segment in module.module.rodata if isinstance(module, BytecodeModule) else ():
                if 0 <= place - _address(segment.data) < len(segment.data):
                    return module.name
        return ""


class Replacement(abc.ABC):
    """Runs a kernel for dispatches or imports until :meth:`undo`."""

    def __init__(self, owner: Replacements, patterns: str | Sequence[str], kernel: Any) -> None:
        self.patterns = tuple(patterns) if isinstance(patterns, (list, tuple)) else (patterns,)
        if not self.patterns or not all(isinstance(pattern, str) for pattern in self.patterns):
            raise errors.InvalidArgumentError(
                "replace: expected the name of a dispatch, such as 'module.main_dispatch_0*', or a list of "
                f"those of a run, but got {shown(patterns)}"
            )
        self.kernel = kernel if isinstance(kernel, Kernel) else Kernel(kernel)
        self.replaced: set[tuple[Any, int]] = set()
        """Executables and numbers of functions, or programs and numbers of imports."""
        self._owner = owner

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Those of what it replaces; dispatches of a run are joined by "and"."""

    @abc.abstractmethod
    def extend(self) -> None:
        """Replaces what is meant and is not replaced yet, or nothing. The session's lock is held and nothing
        runs."""

    @abc.abstractmethod
    def require_some(self) -> None:
        """NOT_FOUND for the first pattern that means nothing."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Runs the originals again. The session's lock is held and nothing runs."""

    def undo(self) -> None:
        """Runs the originals again; the second time it does nothing. It waits for calls in progress.
        FAILED_PRECONDITION in a call of the session."""
        self._owner.remove(self)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        state = "" if self in self._owner.active else "; undone"
        return f"<replacement of {', '.join(self.names)} by {self.kernel.name}{state}>"


class ReplacedDispatches(Replacement):
    """Runs a kernel for dispatches."""

    def __init__(
        self, owner: Replacements, patterns: str | Sequence[str], kernel: Any, allowed: Tolerance | None
    ) -> None:
        super().__init__(owner, patterns, kernel)
        self._allowed = allowed
        self._kernels: list[LocalKernel | CudaLaunches] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self._kernels)

    def extend(self) -> None:
        begun, before = len(self._kernels), set(self.replaced)
        try:
            for functions in self._meant():
                self._replace(functions)
            if any(isinstance(kernel, LocalKernel) for kernel in self._kernels):
                self._owner.note_stores()
        except BaseException:
            self._restore(self.replaced - before, self._kernels[begun:])
            self.replaced = before
            del self._kernels[begun:]
            raise

    def require_some(self) -> None:
        if self._kernels:
            return
        names = [names for _, _, *names in self._owner.functions()]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for pair in names for name in pair):
                programs = self._owner.context.programs
                imports = (
                    each.module.imports[number].full_name for each in programs for number in each.targets
                )
                found = near(pattern, (*(name for name, _ in names), *imports)) or "none"
                raise errors.NotFoundError(
                    f"replace: no dispatch and no import of the session is called '{pattern}'; near it are: "
                    f"{found}"
                )

    def restore(self) -> None:
        self._restore(self.replaced, self._kernels)

    def _restore(
        self, functions: Iterable[tuple[Executable, int]], kernels: Iterable[LocalKernel | CudaLaunches]
    ) -> None:
        for executable, ordinal in functions:
            if isinstance(executable, LocalExecutable):
                executable.restore_function(ordinal)
        for kernel in kernels:
            kernel.undo()

    def _meant(self) -> list[tuple[tuple[Executable, int], ...]]:
        """Functions to replace, together if they are a run: each pattern means one then."""
        found = [
            [
                (executable, ordinal)
                for executable, ordinal, *names in self._owner.functions()
                if any(fnmatchcase(name, pattern) for name in names)
            ]
            for pattern in self.patterns
        ]
        if len(found) == 1:
            return [(function,) for function in found[0] if function not in self.replaced]
        for pattern, functions in zip(self.patterns, found, strict=True):
            if len(functions) > 1:
                names = ", ".join(executable.function_name(ordinal) for executable, ordinal in functions)
                raise errors.InvalidArgumentError(
                    f"replace: each pattern of a run is to mean one dispatch, but '{pattern}' means {names}"
                )
        return [tuple(f[0] for f in found)] if all(found) and not self._kernels else []

    def _replace(self, functions: Sequence[tuple[Executable, int]]) -> None:
        for function in functions:
            self._owner.require_own(function, function[0].function_name(function[1]))
        self.replaced.update(functions)  # first: an interrupt of what follows leaves what undoes it
        local = [(each, number) for each, number in functions if isinstance(each, LocalExecutable)]
        if len(local) == len(functions):
            if isinstance(self.kernel.function, str):
                raise errors.InvalidArgumentError(
                    f"replace: a kernel that is a text runs on a GPU, not on the device of {local[0][0].name}"
                )
            self._kernels.append(LocalKernel(self.kernel, local, self._allowed))
        else:
            launches = self._launches(functions)
            self._kernels.append(launches)
            launches.begin()

    def _launches(self, functions: Sequence[tuple[Executable, int]]) -> CudaLaunches:
        from jitree.cuda.executable import CudaExecutable
        from jitree.kernels.cuda import CudaLaunches

        own = [(each, number) for each, number in functions if isinstance(each, CudaExecutable)]
        if len(own) < len(functions):
            names = ", ".join(executable.function_name(ordinal) for executable, ordinal in functions)
            raise errors.UnimplementedError(
                f"replace: {names} run on a device whose dispatches cannot be replaced; those of local-task, "
                "local-sync and cuda can"
            )
        return CudaLaunches(self.kernel, own, self._allowed, self._owner.devices)


def _address(data: Bytes | memoryview) -> int:
    return address_of(np.frombuffer(data, np.uint8)) if len(data) else 0


def verified(verify: bool, atol: float | None, rtol: float | None, ulp: float | None) -> Tolerance | None:
    """How near results are to be; None: they are not compared."""
    allowed = tolerance(atol, rtol, ulp)
    return allowed if verify or allowed != EXACT else None
