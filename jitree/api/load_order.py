"""Orders the modules of a session, each after those that it imports from.

They are files as command lines name them (``path[@function][?key=value&…]``), and the host modules that
come with a session. What a module says that found no device is explained here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from jitree import errors
from jitree.api.calls.refusal import listed
from jitree.base.arguments import is_one_of, shown
from jitree.base.platform import UNAME
from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.dispatch.context import WAITING_TIERS
from jitree.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from jitree.hal.device import Device
from jitree.modules.hal import HalModule
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.dispatch.context import ModuleLike
    from jitree.dispatch.host_module import HostModule
    from jitree.hal.executable import ExecutableLoader
    from jitree.modules.hal.module import TraceSink
    from jitree.params.provider import ParameterProvider

IMPORTED_NAME: Final = "jitree_module_"
"""How the names of imported Python files begin, which tells their frames from others in tracebacks."""
_SUFFIXES: Final = (".py", ".so", ".dylib", ".dll")
_REFERENCE: Final = r"(?P<path>.+?\.(?:so|dylib|dll|py))(?:@(?P<function>[^?]*))?(?:\?(?P<query>.*))?"

if TYPE_CHECKING:

    class Host(Protocol):
        """What the modules need of their session."""

        trace_sink: TraceSink | None
        parameter_providers: tuple[ParameterProvider, ...]
        loaders: tuple[ExecutableLoader, ...]

        @property
        def devices(self) -> tuple[Device, ...]: ...
        @property
        def device(self) -> Device: ...


class ModuleReference(NamedTuple):
    """A file of another kind than compiled programs."""

    path: str
    function: str | None
    """The function that makes the module; None = the usual one."""
    parameters: tuple[tuple[str, str], ...]
    """Parameters of the module, in the order given."""

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")


def parse_reference(text: str) -> ModuleReference | None:
    """``lib.so@create?key=value`` or ``module.py``; None for what names neither kind of file.

    INVALID_ARGUMENT for parameters that are not of the form ``key=value``.
    """
    if not any(suffix in text for suffix in _SUFFIXES):
        return None
    match = re.fullmatch(_REFERENCE, text)
    if match is None:
        return None
    parameters = []
    for item in filter(None, (match["query"] or "").split("&")):
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(f"'{text}': parameter '{item}' is not of the form key=value")
        parameters.append((key, value))
    return ModuleReference(match["path"], match["function"] or None, tuple(parameters))


def imported_modules(module: ModuleLike) -> set[str]:
    """Names of the modules that a module imports from or says it depends on."""
    names = {item.full_name.partition(".")[0] for item in module.imports}
    return names | {dependency.name for dependency in module.dependencies}


def ordered(modules: Sequence[ModuleLike]) -> list[ModuleLike]:
    """Orders modules so that each comes after those that it imports from. Others keep the given order. One of
    each name suffices, the first of those given: a second one is for what comes after it.

    INVALID_ARGUMENT, naming the modules, if they import from one another in a circle.
    """
    firsts: dict[str, ModuleLike] = {}
    for module in modules:
        firsts.setdefault(module.name, module)
    ordered: list[ModuleLike] = []
    for module in modules:
        _place(module, firsts, ordered, [])
    return ordered


def _place(
    module: ModuleLike, firsts: Mapping[str, ModuleLike], ordered: list[ModuleLike], path: list[str]
) -> None:
    """Puts a module after what it needs; ``path`` are those that are waiting for it."""
    if any(placed is module for placed in ordered):
        return
    if module.name in path:
        circle = [*path[path.index(module.name) :], module.name]
        raise InvalidArgumentError(
            f"modules import from one another in a circle: {' -> '.join(circle)}; none of them can be first"
        )
    for needed in firsts.values():  # not the set of names: its order changes from run to run
        if needed.name != module.name and needed.name in imported_modules(module):
            _place(needed, firsts, ordered, [*path, module.name])
    ordered.append(module)


def admitted(
    session: Host, modules: Sequence[ModuleLike], present: Sequence[ModuleLike]
) -> Sequence[ModuleLike]:
    """As :func:`fitting`; ALREADY_EXISTS for a module whose name one of ``present``, or another one, has."""
    names = {module.name for module in present}
    for module in modules:
        if module.name in names:
            raise AlreadyExistsError(
                f"a module '{module.name}' is registered already; use another session for the second one, "
                "session.reload to replace the first, or session.link, after which its name means the second"
            )
        names.add(module.name)
    return fitting(session, modules)


_DEVICE_TARGET: Final = r'#hal\.device\.target<"([^"]+)"'
_ORDINAL: Final = r"\bordinal = (\d{1,9})\b"
_FEATURES: Final = b'cpu_features = "'
"""In the same text: what the executables that follow need of the processor."""
_LONGEST_TEXT: Final = 4096
_NONE_FITS: Final = "none of the executable binaries in the module are supported by the runtime"
"""The text of a ``vm.fail`` of programs without devices, and of those of before August 2024."""
_EXECUTABLE_TARGET: Final = r'#hal\.executable\.target<"[^"]+", "([^"]+)"'


@contextmanager
def explained(devices: Sequence[Device], modules: Sequence[ModuleLike]) -> Iterator[None]:
    """Explains a failure of a module's initialiser that passes through the block: nothing fits here."""
    names = [device.id for device in devices]
    try:
        yield
    except errors.IncompatibleError as error:
        error.message = explain_incompatible(error.message, names)
        raise
    except errors.UnavailableError as error:
        if error.message == _NONE_FITS:
            error.message = _explain_unavailable(modules, names)
        raise


