"""How much memory a function needs from its caller for what it computes in between (``workspace=``).

Compilers state a size, or the name of a function of the module that computes it from the same arguments.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from jitree.api.calls.declaration import DEPENDS, OUT, TRANSIENTS, WORKSPACE, Parameter, storage_names
from jitree.api.calls.number_packing import number_packer
from jitree.api.calls.overlaps import shares_memory
from jitree.api.calls.reference_packing import require_workspace
from jitree.api.calls.refusal import describe
from jitree.base.arguments import shown
from jitree.errors import InvalidArgumentError, NotFoundError, attribute_of, own_error, pass_interruption
from jitree.hal.buffer import Buffer, BufferView
from jitree.types import ENCODING_OPAQUE

if TYPE_CHECKING:
    from typing import Protocol

    from jitree.api.calls.declaration import Signature
    from jitree.api.calls.known_sizes import KnownSizes
    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.invocation import Invoker
    from jitree.hal.device import Device

    class MeasuredFunction(Protocol):
        """What is asked of a function."""

        signature: Signature

        @property
        def name(self) -> str: ...
        @property
        def vm_function(self) -> VmFunction: ...
        @property
        def invoker(self) -> Invoker: ...
        @property
        def session(self) -> Any: ...
        @property
        def device(self) -> Device: ...


def workspace_size(function: MeasuredFunction, shapes: tuple[Any, ...], named: dict[str, Any]) -> int:
    """As :meth:`Function.workspace_size`."""
    signature = function.signature
    size = next((item.workspace for item in signature.arguments if item.workspace is not None), 0)
    if size != DEPENDS:
        return size
    given = _by_name(function, shapes, named)
    return _measured(function, [
        _stand_in(parameter, str(item), given.get(parameter.name), function)
        for parameter, item in zip(
            signature.arguments, function.vm_function.convention.arguments, strict=False
        )
    ])  # fmt: skip


def require_enough(function: MeasuredFunction, packed: list[object], sizes: KnownSizes) -> None:
    """INVALID_ARGUMENT if the memory is too small for a call, or also that of another argument. ``sizes``:
    those of earlier calls."""
    values = list(packed)
    arguments = function.signature.arguments
    position = [item.workspace is not None for item in arguments].index(True)
    memory, values[position] = values[position], None
    for parameter, value in zip(arguments, values, strict=False):
        if shares_memory(memory, [value]):
            raise InvalidArgumentError(
                f"{WORKSPACE}: its memory is also that of {parameter.name}, which the program would "
                "overwrite; pass memory that nothing else lies in, such as session.empty(size, numpy.uint8)"
            )
    if function.signature.measure is None:  # one size for all calls, which the packer knows
        return
    key = sizes.key(values)
    size = sizes.get(key)
    if size is None:
        size = _measured(function, values)
        sizes.remember(key, size)
    assert isinstance(memory, Buffer)
    require_workspace(memory, size)


def _measured(function: MeasuredFunction, values: list[object]) -> int:
    """What the function that the compiler made for it says. NOT_FOUND without one."""
    name = function.signature.measure
    if name is None:
        raise NotFoundError(
            f"'{function.name}' does not say how much memory it needs: it was compiled without "
            f"{TRANSIENTS}.size"
        )
    measure = function.session.context.function_of(function.vm_function.module, name)
    fences = [None] * (len(measure.convention.arguments) - len(values))
    return sum(function.invoker.invoke(measure, [*values, *fences]))


def _by_name(function: MeasuredFunction, shapes: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """INVALID_ARGUMENT for more shapes than arguments, and for unknown names."""
    signature = function.signature
    names = [parameter.name for parameter in signature.arguments if parameter.name != signature.workspace]
    given = dict(named)
    out = None if OUT in names else given.pop(OUT, None)
    if out is not None:
        storage = storage_names(signature)
        several = out if len(storage) > 1 else (out,)
        if not storage or len(storage) != len(several):
            raise InvalidArgumentError(f"{OUT}: expected {len(storage)} shapes but got {shown(out)}")
        given |= dict(zip(storage, several, strict=True))
        names = [name for name in names if name not in storage] + list(storage)
    unknown = [name for name in given if name not in names]
    if unknown or len(shapes) > len(names):
        what = f"argument '{unknown[0]}' is unknown" if unknown else f"{len(shapes)} shapes were given"
        raise InvalidArgumentError(
            f"workspace_size: {what}; `{signature.declaration}` has: {', '.join(names) or 'none'}"
        )
    twice = [name for name in names[: len(shapes)] if name in given]
    if twice:
        raise InvalidArgumentError(f"workspace_size: argument '{twice[0]}' is given twice")
    return given | dict(zip(names, shapes, strict=False))


def _stand_in(parameter: Parameter, item: str, given: Any, function: MeasuredFunction) -> object:
    """What the function that computes the size takes for an argument: it looks at shapes and numbers only, so
    arrays need no memory."""
    tensor = parameter.tensor
    if parameter.name == function.signature.workspace:
        return None
    if item != "r":
        if given is None:
            raise InvalidArgumentError(f"workspace_size: the number {parameter.name} is missing")
        return number_packer(parameter, item).pack(given)
    if given is None and tensor is not None and None not in tensor.shape:
        given = tensor.shape
    if given is None:
        raise InvalidArgumentError(f"workspace_size: the shape of {parameter.name} is missing")
    try:
        shape = tuple(map(operator.index, attribute_of(given, "shape", given)))
    except TypeError as error:
        pass_interruption(error)
        raise InvalidArgumentError(
            f"workspace_size: {parameter.name}: expected a shape but got {describe(given)}"
        ) from own_error(error)
    expected = shape if tensor is None else tensor.shape
    if len(shape) != len(expected) or any(
        want not in (None, have) for want, have in zip(expected, shape, strict=True)
    ):
        raise InvalidArgumentError(
            f"workspace_size: {parameter.name} is a {tensor} but the shape is {describe(given)}"
        )
    row = None if tensor is None else tensor.element_type
    nothing = function.device.device_allocator.allocate(0, 0, 0)
    return BufferView(nothing, shape, 0 if row is None else row.code, ENCODING_OPAQUE)
