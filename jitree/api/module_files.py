"""Opens modules in Python files and C libraries."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from jitree.api.custom_module import CustomModule, require_api_version
from jitree.api.load_order import IMPORTED_NAME, ModuleReference
from jitree.dispatch.host_module import HostModule
from jitree.errors import InvalidArgumentError, NotFoundError, attribute_of, error_context, pass_interruption

if TYPE_CHECKING:
    from jitree.modules.native_library.module import LibraryModule
    from jitree.regs.ref_types import RefTypes

VERSION_NAME: Final = "JITREE_API_VERSION"
"""A file may state the version of the interface that it is written for."""
_CREATE: Final = "create"
_numbers: Final = itertools.count(1)


def open_python_module(reference: ModuleReference) -> HostModule:
    """Runs a Python file and makes its module: by the function named, which gets the parameters as keyword
    arguments; without a name by ``create``, or it is the one module that the file defines.

    NOT_FOUND for a file or function that is not there, UNIMPLEMENTED for a file that states a newer
    ``JITREE_API_VERSION``, INVALID_ARGUMENT for parameters that the function does not take and for anything
    but a module as its result. What the file raises passes through.
    """
    path = Path(reference.path)
    if not path.is_file():
        raise NotFoundError(f"module file '{path}' does not exist")
    with _importable(path.resolve().parent):
        imported = _import(path)
        require_api_version(attribute_of(imported, VERSION_NAME, 0), f"module file '{path}'")
        created = _create(imported, reference)
    if not isinstance(created, HostModule):
        raise InvalidArgumentError(
            f"'{path}': '{reference.function or _CREATE}' returned a value of type {type(created).__name__}; "
            "a jitree.CustomModule was expected"
        )
    return created


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Files beside the module's can be imported while it runs."""
    sys.path.insert(0, os.fspath(folder))
    try:
        yield
    finally:
        sys.path.remove(os.fspath(folder))


def _import(path: Path) -> ModuleType:
    name = f"{IMPORTED_NAME}{next(_numbers)}_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise InvalidArgumentError(f"module file '{path}' cannot be imported")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # where annotations and pickles look for it
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _create(imported: ModuleType, reference: ModuleReference) -> object:
    name = reference.function or _CREATE
    function = attribute_of(imported, name)
    if function is None and reference.function is None and not reference.parameters:
        return _only_module(imported, reference)
    if not callable(function):
        raise NotFoundError(
            f"'{reference.path}' has no function '{name}'; it defines: "
            f"{', '.join(_functions(imported)) or 'none'}"
        )
    return function(**_arguments(function, reference))


def _only_module(imported: ModuleType, reference: ModuleReference) -> object:
    modules = {id(value): value for value in vars(imported).values() if isinstance(value, CustomModule)}
    if len(modules) != 1:
        raise NotFoundError(
            f"'{reference.path}' has no function '{_CREATE}' and defines {len(modules)} modules; name the "
            f"function that makes the module: {reference.path}@function"
        )
    return next(iter(modules.values()))


def _functions(imported: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(imported).items()
        if inspect.isfunction(value) and value.__module__ == imported.__name__
    ]


def _arguments(function: Callable[..., Any], reference: ModuleReference) -> dict[str, str]:
    arguments = dict(reference.parameters)
    signature = inspect.signature(function)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        pass_interruption(error)
        given = ", ".join(arguments) or "none"
        raise InvalidArgumentError(
            f"'{reference.path}': {function.__name__}{signature} does not take the parameters given "
            f"({given}): {error}"
        ) from None
    return arguments


def open_module_file(reference: ModuleReference, ref_types: RefTypes) -> HostModule:
    """The module that a reference names, for sessions of the instance that has ``ref_types``."""
    if reference.is_python:
        return open_python_module(reference)
    return open_library_module(
        reference.path, reference.function or "", dict(reference.parameters), ref_types
    )


def open_library_module(
    path: str | os.PathLike[str], create: str, parameters: Mapping[str, str], ref_types: RefTypes
) -> LibraryModule:
    """The module that a C library creates, by its function ``create`` (empty: the usual one).

    Interface 0.1, without arrays and devices; see :class:`.LibraryModule`.
    NOT_FOUND without the file or the function, FAILED_PRECONDITION for what is no library.
    """
    from pathlib import Path

    from jitree.loaders.system_library import SharedObject
    from jitree.modules.native_library.module import LibraryModule

    with error_context(f"loading C module '{os.fspath(path)}'"):
        return LibraryModule(SharedObject.from_path(Path(path)), ref_types, create, parameters)
