"""Serves the child's session: loads modules and makes calls that come as messages."""

from __future__ import annotations

import os
import pkgutil
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import OUT, WORKSPACE
from jitree.api.calls.native import RECIPE as CALLS
from jitree.api.executables import create_loaders
from jitree.api.function import Function
from jitree.api.load_order import BUILTIN_MODULES
from jitree.api.module import Module
from jitree.api.process import messages
from jitree.api.sandbox import Limits, Sandbox
from jitree.api.session import Session
from jitree.base.arguments import said
from jitree.base.platform.confinement import confine
from jitree.codegen import image
from jitree.dispatch.fast import LOOP
from jitree.dispatch.fast.engine import attach_library
from jitree.errors import ResourceExhaustedError, StatusError, UnimplementedError
from jitree.hal.checks import refusals
from jitree.hal.heap import GUARD, GuardedAllocator
from jitree.hal.local.executor import RECIPE as EXECUTOR
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.environment import host_cpu_data
from jitree.loaders.instruction_tables import RECIPE as NEEDS
from jitree.loaders.vmvx.kernels import SPANS
from jitree.modules.hal.native import RECIPE as HAL
from jitree.modules.vmvx.kernels import RECIPE as VMVX
from jitree.regs.machine import Machine
from jitree.vmfb.module import release_rows
from jitree.vmfb.native import RECIPE as LOAD
from jitree.vmfb.words import FUSED

_PREPARED: Final = (
    "base", "codegen.image", "vmfb", "regs", "dispatch", "hal", "loaders", "params", "modules", "api",
)  # fmt: skip
_NEVER: Final = ("numba", "llvmlite", "cuda")
"""Packages that a process which compiles nothing does not import."""
SPARE: Final = 1 << 30
"""Bytes of address space that the child may have beside what its program may: threads, call stacks."""
GUARDS: Final = SPARE + 256 * GUARD
"""The same, where buffers have guard pages."""
_LONGEST: Final = 1 << 16
"""Characters of what an error says. All of one, each character in twelve bytes, fits into a message."""
_LONGEST_LINE: Final = 4096
_MOST_LINES: Final = 32
"""Contexts of an error, and lines of its backtrace."""


def serve(connection: socket.socket, options: dict[str, Any], keeper: int) -> None:
    """Confines the process, and answers messages until the parent ends."""
    limits = Limits(**options["limits"])
    try:
        kind, spare = (GuardedSandbox, GUARDS) if options["guard_pages"] else (NativeSandbox, SPARE)
        sandbox = kind(limits, options["arithmetic"])
        session = _session(options["device"], sandbox, options["builtins"])
        memory = None if limits.memory is None else limits.memory + spare + options["given"]
        confine(keeper, memory, options["most"])
    except BaseException as error:
        refuse(connection, error)
        return
    modules: list[Module] = []
    while (received := messages.receive(connection)) is not None:
        message, file = received
        head: dict[str, Any] = {}
        parts: list[memoryview] = []
        try:
            parts = _answer(session, modules, message, head)
        except Exception as error:
            head, parts = {"error": _described(error)}, []
        try:
            messages.answer(connection, file, head, parts)
        except (OSError, ResourceExhaustedError) as error:
            head = {"error": _described(error)}
            if "load" in message.head:
                head["ends"] = True  # what was loaded stays, and the parent knows nothing of it
            messages.answer(connection, file, head, [])


def refuse(connection: socket.socket, error: BaseException) -> None:
    """Answers the first message with an error."""
    received = messages.receive(connection)
    if received is not None:
        messages.answer(connection, received[1], {"error": _described(error)}, [])


