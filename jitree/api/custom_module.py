"""Makes modules that users write in Python, for programs to import from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from jitree import errors
from jitree.api import custom_types
from jitree.dispatch.host_export import HostExport
from jitree.dispatch.host_module import HostModule
from jitree.errors import attribute_of
from jitree.modules.hal import HalModule
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.cconv import parse

if TYPE_CHECKING:
    from jitree.dispatch.host_module import ModuleContext

API_VERSION: Final = 1
"""The version of this interface. A module that needs a newer one says so and is refused."""

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class ModuleState:
    """The state of a custom module in a context, and what conversions need there."""

    __slots__ = ("surroundings", "value")

    def __init__(self, value: object, surroundings: custom_types.Surroundings) -> None:
        self.value = value
        self.surroundings = surroundings


class CustomModule(HostModule):
    """A module of functions written in Python, which programs import from.

    >>> module = jitree.CustomModule("geometry")
    >>> @module.export
    ... def area(sides: np.ndarray, scale: jitree.f32) -> jitree.f32:
    ...     return sides.prod() * scale
    >>> session = jitree.Session("local-sync")
    >>> geometry = session.load(module)  # and then "program.vmfb", which imports from it
    >>> geometry.area(np.array([2, 3], np.float32), 0.5)
    3.0

    Types come from the annotations: ``i32 i64 f32 f64``; ``np.ndarray`` (read-only) or ``jitree.Array`` for
    tensors of any shape; ``VmBuffer`` or ``bytes``; ``VmList`` or ``list``; classes registered by
    :meth:`type`; ``object`` for any reference; ``… | None`` where null is allowed; a tuple of results. What a
    function raises reaches the caller of the program as it is; a ``StatusError`` keeps its code.

    With ``state``, that is called once per context, and what it returns is the first argument of every
    function but compiled ones. One module object may serve any number of sessions; once it is in one of them
    it no longer changes.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 0,
        state: Callable[[], object] | None = None,
        api_version: int = API_VERSION,
    ) -> None:
        """``name``: by which programs import from it. ``version`` is compared with what importing modules
        demand. UNIMPLEMENTED if ``api_version``, the one the module is written for, is newer than this
        package's.
        """
        require_api_version(api_version, f"module '{name}'")
        self.name = name
        """By which programs import from it."""
        self.version = version
        """Compared with what importing modules demand."""
        self._create_value = state
        self._exports: dict[tuple[str, str], HostExport] = {}
        self.types: dict[tuple[str, str], custom_types.FunctionType] = {}
        """Those that functions state, by name and convention."""
        self.classes: dict[type, str] = {}
        """The reference types that :meth:`type` has registered."""
        self._used = False

    # -- declaring -------------------------------------------------------------------------------------

    @overload
    def export(self, function: F, /) -> F: ...

    @overload
    def export(
        self,
        name: str | None = None,
        /,
        *,
        signature: str | None = None,
        jit: bool = False,
        attrs: Mapping[str, str] | None = None,
    ) -> Callable[[F], F]: ...

    def export(
        self,
        name: Any = None,
        /,
        *,
        signature: str | None = None,
        jit: bool = False,
        attrs: Mapping[str, str] | None = None,
    ) -> Any:
        """Decorator: the function can be imported, by its own name unless another is given.

        ``signature`` takes the place of annotations: ``"array, f32 -> array"``, or a calling convention,
        ``"0rf_r"``, whose references are passed as the VM's own objects and spans as lists. ``jit=True``
        compiles a function of numbers with Numba; compiled bytecode then calls it without Python. Its
        integers wrap, as those of the VM do. ``attrs`` are shown as the function's reflection.

        INVALID_ARGUMENT for types that the VM does not have, ALREADY_EXISTS for the same name and convention,
        FAILED_PRECONDITION when the module is in use.

        >>> module = jitree.CustomModule("numbers")
        >>> @module.export("twice", signature="i32 -> i32")
        ... def double(x):
        ...     return x + x
        >>> jitree.Session("local-sync").load(module).twice(21)
        42
        """
        if callable(name):
            return self.export()(name)

        def register(function: F) -> F:
            self._require_unused()
            own_name = function.__name__ if name is None else name
            self._add(self._make(own_name, function, signature, jit, dict(attrs or {})))
            return function

        return register

    def type(self, name: str) -> Callable[[C], C]:
        """Class decorator: instances can be passed as references of a type.

        ``name``: as programs declare it, ``my.counter`` for ``!my.counter``. FAILED_PRECONDITION when the
        module is in use.
        """

        def register(cls: C) -> C:
            self._require_unused()
            self.classes[cls] = name
            return cls

        return register

    def _make(
        self, name: str, function: Callable[..., Any], signature: str | None, jit: bool, attrs: dict[str, str]
    ) -> HostExport:
        skipped = 0 if self._create_value is None or jit else 1
        if signature is not None and signature.startswith("0"):
            convention = parse(signature)
            if jit:
                raise errors.InvalidArgumentError(
                    f"function '{name}': state the types of compiled functions by name"
                )
            return HostExport(name, convention.text, _with_value(function, skipped), attrs)
        if signature is not None:
            types = custom_types.parse_signature(signature)
        else:
            types = custom_types.signature_of(function, skipped, self.classes)
        if jit and not types.is_scalar:
            raise errors.InvalidArgumentError(
                f"function '{name}' is to be compiled, but not all its types are numbers ({types.cconv})"
            )
        self.types[name, types.cconv] = types
        if jit:
            return compiled_export(name, function, types, attrs)
        return HostExport(name, types.cconv, converting(function, types, skipped), attrs)

    def _add(self, export: HostExport) -> None:
        key = export.name, export.cconv
        if key in self._exports:
            raise errors.AlreadyExistsError(
                f"module '{self.name}' exports '{export.name}' with signature '{export.cconv}' already"
            )
        self._exports[key] = export

    def _require_unused(self) -> None:
        if self._used:
            raise errors.FailedPreconditionError(
                f"module '{self.name}' is in use; declare everything before it is loaded"
            )

    # -- as the context sees it ------------------------------------------------------------------------

    def exports(self) -> Iterable[HostExport]:
        """All functions that were declared."""
        return self._exports.values()

    def register_types(self, ref_types: RefTypes) -> None:
        """Registers the classes of :meth:`type` with ``ref_types`` of a context; the module no longer changes
        then.

        ALREADY_EXISTS for a name that another class has.
        """
        self._used = True
        for cls, name in self.classes.items():
            ref_types.register(name, cls)

    def create_state(self, context: ModuleContext) -> object:
        """Makes the module's state in ``context``: what ``state=`` returns. It raises what that raises."""
        value = None if self._create_value is None else self._create_value()
        return ModuleState(value, surroundings_of(context))

    def fork_state(self, state: object, context: ModuleContext) -> object:
        """The value's ``fork()`` if it has such a method, else a new one.

        ``state``: of the context that is forked; ``context``: the new one. It raises what ``fork`` or
        ``state=`` raises.
        """
        assert isinstance(state, ModuleState)
        fork = attribute_of(state.value, "fork")
        return self.create_state(context) if fork is None else ModuleState(fork(), surroundings_of(context))

    def __repr__(self) -> str:
        return f"<jitree.CustomModule {self.name} of {len(self._exports)} functions>"


