"""Calls the CUDA driver, checks every result, and owns the handles it makes.

All of the package's calls go through an :class:`Api`, one a device, which remembers the failure that lost the
device. A failure is an exception that names the call and what CUDA says. It calls ``cuda.bindings.driver``,
or in tests a module that emulates that on host memory.

Handles are made, owned and given back in one place, whatever interrupts the caller. Python looks for signals
after each call, so that a handler's exception (Ctrl-C) may come when the driver has made something and
nothing refers to it yet. Here an owner exists before what it will own: functions in C take the handle from
the driver's result to the owner, and from there back to the driver, in a single step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, filterfalse, repeat, starmap
from operator import add, call, itemgetter, methodcaller
from typing import Any, Final

from jitree import errors
from jitree.base.finalizers import Finalizer, repeated

OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
NO_DEVICE: Final = 100
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704

_STATUS: Final = {
    1: errors.StatusCode.INVALID_ARGUMENT,  # INVALID_VALUE
    OUT_OF_MEMORY: errors.StatusCode.RESOURCE_EXHAUSTED,
    NOT_INITIALIZED: errors.StatusCode.FAILED_PRECONDITION,
    4: errors.StatusCode.CANCELLED,  # DEINITIALIZED: the process ends
    34: errors.StatusCode.UNAVAILABLE,  # STUB_LIBRARY
    36: errors.StatusCode.UNAVAILABLE,  # CALL_REQUIRES_NEWER_DRIVER
    46: errors.StatusCode.UNAVAILABLE,  # DEVICE_UNAVAILABLE: in exclusive use
    NO_DEVICE: errors.StatusCode.UNAVAILABLE,
    101: errors.StatusCode.NOT_FOUND,  # INVALID_DEVICE
    200: errors.StatusCode.INVALID_ARGUMENT,  # INVALID_IMAGE
    209: errors.StatusCode.INCOMPATIBLE,  # NO_BINARY_FOR_GPU
    217: errors.StatusCode.UNIMPLEMENTED,  # PEER_ACCESS_UNSUPPORTED
    218: errors.StatusCode.INVALID_ARGUMENT,  # INVALID_PTX
    221: errors.StatusCode.UNAVAILABLE,  # JIT_COMPILER_NOT_FOUND
    222: errors.StatusCode.INCOMPATIBLE,  # UNSUPPORTED_PTX_VERSION
    400: errors.StatusCode.INVALID_ARGUMENT,  # INVALID_HANDLE
    500: errors.StatusCode.NOT_FOUND,
    NOT_READY: errors.StatusCode.DEFERRED,
    701: errors.StatusCode.RESOURCE_EXHAUSTED,  # LAUNCH_OUT_OF_RESOURCES
    702: errors.StatusCode.DEADLINE_EXCEEDED,  # LAUNCH_TIMEOUT
    800: errors.StatusCode.PERMISSION_DENIED,  # NOT_PERMITTED
    801: errors.StatusCode.UNIMPLEMENTED,  # NOT_SUPPORTED
    803: errors.StatusCode.UNAVAILABLE,  # SYSTEM_DRIVER_MISMATCH
}

LOST: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911))
"""Failures after which a context answers nothing but the same failure: faults and asserts of kernels,
uncorrectable memory and link errors, a destroyed context."""

MINIMUM_DRIVER: Final = 12000
"""CUDA 12.0, driver 525: the first with all calls used here (graph parameters of kind v2)."""
_SYMBOL_VERSION: Final = 12000
_FORKED: Final = (
    "a process that was forked from one that has used CUDA cannot use it; start such processes with 'spawn' "
    "(multiprocessing.set_start_method)"
)
_INSTALL: Final = "pip install 'jitree[cuda]'"

Handle = Any
"""A CUstream, CUevent, CUfunction, … of the bindings; ``int(handle)`` is the pointer."""

_RESULT: Final = itemgetter(0)
_GIVEN_BACK: Final = itemgetter(-1)
Action = Callable[[], object]


def status_of(result: int) -> errors.StatusCode:
    """INTERNAL for what a correct program never meets."""
    return _STATUS.get(result, errors.StatusCode.INTERNAL)


def load_bindings() -> Any:
    """The module ``cuda.bindings.driver`` with the driver initialised.

    UNAVAILABLE, saying what to install, when the package, the driver or a device is missing or too old.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise errors.UnavailableError(
            f"the driver 'cuda' needs the Python package cuda-python ({error}); install it with {_INSTALL}"
        ) from error
    try:
        api = Api(driver, "cuda")
        api.call("cuInit", 0)
        version = api.call("cuDriverGetVersion")
    except RuntimeError as error:  # of the bindings when there is no library, or a StatusError
        errors.pass_interruption(error)
        raise errors.UnavailableError(
            f"the CUDA driver cannot be used: {error}; install an NVIDIA driver of version 525 (CUDA 12.0) "
            "or newer, and give the process or container access to the GPU"
        ) from error
    if version < MINIMUM_DRIVER:
        raise errors.UnavailableError(
            f"the NVIDIA driver is for CUDA {version // 1000}.{version % 1000 // 10}, older than 12.0; "
            "install version 525 or newer"
        )
    return driver


