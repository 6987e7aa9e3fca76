"""Puts arguments with names, and ``out=``, in the order of the declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitree.api.calls.declaration import OUT, TIMEOUT, TRANSIENTS, WORKSPACE, Signature, storage_names
from jitree.errors import InvalidArgumentError, StatusError

if TYPE_CHECKING:
    from jitree.hal.device import Device


class ArgumentOrder:
    """Puts arguments of one function in order. With ``out=`` those by position are the others, unless it is
    None."""

    __slots__ = ("_declaration", "_device", "_function", "_names", "_storage_names", "_workspace")

    def __init__(self, signature: Signature, function: str, device: Device) -> None:
        self._declaration = signature.declaration
        self._function = function
        self._device = device
        self._names = tuple(parameter.name for parameter in signature.arguments)
        self._storage_names = storage_names(signature)
        self._workspace = signature.workspace

    def __call__(self, /, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        """INVALID_ARGUMENT for names that there are not, those given twice, and missing ones."""
        if self.limits(named):
            return (None,) * (len(self._names) + 1)  # to machine code: Python makes the call
        try:
            return self._ordered(arguments, named)
        except StatusError as error:
            error.with_context(f"invoking function '{self._function}'").with_context(f"`{self._declaration}`")
            raise

    def limits(self, named: dict[str, Any]) -> bool:
        """Whether ``timeout`` is among them, and not the name of an argument."""
        return TIMEOUT in named and TIMEOUT not in self._names

    def _ordered(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        given = names = self._names
        if OUT not in names and named.get(OUT, named) is None:
            del named[OUT]
        keywords = [name for name in (WORKSPACE, OUT) if name in named]
        storage: dict[str, Any] = {}
        if WORKSPACE in named and WORKSPACE not in names:
            storage[self._require_workspace()] = named.pop(WORKSPACE)
        if OUT in named and OUT not in names:
            from jitree.api.calls.storage_arguments import storage_of  # only calls with it need that

            storage |= storage_of(self._storage_names, named.pop(OUT), self._device)
        if storage:
            given = tuple(name for name in names if name not in storage)
            if len(arguments) > len(given):
                what = f"expected {len(given)} arguments and {' and '.join(keywords)}"
                raise InvalidArgumentError(f"{what} but passed {len(arguments)}")
        values = {**storage, **dict(zip(given, arguments, strict=False))}
        for name, value in named.items():
            if name in values:
                raise InvalidArgumentError(f"argument '{name}' is given twice")
            if name not in names:
                known = ", ".join(names) or "none"
                raise InvalidArgumentError(f"argument '{name}' is unknown; there are: {known}")
            values[name] = value
        if self._workspace is not None and self._workspace not in values:
            raise InvalidArgumentError(
                f"the program needs memory for what it computes in between; pass {WORKSPACE}="
                "session.empty(function.workspace_size(...), numpy.uint8)"
            )
        missing = [name for name in names if name not in values]
        if missing:
            what = f"expected {len(names)} arguments but passed {len(values)}; missing: {', '.join(missing)}"
            raise InvalidArgumentError(what)
        return (*map(values.__getitem__, names), *arguments[len(given) :])

    def _require_workspace(self) -> str:
        if self._workspace is None:
            raise InvalidArgumentError(
                f"{WORKSPACE}: the program takes no memory for what it computes in between; compile it with "
                f"an argument that has `{TRANSIENTS}`"
            )
        return self._workspace
