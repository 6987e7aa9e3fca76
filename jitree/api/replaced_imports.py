"""Replaces imports of programs by functions of the user, also those loaded later."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api import custom_types
from jitree.api.custom_module import CustomModule, ModuleState, compiled_export, converting, surroundings_of
from jitree.api.load_order import BUILTIN_MODULES
from jitree.dispatch.engine import Pending
from jitree.dispatch.host_export import HostExport, results
from jitree.dispatch.linking import convention_of
from jitree.dispatch.sites import HostTarget
from jitree.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from jitree.hal.buffer import BufferView
from jitree.kernels.replacement import ReplacedDispatches, Replacement
from jitree.kernels.verification import require_near
from jitree.regs.buffer import VmBuffer
from jitree.vmfb.cconv import parse

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.dispatch.context import Context
    from jitree.dispatch.linking import BytecodeInstance, Target
    from jitree.kernels.replacement import Replacements
    from jitree.observe.tolerance import Tolerance

_NUMBERS: Final = {character: name for name, character in custom_types.NUMBERS.items()}
_ARRAY: Final = custom_types.parse_signature("array ->").arguments[0]


def replacement(
    owner: Replacements, name: str | Sequence[str], kernel: Any, allowed: Tolerance | None
) -> Replacement:
    """Chooses what a name means: dispatches, where any has it, else imports."""
    dispatches = ReplacedDispatches(owner, name, kernel, allowed)
    pattern, *others = dispatches.patterns
    known = (each for _, _, *names in owner.functions() for each in names)
    if others or any(fnmatchcase(each, pattern) for each in known):
        return dispatches
    imports = ReplacedImports(owner, name, kernel, allowed)
    return imports if any(imports.meant()) else dispatches


class ReplacedImports(Replacement):
    """Has programs call a function in place of what they import."""

    def __init__(
        self, owner: Replacements, pattern: str | Sequence[str], kernel: Any, allowed: Tolerance | None
    ) -> None:
        super().__init__(owner, pattern, kernel)
        self._allowed = allowed
        self._originals: list[tuple[BytecodeInstance, int, Target]] = []

    @property
    def names(self) -> tuple[str, ...]:
        imports = (program.module.imports[number] for program, number, _ in self._originals)
        return tuple(dict.fromkeys(item.full_name for item in imports))

    def meant(self) -> Iterator[tuple[BytecodeInstance, int]]:
        """Programs and numbers of their imports, but for optional ones that are missing."""
        for program in self._owner.context.programs:
            for number in program.targets:
                if fnmatchcase(program.module.imports[number].full_name, self.patterns[0]):
                    yield program, number

    def extend(self) -> None:
        begun = len(self._originals)
        try:
            for place in self.meant():
                if place not in self.replaced:
                    self._replace(*place)
        except BaseException:
            self._restore(begun)
            self.replaced.difference_update(each[:2] for each in self._originals[begun:])
            del self._originals[begun:]
            raise

    def require_some(self) -> None:
        """Does nothing: an import was found before."""

    def restore(self) -> None:
        self._restore(0)

    def _restore(self, first: int) -> None:
        for program, number, target in self._originals[first:]:
            program.relink(number, target)

    def _replace(self, program: BytecodeInstance, number: int) -> None:
        name = program.module.imports[number].full_name
        if name.partition(".")[0] in BUILTIN_MODULES:
            raise UnimplementedError(
                f"replace: '{name}' is a function of jitree's own, which calls, lists and machine code take "
                "for granted; dispatches, and imports of other modules, can be replaced"
            )
        self._owner.require_own((program, number), name)
        original = program.targets[number]
        export = self._export(name, convention_of(original))
        if self._allowed is not None:
            check = _Verification(self._owner.context, name, original, self._allowed)
            export = check.of(export, self.kernel.name)
        self._originals.append((program, number, original))
        self.replaced.add((program, number))
        state = ModuleState(None, surroundings_of(self._owner.context))
        program.relink(number, HostTarget(name, export, state))

    def _export(self, name: str, cconv: str) -> HostExport:
        """The function as programs call it. INVALID_ARGUMENT for one that takes or gives something else."""
        kernel = self.kernel
        if isinstance(kernel.function, str) or kernel.types:
            raise InvalidArgumentError(
                f"replace: '{name}' is an import, in whose place a Python function is called, whose "
                "annotations say its types"
            )
        types = self._types(name, cconv)
        if types is None:
            return HostExport(name, cconv, lambda _, *values: kernel.function(*values))
        if types.cconv != cconv:
            raise InvalidArgumentError(
                f"replace: {kernel.name} has signature '{types.cconv}', but import '{name}' has '{cconv}'"
            )
        if kernel.is_compiled and types.is_scalar:
            return compiled_export(name, kernel.function.py_func, types, {})
        return HostExport(name, cconv, converting(kernel.function, types, 0))

    def _types(self, name: str, cconv: str) -> custom_types.FunctionType | None:
        """What annotations state, else what the replaced function states. None: numbers, and the VM's own
        objects."""
        function = getattr(self.kernel.function, "py_func", self.kernel.function)
        modules = [each for each in self._owner.context.modules if isinstance(each, CustomModule)]
        if getattr(function, "__annotations__", None):
            classes = {cls: text for each in modules for cls, text in each.classes.items()}
            return custom_types.signature_of(function, 0, classes)
        convention = parse(cconv)
        _require_parameters(self.kernel.name, function, name, len(convention.arguments))
        module, _, short = name.partition(".")
        for each in reversed(modules):
            if each.name == module and (short, cconv) in each.types:
                return each.types[short, cconv]
        registers = [*convention.arguments], [*convention.results]
        if not all(isinstance(item, str) and item in _NUMBERS for items in registers for item in items):
            return None
        texts = (", ".join(_NUMBERS[str(item)] for item in items) for items in registers)
        return custom_types.parse_signature(" -> ".join(texts))


def _require_parameters(kernel: str, function: Any, name: str, count: int) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C; the call says it
        return
    try:
        signature.bind(*range(count))
    except TypeError:
        raise InvalidArgumentError(
            f"replace: {kernel}{signature} is to take the {count} arguments of import '{name}'"
        ) from None


class _Verification:
    """Calls both functions once, and compares their results; then the new one alone."""

    def __init__(self, context: Context, name: str, original: Target, allowed: Tolerance) -> None:
        self._context, self._name, self._original, self._allowed = context, name, original, allowed
        self._is_done = False

    def of(self, new: HostExport, kernel: str) -> HostExport:
        """What calls both, then the new one."""
        convention = parse(new.cconv)

        def call(state: ModuleState, *arguments: object) -> object:
            if self._is_done:
                return new.function(state, *arguments)
            expected = self._expected(arguments)
            found = results(convention, new.function(state, *arguments))
            for number, (here, there) in enumerate(zip(found, expected, strict=True)):
                what = f"{kernel} and import '{self._name}' differ in result {number}"
                self._require_near(what, _array(here, state), _array(there, state))
            self._is_done = True
            return expected[0] if len(expected) == 1 else tuple(expected) or None

        def address() -> int:
            return new.compiled() if self._is_done and new.compiled is not None else 0

        return HostExport(new.name, new.cconv, call, {}, None if new.compiled is None else address)

    def _expected(self, arguments: Sequence[object]) -> list[Any]:
        original = self._original
        if not isinstance(original, HostTarget):
            programs = self._context.programs
            program = next(each for each in programs if each.record is original.module)
            function = program.function(self._name.partition(".")[2])
            assert function is not None  # it was found when the program was linked
            return self._context.invoke(function, arguments)
        value = original.export.function(original.state, *arguments)
        if isinstance(value, Pending):
            raise UnimplementedError(f"replace: '{self._name}' waits, so it cannot be verified")
        return results(parse(original.export.cconv), value)

    def _require_near(self, what: str, here: npt.NDArray[Any], there: npt.NDArray[Any]) -> None:
        if here.shape != there.shape or here.dtype != there.dtype:
            raise FailedPreconditionError(
                f"{what}: {here.shape} of {here.dtype} and {there.shape} of {there.dtype}"
            )
        require_near(what, here, there, self._allowed)


def _array(value: object, state: ModuleState) -> npt.NDArray[Any]:
    if isinstance(value, (int, float)):
        return np.array(value)
    if isinstance(value, VmBuffer):
        return np.frombuffer(bytes(value), np.uint8)
    if isinstance(value, BufferView):
        return np.asarray(custom_types.receive(_ARRAY, value, 0, state.surroundings))
    if value is None:
        return np.zeros(0, np.void)
    raise UnimplementedError(f"replace: results of class {type(value).__name__} are not verified")