class Api:
    """Calls the driver for one device, and checks every call."""

    __slots__ = ("driver", "lost", "name")

    def __init__(self, driver: Any, name: str) -> None:
        """``driver``: the bindings' module; ``name``: of the device, for messages."""
        self.driver = driver
        self.name = name
        self.lost: errors.StatusError | None = None
        """The failure that lost the device, as it is raised from then on. Raise copies (``again``)."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Any driver call by name: None, its result, or a tuple of results."""
        result, *values = getattr(self.driver, name)(*arguments)
        if result:
            raise self.failure(name, result)
        return None if not values else values[0] if len(values) == 1 else tuple(values)

    def attempt(self, name: str, *arguments: Any) -> None:
        """Calls as :meth:`call` and ignores failures, to give back what is unused."""
        getattr(self.driver, name)(*arguments)

    def check(self, name: str, result: int) -> None:
        """Raises what the result of a call means, unless it is zero."""
        if result:
            raise self.failure(name, result)

    def failure(self, name: str, result: int) -> errors.StatusError:
        """Makes the error of a result, and keeps the first that loses the device."""
        if self.lost is not None:
            return errors.again(self.lost)
        message = f"{name} on {self.name} failed: {self.describe(result)}"
        if int(result) == NOT_INITIALIZED:
            message += f"; {_FORKED}"
        if int(result) not in LOST:
            return errors.status_error(status_of(int(result)), message)
        self.lost = errors.status_error(
            status_of(int(result)), f"the device {self.name} is lost and needs a new process: {message}"
        )
        return errors.again(self.lost)

    def check_alive(self) -> None:
        """Raises the failure that lost the device, if it is lost."""
        if self.lost is not None:
            raise errors.again(self.lost)

    def describe(self, result: int) -> str:
        """``CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered``."""
        try:
            value = self.driver.CUresult(int(result))
            name = _text(self.driver.cuGetErrorName(value)[1])
            explanation = _text(self.driver.cuGetErrorString(value)[1])
        except ValueError:  # a number that the bindings do not know
            return f"error {int(result)}"
        return f"{name} ({int(result)}): {explanation}"

    def address(self, name: str) -> int:
        """Finds the address of a C function, versioned names by their plain one.

        UNIMPLEMENTED when the driver has none.
        """
        result, address, _ = self.driver.cuGetProcAddress(name.encode(), _SYMBOL_VERSION, 0)
        if result or not address:
            raise errors.UnimplementedError(f"the CUDA driver has no function {name}")
        return int(address)

    # Calls of the hot path, without the detour over the name.

    def set_current(self, context: Handle) -> None:
        (result,) = self.driver.cuCtxSetCurrent(context)
        if result:
            raise self.failure("cuCtxSetCurrent", result)

    def launch_kernel(
        self,
        function: Handle,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Handle,
        parameters: int,
    ) -> None:
        """``parameters``: address of an array of pointers to the values, which the driver copies."""
        (result,) = self.driver.cuLaunchKernel(function, *grid, *block, shared, stream, parameters, 0)
        if result:
            raise self.failure("cuLaunchKernel", result)

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        (result,) = self.driver.cuGraphLaunch(graph, stream)
        if result:
            raise self.failure("cuGraphLaunch", result)

    def synchronize_stream(self, stream: Handle) -> None:
        (result,) = self.driver.cuStreamSynchronize(stream)
        if result:
            raise self.failure("cuStreamSynchronize", result)

    def stream_is_idle(self, stream: Handle) -> bool:
        return self._is_done("cuStreamQuery", self.driver.cuStreamQuery(stream)[0])

    def event_is_reached(self, event: Handle) -> bool:
        return self._is_done("cuEventQuery", self.driver.cuEventQuery(event)[0])

    def record_event(self, event: Handle, stream: Handle) -> None:
        (result,) = self.driver.cuEventRecord(event, stream)
        if result:
            raise self.failure("cuEventRecord", result)

    def wait_for_event(self, stream: Handle, event: Handle) -> None:
        """Work submitted to the stream from now on waits for the event."""
        (result,) = self.driver.cuStreamWaitEvent(stream, event, 0)
        if result:
            raise self.failure("cuStreamWaitEvent", result)

    def copy(self, target: int, source: int, length: int, stream: Handle) -> None:
        """Between any two addresses that the device knows, host memory that is pinned included."""
        (result,) = self.driver.cuMemcpyAsync(target, source, length, stream)
        if result:
            raise self.failure("cuMemcpyAsync", result)

    def copy_from_host(self, target: int, source: int, length: int, stream: Handle) -> None:
        """Copies from any host memory. Unless it is pinned, it may be changed as soon as this returns."""
        (result,) = self.driver.cuMemcpyHtoDAsync(target, source, length, stream)
        if result:
            raise self.failure("cuMemcpyHtoDAsync", result)

    def copy_to_host(self, target: int, source: int, length: int, stream: Handle) -> None:
        """Copies to any host memory. Unless it is pinned, the copy is done when this returns."""
        (result,) = self.driver.cuMemcpyDtoHAsync(target, source, length, stream)
        if result:
            raise self.failure("cuMemcpyDtoHAsync", result)

    def fill(self, address: int, length: int, pattern: int, pattern_length: int, stream: Handle) -> None:
        """Fills ``length`` bytes, a multiple of the pattern's 1, 2 or 4 bytes. So is the address."""
        name = _FILLS[pattern_length]
        (result,) = getattr(self.driver, name)(address, pattern, length // pattern_length, stream)
        if result:
            raise self.failure(name, result)

    def _is_done(self, name: str, result: int) -> bool:
        if not result:
            return True
        if result == NOT_READY and self.lost is None:
            return False
        raise self.failure(name, result)


_FILLS: Final = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Owned:
    """Owns a handle until :meth:`close`, or until nothing refers to the owner."""

    __slots__ = ("_api", "_ending", "_forget", "_give_back", "_made")

    def __init__(self, api: Api, give_back: str, forget: Callable[[Iterator[Action]], Action]) -> None:
        """``give_back``: a call of the driver. ``forget`` makes of these calls, of which there is one at the
        most, what happens when the owner dies: a function in C, or what ``uninterrupted`` makes. It lives
        until that has happened: slots end in the order of their names."""
        self._api = api
        self._forget = forget
        self._give_back = give_back
        self._made: list[tuple[Any, ...]] = []
        self._ending = Finalizer(forget(self._calls(filterfalse(_RESULT, self._made))))

    def make(self, name: str, arguments: Iterable[Any], known: tuple[Handle, ...] = ()) -> None:
        """Has the driver make the handle. ``known``: what is given back, where that is no result."""
        made, api = self._made, self._api
        made.extend(map(add, starmap(getattr(api.driver, name), (arguments,)), (known,)))
        result = made[0][0]
        if result:
            made.clear()
            raise api.failure(name, result)

    @property
    def handle(self) -> Handle:
        """What the driver has made, or what was known of it."""
        return self._made[0][1]

    @property
    def driver(self) -> Any:
        """The bindings' module that has made it."""
        return self._api.driver

    def __int__(self) -> int:
        return int(self.handle)

    def close(self) -> None:
        """Gives it back now, which no failure of the driver changes. Twice is once."""
        try:
            next(map(call, self._calls(map(self._made.pop, (-1,)))))
        except IndexError:
            return

    def _calls(self, made: Iterator[tuple[Any, ...]]) -> Iterator[Action]:
        """That give back, in the driver as it is then."""
        callers = map(methodcaller, repeat(self._give_back), map(_GIVEN_BACK, made))
        return map(partial, callers, repeat(self._api.driver))


class Discarded(Finalizer):
    """Keeps what waits to be given back. Things end anywhere, also in the middle of another device's calls,
    and must not touch the driver there.

    All that is made in a context refers to this. The last of it may die long after its device: what is left
    goes back then, before the context, which other libraries may go on using."""

    __slots__ = ("_context", "_left")

    def __init__(self, context: Owned) -> None:
        """``context``: the owner of what the context is retained by."""
        self._left: deque[Action] = deque()
        rest = partial(_give_back_rest, self._left, context.driver, context.handle, [], [])
        super().__init__(repeated(rest))
        self._context = context

    def leave(self, kept: object, calls: Iterator[Action]) -> Action:
        """Makes what leaves calls here. ``kept`` lives until they are made. The garbage collector does not
        see it here: what refers to its own device stays until the next release."""
        return partial(self._left.extend, chain.from_iterable(zip(calls, repeat(partial(id, kept)))))

    def release(self) -> None:
        """Makes all calls. For any thread."""
        made = map(call, iter(self._left.popleft, None))
        while self._left:
            try:
                next(made)
            except IndexError:  # another thread was quicker
                return


def _give_back_rest(
    left: deque[Action],
    driver: Any,
    context: Handle,
    entered: list[tuple[int]],
    returned: list[tuple[Any, ...]],
) -> None:
    """Makes the calls that are left in their context; what is current on the thread stays so.

    It is begun again where it is interrupted: each step is done and noted by one function in C, which takes
    a call from the list or appends to one what the driver has said. What raises keeps no other from its call.
    """
    if left and not entered:
        entered.extend(map(driver.cuCtxPushCurrent, (context,)))
    if not entered or entered[0][0]:
        return  # nothing is left, or it went with the context
    while left:
        with errors.ignored(Exception):
            next(map(call, iter(left.popleft, None)))
    if not returned:
        returned.extend(starmap(driver.cuCtxPopCurrent, ((),)))
