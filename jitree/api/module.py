"""Gives Python the functions of a module, and calls them step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from jitree.api.calls.declaration import (
    TORCH_ASYNC_SUFFIX,
    TRANSIENTS,
    Signature,
    signature_of,
    without_twins,
)
from jitree.api.calls.refusal import describe
from jitree.api.function import Function
from jitree.base.arguments import is_a
from jitree.base.finalizers import Remade, Unique
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, folded, printable

if TYPE_CHECKING:
    from jitree.api.function import Owner
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.function import VmFunction as VmFunction
    from jitree.vmfb.schema import Dependency

_HIDDEN: Final = "__"
"""How names begin that are not for callers: ``__init`` and the like."""
_MOST_SHOWN: Final = 200
"""Functions, where a module is shown: each takes longer the more there are."""


class Call(Unique):
    """Calls a function repeatedly with inputs and outputs of its own, on one thread.

    Fill ``inputs``, ``invoke()``, take ``outputs``, and again. ``function``: of a module. INVALID_ARGUMENT
    for anything but a :class:`jitree.Function`.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
    >>> call = jitree.Call(digits.classify)
    >>> call.push(np.zeros((8, 8), np.float32))
    >>> call.invoke()
    >>> call.pop().shape
    (10,)
    """

    def __init__(self, function: Function) -> None:
        if not isinstance(function, Function):
            raise InvalidArgumentError(f"Call: expected a jitree.Function but got {describe(function)}")
        self.function = function
        """The function that it calls."""
        self.inputs: list[Any] = []
        """Arguments of the next :meth:`invoke`."""
        self.outputs: list[Any] = []
        """Results of the last :meth:`invoke`."""

    @folded
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """As the function itself."""
        return self.function(*arguments, **named)

    def push(self, value: Any) -> None:
        """Appends an argument for the next :meth:`invoke`.

        ``value``: what the function takes there: an array, a number, a list. It is looked at by
        :meth:`invoke`, which raises INVALID_ARGUMENT for what does not fit.
        """
        self.inputs.append(value)

    def pop(self) -> Any:
        """Takes the first result that is left. IndexError when there is none."""
        return self.outputs.pop(0)

    def invoke(self) -> None:
        """Calls the function with ``inputs``; its results are in ``outputs`` then.

        It raises what the function fails with, and ``outputs`` is empty then; ``inputs`` stay as they are.
        """
        self.outputs = []
        results = self.function(*self.inputs)
        count = len(self.function.results)
        self.outputs = [] if count == 0 else [results] if count == 1 else list(results)

    def reset(self) -> None:
        """Drops inputs and outputs."""
        self.inputs = []
        self.outputs = []

    def __repr__(self) -> str:
        return f"<jitree.Call of {self.function.full_name}>"


class Module(Remade):
    """A module loaded into a session: its exported functions are attributes and items. Made by
    :meth:`Session.load`.

    ``module["name"]`` reaches those whose names modules have an attribute of. ``for name in module``, ``len``
    and ``in`` are about names of functions; ``print(module)`` shows declarations with types and shapes.
    AttributeError, and NOT_FOUND for items, with the names that there are.

    >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
    >>> list(digits)
    ['classify']
    >>> digits.classify is digits["classify"]
    True
    """

    _session: Owner
    _module: ModuleLike
    _functions: dict[str, Function]
    _names: tuple[str, ...]

    def __init__(self, session: Owner, module: ModuleLike) -> None:
        names = tuple(name for name in module.export_names() if not name.startswith(_HIDDEN))
        self.__dict__.update(_session=session, _module=module, _functions={}, _names=names)

    @property
    def name(self) -> str:
        """The name by which others import from it, ``module @name`` in the source."""
        return self._module.name

    @property
    def version(self) -> int:
        """The version that the module states, 0 if none."""
        return self._module.version

    @property
    def session(self) -> Any:
        """The :class:`jitree.Session` that it was loaded into."""
        return self._session

    @property
    def names(self) -> tuple[str, ...]:
        """Exported functions, without ``__init`` and the like."""
        return self._names

    @property
    def signatures(self) -> dict[str, Signature]:
        """The signature of every exported function by name: types and shapes of what it takes and gives."""
        return {name: self[name].signature for name in self._names}

    @property
    def reflection(self) -> dict[str, str]:
        """Attributes that the compiler attached to the module, by key."""
        return {attr.key: attr.value for attr in self._module.attrs}

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """Modules that it needs, with their minimum versions."""
        return tuple(self._module.dependencies)

    @property
    def vm_module(self) -> ModuleLike:
        """The module that was read, as ``session.append_module`` takes it."""
        return self._module

    def __getitem__(self, name: str) -> Function:
        """An exported function by its name, with or without the module's. NOT_FOUND with those there are."""
        if not is_a(name, str):
            raise NotFoundError(
                f"functions of module '{self.name}' have names, not {type(name).__name__} keys"
            )
        function = self._functions.get(name)
        if function is None:
            local = name.removeprefix(f"{self.name}.") if name not in self._names else name
            if local not in self._names:
                raise NotFoundError(
                    f"no function '{name}' exported by module '{self.name}'; it exports "
                    f"{', '.join(self._names) or 'none'}"
                )
            function = self._functions[name] = self._session._found(
                lambda context: context.function_of(self._module, local)
            )
        return function

    @folded
    def __getattr__(self, name: str) -> Function:
        if name not in self.__dict__.get("_names", ()):
            raise AttributeError(
                f"module '{self.name}' has no attribute or function '{name}'; it exports "
                f"{', '.join(self._names) or 'none'}"
            )
        function = self[name]
        self.__dict__[name] = function  # the next look-up does not come here
        return function

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"module '{self.name}' does not change: '{name}' cannot be set. Keep your function in a variable "
            "or of another name"
            if name in self._names
            else f"module '{self.name}' does not change: it has no attribute '{name}' that can be set"
        )

    def _ipython_key_completions_(self) -> tuple[str, ...]:
        return self._names

    def _repr_html_(self) -> str:
        from jitree.api.showing import module_html

        return module_html(self)

    def __dir__(self) -> Sequence[str]:
        return sorted({*super().__dir__(), *self._names})

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return is_a(name, str) and name in self._names

    def __repr__(self) -> str:
        """Shows the module, also while its session closes or before it is loaded completely."""
        names = without_twins(self._names)
        try:
            lines = [f"  {self[name].declaration}" for name in names[:_MOST_SHOWN]]
        except StatusError as error:
            lines = [f"  {', '.join(names[:_MOST_SHOWN])}; {error.message}"]
        lines.insert(0, f"<jitree.Module {self.name} of {len(names)} functions")
        if len(names) > _MOST_SHOWN:
            lines.append(f"  and {len(names) - _MOST_SHOWN} more: module.names has all")
        hidden = ", ".join(f"module[{name!r}]" for name in names if hasattr(Module, name))
        if hidden:
            lines.append(f"  names that modules have an attribute of: {hidden}")
        return printable("\n".join(lines)) + ">"


def create_function(session: Owner, vm_function: VmFunction) -> Function:
    """The function as Python calls it: by its calling convention and what the compiler declared."""
    signature = signature_of(vm_function.name, vm_function.convention, vm_function.attrs)
    if signature.fences:
        from jitree.api.asynchronous import AsynchronousFunction

        return AsynchronousFunction(session, vm_function, signature)
    if vm_function.name + TORCH_ASYNC_SUFFIX in vm_function.module.export_names():
        from jitree.api.asynchronous import PairedFunction

        counterpart = session.context.function_of(vm_function.module, vm_function.name + TORCH_ASYNC_SUFFIX)
        stated = {key: text for key, text in counterpart.attrs.items() if key.startswith(TRANSIENTS)}
        signature = signature_of(vm_function.name, vm_function.convention, {**stated, **vm_function.attrs})
        return PairedFunction(session, vm_function, signature)
    return Function(session, vm_function, signature)
