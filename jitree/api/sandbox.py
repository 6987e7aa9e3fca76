"""Confines programs that a stranger made, and limits what they may have.

A program has bytecode and VMVX kernels, which jitree runs itself and checks; nothing else of it runs.
Memory that it gets is zero. What it may have is limited (:class:`jitree.Limits`), each time in the one place
that gives it out: the allocator, the handle table, the machine, the engine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import ref

from jitree import errors
from jitree.api.calls.refusal import describe, listed
from jitree.api.executables import create_loaders
from jitree.api.load_order import explained, parse_reference
from jitree.base.arguments import shown
from jitree.base.cancel_scopes import Scope, require_going_on
from jitree.base.finalizers import Finalizer
from jitree.base.records import NamedTuple
from jitree.codegen.image.builder import UNLIMITED, BuilderLimits
from jitree.dispatch.context import Context, ContextFlags, ModuleLike
from jitree.dispatch.host_module import HostModule
from jitree.dispatch.invocation import WAITED_FOR, Invoker, Policy
from jitree.dispatch.plain.counting import CountingEngine
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.driver import parse_uri
from jitree.hal.executable import Executable, ExecutableLoader, ExecutableParameters, LocalExecutable
from jitree.hal.groups.rendezvous import TransportProvider
from jitree.hal.heap import HeapAllocator
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import without_lists
from jitree.regs.memory import UNBOUNDED, Bounds
from jitree.vmfb.archive import Source, loading, name_of, separate_content
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction
    from jitree.dispatch.linking import ModuleInstance
    from jitree.hal.device import Device
    from jitree.regs.ref_types import RefTypes

WORD: Final = 8
"""Bytes that a number counts as."""
_KERNEL_HANDLES: Final = 256
"""What the session itself has in each thread's part of a kernel: bindings, constants, local memory."""
_EXECUTABLE: Final = 64 << 10
"""Bytes that the session has of an executable besides those of the file."""
_FEW_EXECUTABLES: Final = 64
"""So many executables are not counted."""
_DEVICES: Final = ("local-sync", "local-task")
_REMEDY: Final = (
    "compile the program for VMVX (--iree-hal-target-backends=vmvx), or run it in a separate process "
    "(sandbox='process')"
)


class Limits(NamedTuple):
    """Limits of a sandbox; None limits nothing.

    What goes beyond fails with RESOURCE_EXHAUSTED, which names the limit and its value; time with
    DEADLINE_EXCEEDED.

    >>> limits = jitree.Limits(memory=64 << 20, time=2.0)
    >>> session = jitree.Session("local-sync", sandbox=True, limits=limits)
    >>> session.load("examples/digits/digits.vmvx.vmfb").classify(np.zeros((8, 8), np.float32)).shape
    (10,)
    """

    memory: int | None = None
    """Bytes that the program's buffers, lists and globals have at one time, results that the host holds and
    copies of its arguments included."""
    time: float | None = None
    """Seconds of one call."""
    instructions: int | None = None
    """Instructions of one call, or of loading: of bytecode and of VMVX kernels, on all threads together. The
    session runs on the plain tier then, the only one that counts each."""
    recursion: int | None = None
    """Calls one inside the other."""
    handles: int | None = None
    """Objects that registers, globals and lists refer to at one time, those of the session among them."""
    output: int | None = None
    """Bytes of the results of one call."""
    load_time: float | None = None
    """Seconds of loading modules."""
    load_size: int | None = None
    """Bytes of all files that are loaded."""


TIME: Final = "the limit on time"
LOAD_TIME: Final = "the limit on load time"
_SECONDS = ("time", "load_time")
_MOST = 1 << 62
"""The largest number that machine code can count to."""
_LONGEST = 1e9
"""Seconds that clocks can count."""


