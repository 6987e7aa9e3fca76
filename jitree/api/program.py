"""Makes a session's modules and options a value, to be opened in any process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import unwrap
from typing import Any, NoReturn

from jitree.api.calls.refusal import describe, listed
from jitree.api.function import Function
from jitree.api.load_order import parse_reference
from jitree.api.module import Module
from jitree.api.program_files import (
    ProgramFile,
    module_bytes,
    module_file,
    packed,
    parameter_file,
    require_file,
    unpacked,
)
from jitree.api.resources import in_order
from jitree.api.session import Session
from jitree.base.finalizers import ReentrantLock
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
    error_context,
    pass_interruption,
)
from jitree.hal.device import Device
from jitree.vmfb.archive import Archive, Source, file_state
from jitree.vmfb.decode import BytecodeModule


class Program:
    """Modules with their device, parameters and options: what a session is made of.

    It does not change, equals another with the same contents, and travels: a pickle has the paths of the
    files and digests of them, some hundred bytes (``embed=True``: the files too).

    >>> program = jitree.Program("examples/digits/digits.vmvx.vmfb", device="local-sync")
    >>> program.open().lookup("module.classify")(np.zeros((8, 8), np.float32)).shape
    (10,)
    >>> program == jitree.Program("examples/digits/digits.vmvx.vmfb", device="local-sync")
    True
    """

    __slots__ = ("_key", "device", "modules", "options", "parameters")
    modules: tuple[ProgramFile, ...]
    """The files of the modules, with their digests."""
    device: str | tuple[str, ...] | None
    """URIs, None for the first device that can be created."""
    parameters: tuple[ProgramFile, ...]
    """The archives of parameters, with their digests."""
    options: tuple[tuple[str, Any], ...]
    """Names and values of options of the session, by name."""
    _key: tuple[Any, ...]

    def __init__(
        self,
        *sources: Source,
        device: str | Iterable[str] | Mapping[str, str] | None = None,
        parameters: str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any] = (),
        embed: bool = False,
        **options: Any,
    ) -> None:
        """``sources``: modules as :meth:`.Session.load` takes them, by path; bytes travel themselves.
        ``device``: URIs. ``parameters``: archives, ``scope=path`` or ``path``, which every process maps.
        ``embed``: the modules' bytes travel, for machines that do not have the files. Other ``options`` are
        those of :class:`.Session`.

        NOT_FOUND for a missing file, INVALID_ARGUMENT for what is no module, or cannot travel.
        """
        if not sources:
            raise InvalidArgumentError("Program: no module was given; pass a path or bytes")
        self._fill(
            tuple(_module(source, embed) for source in sources),
            _device_names(device),
            _archives(parameters),
            options,
        )

    def _fill(
        self,
        modules: tuple[ProgramFile, ...],
        device: str | tuple[str, ...] | None,
        parameters: tuple[ProgramFile, ...],
        options: Mapping[str, Any],
    ) -> None:
        unknown = sorted(options.keys() - _options())
        if unknown:
            raise InvalidArgumentError(
                f"Program: no session has the option {unknown[0]}; there are {', '.join(sorted(_options()))}"
            )
        given = sorted(name for name, value in options.items() if value is not None and value is not False)
        frozen = tuple((name, _frozen(name, options[name])) for name in given)
        key = (*(file.identity for file in modules + parameters), device, frozen)
        fields = {
            "modules": modules,
            "device": device,
            "parameters": parameters,
            "options": frozen,
            "_key": key,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a program does not change; make another one to have another {name}")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def fingerprint(self) -> str:
        """Joins by ``+`` the digests of the modules and the parameters that they need. A module's is that of
        ``jitree.inspect``: the same for the same contents, wherever they lie."""
        return "+".join(file.digest.hex() for file in self.modules + self.parameters)

    def on(self, device: str | Iterable[str] | None) -> Program:
        """The same program on another device.

        ``device``: a URI, several, or None for the first that can be created. INVALID_ARGUMENT for others;
        opening the program says whether there is such a device.
        """
        return _of_files(self.modules, _device_names(device), self.parameters, self.options)

    def open(self) -> Session:
        """The session of this program in this process: the first call makes it, others get the same one until
        it is closed. Forked children get another one.

        FAILED_PRECONDITION for files that are not those that the program was made of, also where they change
        meanwhile, and for a program that is opened by what opening it runs; and what creating a session and
        loading fail with.
        """
        opening = _opened.setdefault(self, _Opening())
        with opening.lock:
            if opening.session is None or opening.session.closed:
                with error_context("opening a program"), opening:
                    before = self._states()
                    session = self._new_session()
                    if self._states() != before:
                        session.close()
                        raise FailedPreconditionError("a file was changed meanwhile; open the program again")
                    opening.session = session
            assert opening.session is not None
            return opening.session

    def _states(self) -> list[tuple[int, ...] | None]:
        return [file.state() for file in self.modules + self.parameters]

    def _new_session(self) -> Session:
        options = dict(self.options)
        for file in self.parameters:
            file.contents()
        if self.parameters:
            options["parameters"] = [f"{file.role[1:]}={file.path}" for file in self.parameters]
        session = Session(self.device, **options)
        try:
            session.load(*(self._source(file) for file in self.modules))
        except BaseException:
            session.close()
            raise
        session.made_by = self, frozenset(session.modules)
        return session

    def _source(self, file: ProgramFile) -> Any:
        data = file.contents()
        if file.role:
            return f"{file.path}{file.role}"
        if file.path is None or "sandbox" in dict(self.options):
            return data  # a sandbox reads it itself
        with error_context(f"of program '{file.path}'"):
            return BytecodeModule.load(file.path if file.data is None else data, file.path)

    def __reduce__(self) -> tuple[Any, ...]:
        parameters = packed(self.parameters) if self.parameters else ()
        return _again, (self.modules, self.device, parameters, self.options)

    def __repr__(self) -> str:
        names = ", ".join(file.path or f"{file.size} bytes" for file in self.modules)
        return f"<jitree.Program of {names} on {self.device}; {self.fingerprint[:16]}>"


class _Opening:
    """A session of this process, which one thread makes."""

    def __init__(self) -> None:
        self.lock = ReentrantLock()
        self.session: Session | None = None
        self._is_going_on = False

    def __enter__(self) -> None:
        """FAILED_PRECONDITION on a thread that is at it already."""
        if self._is_going_on:
            raise FailedPreconditionError("code that runs while the program is opened opens it itself")
        self._is_going_on = True

    def __exit__(self, *error: object) -> None:
        self._is_going_on = False


_opened: dict[Program, _Opening] = {}
_of_parents: list[dict[Program, _Opening]] = []
"""Sessions that another process has: they must not end here."""


def _after_fork() -> None:
    _of_parents.append(_opened.copy())
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)


# -- what programs are made of ----------------------------------------------------------------------------


def _module(source: Source, embed: bool) -> ProgramFile:
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        reference = parse_reference(source)
        require_file(source if reference is None else reference.path)
        if reference is not None:
            if embed:
                raise InvalidArgumentError(f"Program: embed takes compiled modules, and '{source}' is none")
            return module_file(reference.path, source[len(reference.path) :] or "@")
        Archive.open(source)
        return module_file(source, embed=embed)
    data = Archive.open(source).data
    return module_bytes(source if isinstance(source, bytes) else bytes(data))


def _device_names(device: Any) -> str | tuple[str, ...] | None:
    if device is None or isinstance(device, str):
        return device
    if isinstance(device, Device):
        raise InvalidArgumentError(f"device: a Device belongs to its process; name it, as '{device.uri}'")
    return listed("device", "URIs", in_order(device), str)


def _archives(parameters: Any) -> tuple[ProgramFile, ...]:
    if isinstance(parameters, (str, os.PathLike)):
        parameters = [parameters]
    elif isinstance(parameters, Mapping):
        parameters = list(parameters.items())
    elif not isinstance(parameters, Sequence):  # an iterator that a session has used up has nothing any more
        raise InvalidArgumentError(f"parameters: expected a list of archives but got {describe(parameters)}")
    files = []
    for source in parameters:
        pair = source if isinstance(source, tuple) and len(source) == 2 else ("", source)
        if isinstance(source, str):
            from jitree.params.provider import split_scope  # only programs with parameters read archives

            pair = split_scope(source)
        if not isinstance(pair[1], (str, os.PathLike)):
            raise InvalidArgumentError(
                f"parameters: a program travels with archives by path, not with {describe(pair[1])}; "
                "jitree.params writes archives"
            )
        if not isinstance(pair[0], str) or "=" in pair[0]:
            raise InvalidArgumentError(
                f"parameters: expected a scope without '=' but got {describe(pair[0])}"
            )
        files.append(parameter_file(pair[0], os.fspath(pair[1])))
    return tuple(files)


def _options() -> frozenset[str]:
    taken: Any = unwrap(Session.__init__)
    return frozenset(taken.__kwdefaults__) - {"parameters", "instance"}


def _frozen(name: str, value: Any) -> Any:
    """An option that can be compared, and does not change."""
    if isinstance(value, (list, set)):
        value = tuple(value)
    try:
        hash(value)
    except TypeError as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"{name}: {describe(value)} can change, and a program cannot") from None
    return value


# -- pickles ----------------------------------------------------------------------------------------------


def _again(modules: Any, device: Any, parameters: Any, options: Any) -> Program:
    return _of_files(modules, device, unpacked(parameters) if parameters else (), options)


def _of_files(modules: Any, device: Any, parameters: Any, options: Any) -> Program:
    program = object.__new__(Program)
    program._fill(modules, device, parameters, dict(options))
    return program


def module_of(program: Program, name: str) -> Module:
    return program.open().modules[name]


def function_of(program: Program, name: str) -> Function:
    return program.open().lookup(name)


def remade(owner: Session | Module | Function) -> tuple[Any, ...]:
    """How pickle makes a session or what is in it again: of its program, in a process that has it open or
    opens it. State that calls have left stays where it is.

    FAILED_PRECONDITION for a closed session and files that are gone, UNIMPLEMENTED for what only this process
    has.
    """
    if isinstance(owner, Session):
        return Program.open, (_program_of(owner),)
    program = _program_of(owner.session)
    if isinstance(owner, Module):
        return module_of, (program, owner.name)
    return function_of, (program, owner.full_name)


def _program_of(session: Session) -> Program:
    if session.closed:
        raise FailedPreconditionError("the session has been closed; what made it is not known any more")
    modules = frozenset(session.modules)
    if isinstance(session.made_by[0], Program) and session.made_by[1] == modules:
        return session.made_by[0]
    program = _described(session)
    session.made_by = program, modules
    return program


def _described(session: Session) -> Program:
    made, options = session.made_by
    if isinstance(made, Program):
        options, device, parameters = dict(made.options), made.device, made.parameters
    else:
        options = {name: value for name, value in options.items() if value is not None}
        if options.pop("instance", session.instance) is not type(session.instance).default():
            raise UnimplementedError("a session on an instance that is not the default one cannot be pickled")
        device = made if made is None or isinstance(made, str) else _uris(made)
        parameters = _archives(options.pop("parameters", ()))
    names = [module.name for module in session.context.modules]
    if twins := {name for name in names if names.count(name) > 1}:
        raise UnimplementedError(
            f"several modules of the session are called '{min(twins)}', and a program has one of each name"
        )
    files = tuple([_loaded(module) for module in session.modules.values()])
    if not files:
        raise UnimplementedError("a session without modules cannot be pickled; load one first")
    return _of_files(files, device, parameters, options)


def _uris(made: Any) -> tuple[str, ...]:
    devices = [made] if isinstance(made, Device) else in_order(made)
    return tuple(item.uri if isinstance(item, Device) else item for item in devices)


def _loaded(module: Module) -> ProgramFile:
    """The file that a module was loaded from, if it is still there; bytes that were no file."""
    vm_module = module.vm_module
    if not isinstance(vm_module, BytecodeModule):
        raise UnimplementedError(
            f"module '{module.name}' is an object of this process and cannot be pickled; make a Program with "
            "the file that makes it"
        )
    archive = vm_module.module.archive
    held = module_bytes(archive.data)
    if os.path.isfile(archive.name):
        before, file = file_state(archive.name), module_file(archive.name)
        is_changed_here = archive.is_private and before is not None and archive.state == before  # by kernels
        if file.digest == held.digest or is_changed_here:
            return file
        raise FailedPreconditionError(f"'{archive.name}' has changed since module '{module.name}' was loaded")
    if archive.name.startswith("<"):
        return module_bytes(bytes(archive.data))
    raise FailedPreconditionError(
        f"module '{module.name}' was loaded from '{archive.name}', which is not there any more"
    )
