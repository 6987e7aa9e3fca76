"""Loads a program by flags: devices, session, modules, the function to call.

With ``--sandbox`` the session of the sandbox opens devices and files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlencode

from jitree import errors
from jitree.api.calls.declaration import without_twins
from jitree.errors import InvalidArgumentError
from jitree.tools.flags import ParsedFlags
from jitree.tools.observe_flags import check_flags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jitree.api.function import Function
    from jitree.api.module import Module
    from jitree.api.sandbox import Limits
    from jitree.api.session import Session
    from jitree.dispatch.context import ModuleLike
    from jitree.hal.device import Device
    from jitree.params import ParameterProvider

STANDARD_INPUT: Final = "-"
"""The path of a module that means standard input."""
_MEMORY: Final = ("zero_memory", "guard_pages")
_KINDS: Final = {None: False, "false": False, "0": False, "": True, "true": True, "1": True}


def is_confined(flags: ParsedFlags) -> bool:
    """Whether any of the flags is given: the session opens what it needs itself."""
    return "sandbox" in flags.values and bool(
        _sandbox(flags) or flags.texts("limit") or any(flags.boolean(name) for name in _MEMORY)
    )


def _sandbox(flags: ParsedFlags) -> bool | str:
    text = flags.optional("sandbox")
    return _KINDS.get(text, str(text))


def open_session(
    flags: ParsedFlags, stack: ExitStack, parameters: Mapping[str, str]
) -> tuple[Session, Module]:
    """A session with the modules that the flags name, and the last of these.

    ``parameters`` are those of ``local-task``.

    Archives are the host's to open: their paths stand on the command line. A compiler may write them while
    standard input is read.
    """
    from jitree.api.load_order import WITHOUT_CHECK
    from jitree.api.session import Session
    from jitree.params import Mode, open_providers

    limits = _limits(flags.texts("limit"))
    modules = [
        _read_standard_input(limits) if path == STANDARD_INPUT else path for path in flags.texts("module")
    ]
    uris = flags.texts("device") or ["local-task"]
    if parameters:
        uris = [f"{uri}?{urlencode(parameters)}" if uri == "local-task" else uri for uri in uris]
    session = Session(
        uris if len(uris) > 1 else uris[0],
        sandbox=_sandbox(flags),
        limits=limits,
        parameters=open_providers(flags.texts("parameters"), Mode(flags.text("parameter_mode"))),
        tier=flags.text("tier") or None,
        arithmetic=flags.text("arithmetic"),
        prefer=flags.text("prefer") or None,
        executable_plugins=flags.texts("executable_plugin"),
        zero_memory=flags.boolean("zero_memory"),
        guard_pages=flags.boolean("guard_pages"),
        builtin_modules=WITHOUT_CHECK,
    )
    stack.enter_context(session)
    return session, session.link(*modules, compiled=flags.text("compiled") or None)[-1]


def _read_standard_input(limits: Limits | None) -> memoryview:
    """A module; of one that is larger than the limit no more than shows that."""
    from jitree.vmfb.archive import content, loading, standard_input

    most = None if limits is None else limits.load_size
    with loading("<standard input>"):
        return content(standard_input(), -1 if most is None else most + 1)


def _limits(texts: list[str]) -> Limits | None:
    from jitree.api.sandbox import Limits

    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in Limits._fields:
            raise InvalidArgumentError(
                f"flag 'limit': there is no limit '{name}'; there are: {', '.join(Limits._fields)}"
            )
        try:
            values[name] = float(number) if "." in number else int(number)
        except ValueError:
            raise InvalidArgumentError(f"flag 'limit': '{text}' is not of the form <name>=<number>") from None
    return Limits(**values) if values else None  # type: ignore[arg-type]  # checked by the session


_PARAMETERS: Final = "io_parameters"
"""The module that gives programs their parameters."""
_ALLOCATORS: Final = ("caching", "debug")
_TASK_DRIVER: Final = "local-task"
_OF_WORKERS: Final = ("task_topology_", "task_worker_")
"""How names of flags about the workers of that driver begin."""


class OpenedProgram(NamedTuple):
    """Modules in a session; the last one is the program."""

    session: Session
    module: Module
    devices: tuple[Device, ...]


@contextmanager
def open_program(flags: ParsedFlags) -> Iterator[OpenedProgram]:
    """Opens the devices and loads the modules that the flags name; closes all at the end, and prints the
    statistics that the flags ask for."""
    if "device_profiling_mode" in flags.values:
        check_flags(flags)
    with ExitStack() as stack:
        with errors.error_context("creating run context"):
            opened = _open(flags, stack)
        yield opened


def _open(flags: ParsedFlags, stack: ExitStack) -> OpenedProgram:
    _check_allocators(flags.texts("device_allocator"))
    if is_confined(flags):
        session, module = open_session(flags, stack, task_parameters(flags))
        stack.callback(show_statistics, flags, session.devices)
        return OpenedProgram(session, module, session.devices)
    loaded = read_modules(flags)
    devices = open_devices(flags, stack)
    stack.callback(show_statistics, flags, devices)  # when the session has let go of its memory
    session = stack.enter_context(create_session(flags, devices, loaded))
    return OpenedProgram(session, load_modules(session, loaded, flags.text("compiled")), devices)


def _check_allocators(specifications: Sequence[str]) -> None:
    for text in specifications:
        if text.partition(":")[0] not in _ALLOCATORS:
            raise InvalidArgumentError(
                f"unrecognized allocator '{text}'; there are: {', '.join(_ALLOCATORS)}"
            )


def read_modules(flags: ParsedFlags) -> list[ModuleLike]:
    """The modules that the flags name, not yet linked; the last one is the program."""
    paths = flags.texts("module")
    if not paths:
        raise errors.InvalidArgumentError(
            "no module was given; name one: --module=program.vmfb (`-` is standard input)"
        )
    return [_read_module(path, flags.text("module_mode")) for path in paths]


def create_session(flags: ParsedFlags, devices: Sequence[Device], loaded: Sequence[ModuleLike]) -> Session:
    """Creates a session by flags, for modules that are not yet in it.

    Archives are opened only for modules that read parameters: a compiler writes none for a program whose
    constants it keeps, and the flag that names it is there all the same."""
    from jitree.api.load_order import WITHOUT_CHECK, imported_modules
    from jitree.api.session import Session
    from jitree.dispatch.context import ContextFlags

    archives = flags.texts("parameters")
    if not any(_PARAMETERS in imported_modules(module) for module in loaded):
        archives = []
    return Session(
        devices,
        parameters=_providers(archives, flags) if archives else (),
        tier=flags.text("tier") or None,
        arithmetic=flags.text("arithmetic"),
        prefer=flags.text("prefer") or None,
        flags=ContextFlags.TRACE_EXECUTION if flags.boolean("trace_execution") else ContextFlags.NONE,
        executable_plugins=flags.texts("executable_plugin"),
        builtin_modules=WITHOUT_CHECK,
    )


def _providers(archives: Sequence[str], flags: ParsedFlags) -> Sequence[ParameterProvider]:
    from jitree.params import Mode, open_providers  # slow to import, and most programs have none

    return open_providers(archives, Mode(flags.text("parameter_mode")))


def load_modules(session: Session, loaded: Sequence[ModuleLike], compiled: str = "") -> Module:
    """Loads modules, with machine code if there is some, and gives the last one. Others in the session may
    have its name."""
    return session.link(*loaded, compiled=compiled or None)[-1]


def _read_module(path: str, mode: str) -> ModuleLike:
    from jitree.api.load_order import parse_reference
    from jitree.api.session import Instance
    from jitree.vmfb.decode import BytecodeModule

    reference = parse_reference(path)
    if reference is not None:
        from jitree.api.module_files import open_module_file  # slow to import

        return open_module_file(reference, Instance.default().ref_types)
    if path == STANDARD_INPUT:
        from jitree.vmfb.archive import standard_input

        return BytecodeModule.load(standard_input(), "<standard input>")
    if mode == "preload" and Path(path).is_file():
        return BytecodeModule.load(Path(path).read_bytes(), path)
    return BytecodeModule.load(path)


# -- devices -----------------------------------------------------------------------------------------


def open_devices(flags: ParsedFlags, stack: ExitStack) -> tuple[Device, ...]:
    """The devices that the flags name, closed with ``stack``; without any, the first that can be created."""
    from jitree.api.resources import DEFAULT_DEVICES
    from jitree.api.session import Instance

    instance = Instance.default()
    parameters = task_parameters(flags)
    loaders = instance.loaders_with(
        flags.text("tier") or None, flags.texts("executable_plugin"), arithmetic=flags.text("arithmetic")
    )

    def create(uri: str) -> Device:
        if uri == "cuda" and "cuda_default_index" in flags.given:
            uri = f"cuda://{flags.integer('cuda_default_index')}"
        return instance.create_device(uri, parameters if uri.startswith(_TASK_DRIVER) else None, loaders)

    uris = flags.texts("device")
    if uris:
        return tuple(stack.enter_context(create(uri)) for uri in uris)
    reasons = []
    for name in DEFAULT_DEVICES:
        try:
            return (stack.enter_context(create(name)),)
        except (errors.NotFoundError, errors.UnavailableError) as error:
            reasons.append(f"{name}: {error}")
    raise errors.UnavailableError(
        f"no device can be created; {'; '.join(reasons)}; name one: --device=local-sync"
    )


def task_parameters(flags: ParsedFlags) -> Mapping[str, str]:
    """What the flags say about the workers of ``local-task``, as parameters of its URI."""
    parameters: dict[str, str] = {
        name: str(flags.values[name])
        for name in flags.values
        if name in flags.given and name.startswith(_OF_WORKERS) and isinstance(flags.values[name], (int, str))
    }
    if parameters.get("task_worker_spin_us") == "0":
        del parameters["task_worker_spin_us"]
    if flags.texts("task_topology_cpu_ids"):
        parameters["task_topology_cpu_ids"] = ";".join(flags.texts("task_topology_cpu_ids"))
    return parameters


def show_statistics(flags: ParsedFlags, devices: Sequence[Device]) -> None:
    """Prints the memory statistics of devices if ``--print_statistics`` is given."""
    if flags.boolean("print_statistics"):
        for device in devices:
            sys.stderr.write(f"Device: {device.id}\n{device.device_allocator.formatted_statistics}\n")


# -- functions ---------------------------------------------------------------------------------------


def find_function(program: OpenedProgram, name: str) -> Function:
    """The function that ``--function`` names; without a name the only export."""
    from jitree.api.module import Module

    module = program.module
    if name:
        local = name.removeprefix(f"{module.name}.")
        for candidate in (name, local):
            if candidate in module.names:
                return module[candidate]
        if isinstance(module, Module) and local in module.vm_module.export_names():
            return program.session.function_of(module.vm_module, local)
        from jitree.base.near_names import did_you_mean  # only failures pay for it

        raise errors.NotFoundError(
            f"no function `{name}` exported by module '{module.name}'"
            f"{did_you_mean(local, module.names)}; it exports:{_candidates(module)}",
            f"looking up function '{name}'",
        )
    meant = without_twins(module.names)
    if len(meant) == 1:
        return module[meant[0]]
    if not module.names:
        raise errors.InvalidArgumentError(f"module '{module.name}' exports no function that could be called")
    raise errors.InvalidArgumentError(
        "more than one exported function present; --function= must be specified explicitly:"
        + _candidates(module)
    )


def _candidates(module: Module) -> str:
    return "".join(f"\n  {module[name].declaration}" for name in without_twins(module.names))