def check(limits: object) -> Limits:
    """The limits, none of them larger than can be counted. INVALID_ARGUMENT for what are no limits."""
    if not isinstance(limits, Limits):
        raise errors.InvalidArgumentError(f"limits: expected jitree.Limits but got a {type(limits).__name__}")
    counted: dict[str, Any] = {}
    for name, value in limits._asdict().items():
        kinds = (int, float) if name in _SECONDS else (int,)
        if value is not None and (type(value) not in kinds or not value >= 0):
            what = "seconds" if name in _SECONDS else "a whole number"
            raise errors.InvalidArgumentError(
                f"limits: {name} is {describe(value)}; expected {what} from 0 on, or None"
            )
        counted[name] = None if value is None else min(value, _LONGEST if name in _SECONDS else _MOST)
    return Limits(**counted)


def limited_content(source: Source, most: int | None, loaded: int) -> memoryview:
    """The bytes of a file, ``loaded`` having been loaded before it. RESOURCE_EXHAUSTED for more than ``most``
    in all; no more than that is read."""
    data = separate_content(source, -1 if most is None else most - loaded + 1)
    if most is not None and loaded + data.nbytes > most:
        raise errors.ResourceExhaustedError(
            f"the module has {data.nbytes} bytes or more, and {loaded} of {most} bytes are loaded (the limit "
            "on load size)"
        )
    return data


class Sandbox:
    """What a session asks when it is one."""

    allocator_class = HeapAllocator
    why_refused = f"they are native code; {_REMEDY}"

    def __init__(
        self, limits: Limits | None, tier: str | None, modules: Sequence[HostModule], arithmetic: str = FUSED
    ) -> None:
        self.limits = limits = Limits() if limits is None else check(limits)
        self._allocator = self.allocator_class(limits.memory, is_zeroed=True)
        frames = UNBOUNDED.frames if limits.recursion is None else min(limits.recursion, UNBOUNDED.frames)
        charge = UNBOUNDED.charge if limits.memory is None else self._allocator.charge
        self._builds = UNLIMITED
        if limits.load_time is not None or limits.memory is not None:
            self._builds = BuilderLimits(limits.load_time, limits.memory)
        lender = None if limits.memory is None else self._allocator
        self._bounds = Bounds(frames, limits.handles, charge, self._builds, lender)
        objects = None if limits.handles is None else limits.handles + _KERNEL_HANDLES
        kernels = Bounds(frames, objects, charge, self._builds, lender)
        self._engine = None if limits.instructions is None else CountingEngine(limits.instructions)
        self._tier = self._engine or tier
        vmvx = create_loaders(self._tier, (), modules, kernels, arithmetic)[-1]
        self._refusing = NoNativeCode()
        self.loaders: tuple[ExecutableLoader, ...] = (self.charging(vmvx), self._refusing)
        self._loaded = 0
        self.local_memories = 0
        """Memories of a workgroup that the session's devices may have at one time."""

    def charging(self, loader: ExecutableLoader) -> Charging:
        return Charging(loader, self._allocator, self._refusing.asked.clear, lambda: self.local_memories)

    def context(self, ref_types: RefTypes, flags: ContextFlags) -> Context:
        context = LimitedContext(self, ref_types, tier=self._tier, flags=flags, bounds=self._bounds)
        self._allocator.reclaim = partial(_collect, ref(context.invoker))
        return context

    def adopt(self, device: Device) -> None:
        """A device of the session, which nothing else uses."""
        _, queues = device.query_i64("hal.device", "concurrency")
        self.local_memories += device.thread_count * (queues + 1)  # machine code keeps its own
        device.replace_device_allocator(self._allocator)
        device.host_allocator = self._allocator
        device.usual_channel_provider = NoGroup()
        device.replace_channel_provider(None)

    def refuse_code(self, path: object) -> None:
        raise errors.PermissionDeniedError(
            f"'{path}' makes a module by running code of the file, and a sandbox runs none; make the module "
            "and load that"
        )

    def read(self, source: Source | ModuleLike) -> ModuleLike:
        """What is loaded from a source. Files that then do not load count, too. PERMISSION_DENIED for those
        that make modules by code, RESOURCE_EXHAUSTED for more than may be loaded."""
        if isinstance(source, (BytecodeModule, HostModule)):
            return source
        if isinstance(source, str) and parse_reference(source) is not None:
            self.refuse_code(source)
        name = name_of(source)
        with loading(name):
            data = limited_content(source, self.limits.load_size, self._loaded)
        self._loaded += data.nbytes
        module = BytecodeModule.load(data, name)
        require_going_on()
        return module

    def refuses(self, format: str) -> bool:
        """Whether it is the sandbox that keeps executables of a format from running."""
        return True

    @contextmanager
    def registering(self, devices: Sequence[Device], loaded: Sequence[ModuleLike]) -> Iterator[None]:
        """A block that registers modules. PERMISSION_DENIED for those with native executables only."""
        self._refusing.asked.clear()
        try:
            with explained(devices, loaded):
                yield
        except (errors.IncompatibleError, errors.UnavailableError) as error:
            asked = [*filter(self.refuses, self._refusing.asked)]
            if asked:
                names = ", ".join(f"'{module.name}'" for module in loaded)
                raise errors.PermissionDeniedError(
                    f"module {names} has executables of {' and '.join(asked)} and none that a "
                    f"sandbox may run: {self.why_refused}",
                    *error.contexts,
                ) from error
            raise

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A block that loads modules. Where it fails, machine code of the session is built no further."""
        try:
            with self.calling(is_loading=True):
                yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the building of machine code; calls that come later begin it again."""
        self._builds.end()

    @contextmanager
    def calling(self, is_loading: bool = False) -> Iterator[None]:
        """A block that makes a call of the host, or loads modules."""
        limits = self.limits
        seconds, name = (limits.load_time, LOAD_TIME) if is_loading else (limits.time, TIME)
        with (
            Scope(seconds, name) if seconds is not None else nullcontext(),
            self._engine.counted() if self._engine is not None else nullcontext(),
        ):
            yield

    def allowed(self, results: list[Any]) -> list[Any]:
        """The results of a call. RESOURCE_EXHAUSTED for more bytes than it may give."""
        most = self.limits.output
        if most is not None:
            size = sum([_size(value) for value in without_lists(results)])
            if size > most:
                raise errors.ResourceExhaustedError(
                    f"the results of the call have {size} bytes, {most} are allowed (the limit on output)"
                )
        return results

    @property
    def limits_calls(self) -> bool:
        """Tells whether each call takes something that machine code does not do by itself."""
        return self.limits.time is not None or self.limits.output is not None

    @property
    def executed(self) -> int | None:
        """Instructions of the last call, where they are limited."""
        return None if self._engine is None else self._engine.executed


