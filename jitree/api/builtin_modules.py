"""The host modules that come with a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from jitree.api.calls.refusal import listed
from jitree.api.load_order import imported_modules
from jitree.base.arguments import is_one_of, shown
from jitree.codegen import image
from jitree.dispatch.context import WAITING_TIERS
from jitree.errors import NotFoundError
from jitree.modules.hal import HalModule

if TYPE_CHECKING:
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.host_module import HostModule
    from jitree.hal.device import Device
    from jitree.hal.executable import ExecutableLoader
    from jitree.modules.hal.module import TraceSink
    from jitree.params.provider import ParameterProvider

    class Host(Protocol):
        """What the modules need of their session."""

        trace_sink: TraceSink | None
        parameter_providers: tuple[ParameterProvider, ...]
        loaders: tuple[ExecutableLoader, ...]

        @property
        def devices(self) -> tuple[Device, ...]: ...
        @property
        def device(self) -> Device: ...


def _hal(session: Host) -> HostModule:
    return HalModule(session.devices, trace_sink=session.trace_sink)


def _vmvx(session: Host) -> HostModule:
    from jitree.modules.vmvx import VmvxModule

    return VmvxModule()


def _io_parameters(session: Host) -> HostModule:
    from jitree.modules.io_parameters import IoParametersModule

    return IoParametersModule(session.parameter_providers)


def _check(session: Host) -> HostModule:
    from jitree.modules.check import CheckModule

    return CheckModule()


def _hal_inline(session: Host) -> HostModule:
    from jitree.modules.hal_inline import HalInlineModule

    return HalInlineModule(
        session.device.host_allocator,
        session.loaders,
        trace_sink=session.trace_sink,
        devices=session.devices,
    )


def _hal_loader(session: Host) -> HostModule:
    from jitree.modules.hal_loader import HalLoaderModule

    return HalLoaderModule(session.loaders, session.devices[0])


def _hal_images() -> list[image.Recipe]:
    """The machine code that programs with devices need, besides that of the engine."""
    from jitree.hal.local import executor
    from jitree.modules.hal.native import RECIPE

    return [RECIPE, executor.RECIPE] if executor.supported() else [RECIPE]


def begin_hal() -> None:
    """Has it built in the background unless it is in the cache."""
    for recipe in _hal_images():
        image.get(recipe)


def start_hal() -> None:
    """Has it built beside that of the engine, before that is waited for."""
    for recipe in _hal_images():
        image.start(recipe)


def wait_for_hal() -> None:
    """Waits for it. UNAVAILABLE if it cannot be built."""
    for recipe in _hal_images():
        image.wait(recipe)


def prepare_hal(tier: str) -> None:
    """What a tier needs of it when the first module comes."""
    if tier in WAITING_TIERS:
        wait_for_hal()
    elif tier == "auto":
        begin_hal()


HAL: Final = "hal"
CHECK: Final = "check"

BUILTIN_MODULES: Final[Mapping[str, Callable[[Host], HostModule]]] = {
    HAL: _hal,
    "vmvx": _vmvx,
    "io_parameters": _io_parameters,
    CHECK: _check,
    "hal_inline": _hal_inline,
    "hal_loader": _hal_loader,
}
"""By name. ``hal`` is there from the start, the others come with the first module that imports from them,
unless a module of that name is registered then."""
WITHOUT_CHECK: Final = tuple(name for name in BUILTIN_MODULES if name != CHECK)
"""For command lines that run programs: there expectations are not imported, as in IREE's tools."""


def builtins_for(
    host: Host, names: Sequence[str], modules: Sequence[ModuleLike], present: Sequence[str]
) -> list[HostModule]:
    """Those of the builtin modules ``names`` that modules import from and that are not ``present``."""
    wanted = set().union(*map(imported_modules, modules)).difference(present)
    return [BUILTIN_MODULES[name](host) for name in names if name in wanted]


def chosen(names: Iterable[str] | None) -> tuple[str, ...]:
    """The names of modules that programs may import, None = all. NOT_FOUND for one that there is not."""
    if names is None:
        return tuple(BUILTIN_MODULES)
    found = listed("builtin_modules", "names", names)
    for name in found:
        if not is_one_of(name, BUILTIN_MODULES):
            raise NotFoundError(f"no builtin module {shown(name)}; there are: {', '.join(BUILTIN_MODULES)}")
    return found