def _answer(
    session: Session, modules: list[Module], message: messages.Message, head: dict[str, Any]
) -> list[memoryview]:
    """``modules`` are those that the parent knows, by their places; what it loads comes after them."""
    request = message.head
    if "start" in request:
        head["ready"] = os.getpid()
        return []
    if "parameters" in request:
        session.parameter_providers = messages.unpack_parameters(request["parameters"], message.data)
        return []
    given = messages.unpack(request["arguments"], message.data)
    if "load" in request:
        sources = [array.data for array in given]
        loaded = session.link(*sources) if request["load"] == messages.LINK else session.load(*sources)
        found = loaded if isinstance(loaded, tuple) else (loaded,)
        head["modules"] = [
            [module.name, {name: _described_function(module[name]) for name in module}] for module in found
        ]
        modules += found
        return []
    (place, name), names = request["call"], request["named"]
    function = modules[place][name]
    count = len(given) - len(names)
    named = dict(zip(names, given[count:], strict=True))
    for name in {OUT, WORKSPACE}.difference(parameter.name for parameter in function.arguments):
        if named.pop(name, None) is not None:
            raise UnimplementedError(
                f"{name}: the process of the sandbox does not share memory with its parent"
            )
    results = function(*given[:count], **named)
    listed = () if results is None else results if isinstance(results, tuple) else (results,)
    return messages.pack([_on_host(result) for result in listed], "results", head)


def _described_function(function: Function) -> list[Any]:
    """Declaration, names of arguments, types and letters of arguments and of results."""
    return [function.declaration, [parameter.name for parameter in function.arguments], *function.passed]


def _on_host(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Array) else value


def _described(error: BaseException) -> list[Any]:
    """Code, message, contexts and backtrace, shortened so that they fit into a message."""
    if isinstance(error, StatusError):
        lists = error.contexts[:_MOST_LINES], error.backtrace[:_MOST_LINES]
        lines = [[_shortened(text, _LONGEST_LINE) for text in texts] for texts in lists]
        return [int(error.code), _shortened(error.message, _LONGEST), *lines]
    if isinstance(error, OSError):
        return [8, f"the results cannot be sent: {error}", [], []]
    return [2, _shortened(said(error), _LONGEST), [], []]


def _shortened(text: str, most: int) -> str:
    """Halves of characters, which no message may have, are their numbers."""
    whole = text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"
    return whole.encode(errors="backslashreplace").decode()


def prepare() -> BaseException | None:
    """Reads all that children need from files; what it fails with."""
    try:
        for name in _NEVER:
            sys.modules[name] = None  # type: ignore[assignment]
        for part in _PREPARED:
            package = import_module(f"jitree.{part}")
            for module in pkgutil.walk_packages(package.__path__, f"jitree.{part}."):
                try:
                    import_module(module.name)
                except (ImportError, SystemExit):
                    continue  # what compiles
        import_module("ml_dtypes")
        for recipe in (LOOP, CALLS, HAL, EXECUTOR, LOAD, NEEDS, SPANS, VMVX):
            image.wait(recipe)
        host_cpu_data()
        refusals()
        release_rows()
        os.environ.clear()
        _session("local-sync", NativeSandbox(Limits(), FUSED), None).close()
    except BaseException as error:
        return error
    return None


def _session(device: str, sandbox: Sandbox, builtins: Sequence[str] | None) -> Session:
    """A session for which nothing will be read from a file any more."""
    session = Session(device, sandbox=sandbox, builtin_modules=builtins)
    for make in BUILTIN_MODULES.values():
        make(session).export_names()
    attach_library(Machine(session.context.table, session.context.invoker.functions))
    return session


class NativeSandbox(Sandbox):
    """One that the system guards: executables may be native code. It compiles nothing."""

    why_refused = (
        "the system's loader would have to open them, and the process opens nothing; compile the program "
        "with --iree-llvmcpu-link-embedded=true"
    )

    def __init__(self, limits: Limits, arithmetic: str) -> None:
        super().__init__(limits, "fast", (), arithmetic)
        embedded = create_loaders("fast")[0]
        self.loaders = (self.charging(embedded), *self.loaders)

    def refuses(self, format: str) -> bool:
        """Those for the system's loader alone: what is for another processor runs nowhere here."""
        architecture = host_architecture()
        return architecture is not None and format == f"system-elf-{architecture.name}"


class GuardedSandbox(NativeSandbox):
    """One whose buffers end at pages without access."""

    allocator_class = GuardedAllocator
