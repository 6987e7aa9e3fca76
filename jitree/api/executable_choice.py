"""Chooses among several formats of a module's executables (``prefer=``).

``"fastest"`` measures each function of the executables in each format, in calls with made-up arguments, when
a module is first loaded. The formats of the faster ones are kept in the cache, for this module, processor and
number of threads. Last bits of results may depend on the format, so the choice is made before the first call,
and stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX
from jitree.api.program_files import asserted_by
from jitree.base.cancel_scopes import deadline
from jitree.base.events import DISPATCH
from jitree.codegen.image import Recipe, cache
from jitree.codegen.image.flat import FlatImage, hashed
from jitree.codegen.image.keys import key_of
from jitree.dispatch.variants import AssertedTensor, Variants, find_variants, with_formats
from jitree.errors import FailedPreconditionError, StatusError, ignored
from jitree.loaders.elf_format import host_architecture
from jitree.types import element_type
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter
    from jitree.api.function import Function
    from jitree.api.module import Module
    from jitree.dispatch.context import ModuleLike
    from jitree.hal.device import Device
    from jitree.params.provider import ParameterProvider

    class Loading(Protocol):
        """Gives a choice what it needs of the session that loads a module. Others of its kind measure."""

        @property
        def device(self) -> Device: ...
        @property
        def devices(self) -> tuple[Device, ...]: ...

        parameter_providers: tuple[ParameterProvider, ...]


FASTEST: Final = "fastest"
BACKENDS: Final = {"llvm-cpu": ("embedded-elf-", "system-elf-"), "vmvx": ("vmvx-",)}
"""How the names of the formats begin that a backend of the compiler makes."""
PREFERENCES: Final = (*BACKENDS, FASTEST)

_CALLS: Final = 5
"""How often each function is called in each format to measure it."""
_ENOUGH_SECONDS: Final = 0.5
_ANY_SIZE: Final = 64
"""The size taken for dimensions that may have any."""
_MOST_SECONDS: Final = 20.0
"""That calls of a function may take: made-up arguments may make a program loop."""

Times = dict[str, int]
"""Nanoseconds of a call, by name of a dispatched function."""


class Preference:
    """What a session prefers."""

    def __init__(self, prefer: str, arithmetic: str) -> None:
        self._prefer = prefer
        self._arithmetic = arithmetic

    def chosen(self, session: Loading, module: ModuleLike) -> ModuleLike:
        """The module with the preferred formats; as it is where it has no choice."""
        if not isinstance(module, BytecodeModule) or len(session.devices) != 1:
            return module
        variants = find_variants(module)
        if variants is None:
            return module
        device = session.device
        taken = [name for name in variants.formats if _takes(device, name)]
        if not taken:
            return module
        formats = None
        if self._prefer == FASTEST:
            formats = self._fastest(session, module, variants, taken) if len(taken) > 1 else None
        else:
            wanted = next((name for name in taken if name.startswith(BACKENDS[self._prefer])), taken[0])
            formats = [wanted] * len(variants.executables)
        return module if formats is None else with_formats(module, variants, formats)

    def _fastest(
        self, session: Loading, module: BytecodeModule, variants: Variants, taken: Sequence[str]
    ) -> Sequence[str] | None:
        """The format of each executable; None if the module cannot be measured."""
        place = _place_of(session.device)
        if place is None:
            return None
        recipe = Recipe(
            "formats",
            f"the faster formats of {len(variants.executables)} executables of module '{module.name}'",
            "",
            0.0,
            (hashed((module.module.archive.data,)), f"{place} {self._arithmetic} {taken}".encode()),
        )
        key = key_of(recipe)
        formats = _remembered(recipe, key)
        if formats is None:
            times = {name: self._measured(session, place, module, variants, name) for name in taken}
            formats = fastest(variants, times)
            if formats is not None:
                _remember(recipe, key, formats)
        return formats

    def _measured(
        self, session: Loading, place: str, module: BytecodeModule, variants: Variants, name: str
    ) -> Times:
        """What dispatches take where all executables have one format. A module that does not run by itself is
        not measured."""
        chosen = with_formats(module, variants, [name] * len(variants.executables))
        times: Times = {}
        open_session: Any = type(session)
        options = {"parameters": session.parameter_providers, "arithmetic": self._arithmetic}
        with suppress(StatusError), open_session(place, tier="native", **options) as own:
            loaded = own.load(chosen)
            for function, arguments in _measurable(loaded, chosen):
                with suppress(StatusError), deadline(_MOST_SECONDS):
                    _add(times, _times_of(own, function, arguments))
        return times


def runnable(session: Loading, module: ModuleLike) -> ModuleLike:
    """The module with executables whose code this processor can run; as it is where all are.

    FAILED_PRECONDITION where it has none for the session's devices.
    """
    if not isinstance(module, BytecodeModule):
        return module
    from jitree.loaders.processor_needs import need_of, targets

    variants = find_variants(module)
    stated = [target.format for target in targets(module.module)]
    formats = variants.formats if variants is not None else tuple(dict.fromkeys(stated)) or _native_formats()
    taken = [name for name in formats if any(_takes(device, name) for device in session.devices)]
    needs = {name: need_of(module.module, name) for name in taken if name.startswith(BACKENDS["llvm-cpu"])}
    unfit = [need for need in needs.values() if need is not None]
    if not unfit:
        return module
    fit = next((name for name in taken if needs.get(name) is None), None)
    if variants is None or fit is None:
        raise FailedPreconditionError(f"module '{module.name}' {unfit[0].refusal()}")
    return with_formats(module, variants, [fit] * len(variants.executables))


def _native_formats() -> tuple[str, ...]:
    architecture = host_architecture()
    return (
        () if architecture is None else tuple(f"{start}{architecture.name}" for start in BACKENDS["llvm-cpu"])
    )


def fastest(variants: Variants, times: Mapping[str, Times]) -> list[str] | None:
    """By executable, the format in which its functions take the least time; the first one for executables
    that were not measured in each. None if none was."""
    formats: list[str] = []
    found = False
    for executable in variants.executables:
        functions = executable.functions
        if functions and all(functions <= measured.keys() for measured in times.values()):
            found = True
            sums = {name: sum(map(measured.__getitem__, functions)) for name, measured in times.items()}
            formats.append(min(sums, key=sums.__getitem__))
        else:
            formats.append(next(iter(times)))
    return formats if found else None


def _takes(device: Device, name: str) -> bool:
    return device.query_i64("hal.executable.format", name) == (True, 1)


def _place_of(device: Device) -> str | None:
    """A device like one that programs run on; None for those that are not measured on."""
    if device.uri.startswith("local-sync"):
        return "local-sync"
    return f"local-task://?threads={device.threads}" if device.uri.startswith("local-task") else None


# -- measuring ---------------------------------------------------------------------------------------------


def _measurable(module: Module, compiled: BytecodeModule) -> Iterator[tuple[Function, list[Any]]]:
    """The functions of a module for which arguments can be made up, and these."""
    for name in module.names:
        if name.removesuffix(TORCH_ASYNC_SUFFIX) != name:
            continue  # the function without the suffix calls it
        function = module[name]
        asserted = asserted_by(compiled, name)
        examples = [_example(*each, asserted) for each in enumerate(function.arguments)]
        if all(each is not None for each in examples):
            yield function, examples


def _example(position: int, parameter: Parameter, asserted: Mapping[int, AssertedTensor]) -> Any:
    """Zeros of integers, which may be indices, and ones; None for what cannot be made up."""
    if parameter.storage_of is not None or parameter.workspace is not None:
        return None
    tensor = asserted.get(position)
    if tensor is None:
        return 1 if parameter.tensor is None and not parameter.type.startswith("!") else None
    element = element_type(tensor.element_type)
    if element.bits < 8:
        return None
    shape = [_ANY_SIZE if size is None else size for size in tensor.shape]
    return np.full(shape, 0 if element.dtype.kind in "iub" else 1, element.dtype)


def _times_of(session: Any, function: Function, arguments: Sequence[Any]) -> Times:
    """The least of several calls, by dispatch."""
    function(*arguments)
    least: Times = {}
    begun = perf_counter()
    for _ in range(_CALLS):
        with session.profile() as profile:
            function(*arguments)
        took: Times = {}
        dispatches = (each for each in profile.commands if each.kind == DISPATCH)
        _add(took, ((each.name, each.ended - each.begun) for each in dispatches))
        least = {name: min(duration, least.get(name, duration)) for name, duration in took.items()}
        if perf_counter() - begun > _ENOUGH_SECONDS:
            break
    return least


def _add(times: Times, more: Times | Iterable[tuple[str, int]]) -> None:
    for name, duration in more.items() if isinstance(more, dict) else more:
        times[name] = times.get(name, 0) + duration


# -- remembering -------------------------------------------------------------------------------------------


def _remembered(recipe: Recipe, key: bytes) -> list[str] | None:
    kept = cache.load(recipe, key)
    if kept is None:
        return None
    formats: list[str] = json.loads(kept.notes)
    return formats


def _remember(recipe: Recipe, key: bytes, formats: Sequence[str]) -> None:
    """A folder that refuses has the next session measure again."""
    with ignored(OSError):
        cache.store(recipe, key, FlatImage(b"", b"", {}, json.dumps(formats).encode()))