def _explain_unavailable(modules: Sequence[ModuleLike], devices: Sequence[str]) -> str:
    """As :func:`explain_incompatible`, for programs that do not say what they were compiled for."""
    from jitree.loaders.processor_needs import executable_formats

    compiled = [module.module for module in modules if isinstance(module, BytecodeModule)]
    formats = ", ".join(dict.fromkeys(name for tables in compiled for name in executable_formats(tables)))
    return (
        f"the module has executables '{formats or 'none'}', and the devices here are: "
        f"{', '.join(devices)} on {UNAME}; {_way_out(formats)}{_NONE_FITS}"
    )


def explain_incompatible(message: str, devices: Sequence[str]) -> str:
    """Explains why no device fits: what the module was compiled for, and what is here."""
    targets = ", ".join(dict.fromkeys(re.findall(_DEVICE_TARGET, message)))
    formats = ", ".join(dict.fromkeys(re.findall(_EXECUTABLE_TARGET, message)))
    if not targets:
        return message
    wanted = max(map(int, re.findall(_ORDINAL, message)), default=0) + 1
    several = f"it runs on {wanted} devices or more, give the session a list of them; "
    return (
        f"the module was compiled for device '{targets}' with executables '{formats or 'none'}', "
        f"and the devices here are: {', '.join(devices)} on {UNAME}; "
        f"{several if wanted > len(devices) else ''}{_way_out(formats)}{message}"
    )


def _way_out(formats: str) -> str:
    """What compiles for this processor; nothing for code that is no library, or one of this processor."""
    from jitree.loaders.elf_format import host_architecture

    here = host_architecture()
    if here is None or "-elf-" not in formats or f"-elf-{here.name}" in formats:
        return ""
    return (
        "compile it for vmvx, which jitree compiles where it runs, or with "
        f"--iree-llvmcpu-target-triple={UNAME}-unknown-linux-gnu; "
    )


def fitting(session: Host, loaded: Sequence[ModuleLike]) -> Sequence[ModuleLike]:
    """Takes executables that this processor can run; FAILED_PRECONDITION for a module that has none."""
    for module in loaded:
        if not isinstance(module, BytecodeModule):
            continue
        code = bytes(module.module.bytecode)
        start = code.find(_FEATURES)
        if start >= 0:
            from jitree.loaders.environment import host_cpu_data

            words = code[start : code.rfind(_FEATURES) + _LONGEST_TEXT].decode("latin-1")
            if host_cpu_data().lacking.isdisjoint(words.replace("+", "").replace('"', ",").split(",")):
                continue
        elif not module.module.has_machine_code:
            continue
        from jitree.api.executable_choice import runnable  # now: most modules are for every processor

        return [runnable(session, each) for each in loaded]
    return loaded


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
    from jitree.modules.hal_inline import HalLoaderModule

    return HalLoaderModule(session.loaders, session.devices[0])


def _hal_images() -> list[image.Recipe]:
    """The machine code that programs with devices need, besides that of the engine."""
    from jitree.hal.local import executor
    from jitree.modules.hal.native import RECIPE

    return [RECIPE, executor.RECIPE] if executor.SUPPORTED else [RECIPE]


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
        for recipe in _hal_images():
            image.get(recipe)  # which has it built in the background unless it is there


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
    """Chooses those of the builtin modules ``names`` that modules import from and lack."""
    wanted = set().union(*[imported_modules(module) for module in modules]).difference(present)
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