def require_api_version(version: int, subject: str) -> None:
    """UNIMPLEMENTED if something is written for a newer interface than this package has."""
    if version > API_VERSION:
        raise errors.UnimplementedError(
            f"{subject} is written for version {version} of the interface of custom modules; this jitree has "
            f"version {API_VERSION}: update jitree"
        )


def compiled_export(
    name: str, function: Callable[..., Any], types: custom_types.FunctionType, attrs: Mapping[str, str]
) -> HostExport:
    """Exports a function of numbers as machine code."""
    compiled = custom_types.CompiledFunction(function, types)
    return HostExport(name, types.cconv, compiled.call, attrs, compiled.address)


def surroundings_of(context: ModuleContext) -> custom_types.Surroundings:
    """What conversions need to know of a context."""
    hal = next((module for module in context.modules if isinstance(module, HalModule)), None)
    return custom_types.Surroundings(() if hal is None else hal.devices, context.ref_types)


def _with_value(function: Callable[..., Any], skipped: int) -> Callable[..., Any]:
    """The function as the VM calls it, without conversions."""
    if skipped:
        return lambda state, *arguments: function(state.value, *arguments)
    return lambda state, *arguments: function(*arguments)


def converting(
    function: Callable[..., Any], types: custom_types.FunctionType, skipped: int
) -> Callable[..., Any]:
    """The function as the VM calls it: references converted both ways, numbers as they are. Its state is a
    :class:`ModuleState`."""
    call = _with_value(function, skipped)
    if types.is_scalar:
        return call
    received = [(index, item) for index, item in enumerate(types.arguments) if not item.is_number]
    results = types.results

    def convert_and_call(state: ModuleState, *arguments: object) -> object:
        surroundings = state.surroundings
        values = list(arguments)
        for index, item in received:
            values[index] = custom_types.receive(item, values[index], index, surroundings)
        return _give_all(results, call(state, *values), surroundings)

    return convert_and_call


def _give_all(
    results: tuple[custom_types.ValueType, ...], value: object, surroundings: custom_types.Surroundings
) -> object:
    """What a function returned as the VM takes it; the VM itself checks numbers and how many there are."""
    if len(results) == 1:
        return value if results[0].is_number else custom_types.give(results[0], value, 0, surroundings)
    if not isinstance(value, (tuple, list)) or len(value) != len(results):
        return value
    return tuple(
        given if item.is_number else custom_types.give(item, given, index, surroundings)
        for index, (item, given) in enumerate(zip(results, value, strict=True))
    )