def _collect(invoker: ref[Invoker]) -> None:
    found = invoker()
    if found is not None:
        found.collect()


class LimitedContext(Context):
    """A context that limits all of its calls."""

    def __init__(self, sandbox: Sandbox, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sandbox = sandbox

    def _run_if_present(self, instance: ModuleInstance, name: str, *arguments: object) -> None:
        with self._sandbox.calling(self.is_initialising):
            super()._run_if_present(instance, name, *arguments)

    def invoke(
        self, function: VmFunction, arguments: Sequence[object] = (), policy: Policy = WAITED_FOR
    ) -> list[Any]:
        with self._sandbox.calling():
            return self._sandbox.allowed(super().invoke(function, arguments, policy))

    async def invoke_async(self, function: VmFunction, arguments: Sequence[object] = ()) -> list[Any]:
        with self._sandbox.calling():
            return self._sandbox.allowed(await super().invoke_async(function, arguments))


class NoNativeCode(ExecutableLoader):
    """Remembers which native formats programs asked for, and says why they are refused."""

    def __init__(self) -> None:
        self.asked: dict[str, None] = {}

    def query_support(self, format: str) -> bool:
        self.asked[format] = None
        return False

    def try_load(self, parameters: ExecutableParameters) -> Executable:
        raise self.refusal(parameters.format)

    def refusal(self, format: str) -> errors.StatusError:
        return errors.PermissionDeniedError(
            f"an executable of format '{format}' is native code, and a sandbox runs none; {_REMEDY}"
        )


class NoGroup(TransportProvider):
    """Refuses channels. What a process joins by itself it learns from its environment, over sockets."""

    def query_default_rank_and_count(self) -> NoReturn:
        raise errors.PermissionDeniedError(
            "a channel joins a group over the network, and a sandbox does that by a provider only, which the "
            "host gives the device (session.device.replace_channel_provider)"
        )

    def exchange_default_id(self, identifier: bytes) -> NoReturn:
        self.query_default_rank_and_count()

    def make_transport(self) -> NoReturn:
        self.query_default_rank_and_count()


class Charging(ExecutableLoader):
    """Loads executables by another loader, and counts their bytes and local memory."""

    def __init__(
        self,
        loader: ExecutableLoader,
        allocator: HeapAllocator,
        loaded: Callable[[], object],
        local_memories: Callable[[], int],
    ) -> None:
        """``loaded`` is called each time that one has been; ``local_memories`` tells for how many workgroups
        there is memory at one time."""
        self._loader = loader
        self._loaded = loaded
        self._local_memories = local_memories
        self._allocator = allocator
        self._count = 0
        self._ended = deque[None]()

    @property
    def runs_in_python(self) -> bool:
        return self._loader.runs_in_python

    def query_support(self, format: str) -> bool:
        return self._loader.query_support(format)

    def stores(self, data: memoryview) -> Sequence[tuple[str, int]]:
        return self._loader.stores(data)

    def try_load(self, parameters: ExecutableParameters) -> Executable:
        while self._ended:
            self._ended.popleft()
            self._count -= 1
        more = _EXECUTABLE if self._count >= _FEW_EXECUTABLES else 0
        charge = self._allocator.charge(parameters.data.nbytes + more)
        executable = self._loader.try_load(parameters)
        assert isinstance(executable, LocalExecutable)
        local = max(map(executable.local_memory, range(executable.function_count)), default=0)
        charges = charge, self._allocator.charge(local * self._local_memories())
        self._count += 1
        executable.charge = charges, Finalizer(partial(self._ended.append, None))
        self._loaded()
        return executable

    def query_i64(self, category: str, key: str) -> int | None:
        return self._loader.query_i64(category, key)


def refuse_machine_code(compiled: object) -> None:
    """PERMISSION_DENIED for machine code of programs that was made beforehand; None is none."""
    if compiled is not None:
        raise errors.PermissionDeniedError(
            f"compiled: {shown(compiled)} is machine code that is run unchecked, and a sandbox runs none; "
            "leave it out: a sandbox compiles its programs itself, or finds them in the cache"
        )


def require_local(choice: object) -> str:
    """Refuses (PERMISSION_DENIED) a device that is not the session's own, or runs programs' code."""
    if not isinstance(choice, str) or parse_uri(choice).driver not in _DEVICES:
        raise errors.PermissionDeniedError(
            f"device {shown(choice)}: a sandbox has separate devices, named by URI: {' or '.join(_DEVICES)}"
        )
    return choice


def require_objects(parameters: Any) -> tuple[Any, ...]:
    """The sources of parameters. PERMISSION_DENIED for paths, however deep."""
    if isinstance(parameters, (str, os.PathLike)):
        raise errors.PermissionDeniedError(
            f"parameters: a sandbox opens no files; open '{os.fspath(parameters)}' with "
            "jitree.params.open_providers and pass what that gives"
        )
    is_mapping = isinstance(parameters, Mapping)
    sources = (parameters,) if is_mapping else listed("parameters", "archives or mappings", parameters)
    for source in parameters.values() if is_mapping else sources:
        if isinstance(source, (str, os.PathLike, Mapping)):
            require_objects(source)
    return sources


def _size(value: object) -> int:
    """Bytes of a result that is no list."""
    if isinstance(value, BufferView):
        return value.buffer.byte_length
    if isinstance(value, Buffer):
        return value.byte_length
    if isinstance(value, VmBuffer):
        return value.length
    return WORD if type(value) in (int, float) else 0
