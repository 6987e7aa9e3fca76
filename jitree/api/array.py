"""Holds arrays on a device, as programs return and take them."""

from __future__ import annotations

import math
import sys
from array import array as words
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Self, cast

import numpy as np

from jitree.api.calls.transfers import (
    CALLER,
    HostMethods,
    ImplicitTransfer,
    copy_to_device,
    copy_view,
    keep_interrupt,
    to_numpy,
)
from jitree.errors import FailedPreconditionError, StatusCode, StatusError, fold, folded, pass_interruption
from jitree.hal.buffer import PENDING, BufferView
from jitree.hal.enums import WRITING
from jitree.types import ElementType, element_type

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.calls.native.handle_owners import Keeper
    from jitree.hal.device import Device
    from jitree.hal.fence import Fence

_REPR_ELEMENTS = 1000
"""Elements that are shown; larger arrays are summarised as numpy does."""
_LITTLE = 64 << 10
"""Bytes that machine code reads in 10 us; Python reads a part in 90."""
_DONATED = "the array was donated to a call and cannot be used any more"


class _ArrayExports:
    """``__dlpack_c_exchange_api__``, where machine code of calls is there."""

    def __get__(self, array: Array | None, cls: type[Array]) -> object:
        capsule = _Others.exchange_functions()
        if capsule is None:
            raise AttributeError("there is no machine code of calls; use __dlpack__")
        return capsule


class Array(HostMethods, ImplicitTransfer):
    """A dense array in device memory. Made by calls, :meth:`Session.to_device` and :meth:`Session.empty`.

    It has numpy's attributes (``shape``, ``dtype``, ``nbytes`` in bytes), operators and methods. Those
    compute on the host and give numpy arrays; ``copy``, ``to_device``, ``view``, ``out=`` and ``a += 1`` stay
    on the device. On the CPU drivers ``np.asarray(array)``, DLPack consumers and (from Python 3.12 on)
    ``memoryview(array)`` share its memory without copying.

    The result of an asynchronous call may still be computed: whatever needs the elements waits, and raises
    what the call failed with; ``await array`` waits in asyncio. FAILED_PRECONDITION for an array that was
    donated (:func:`jitree.donate`).

    >>> session = jitree.Session("local-sync")
    >>> array = session.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> array
    jitree.Array(2x3 float32 on local-sync:
    [[0., 1., 2.],
     [3., 4., 5.]])
    >>> array.sum(axis=0)
    array([3., 5., 7.], dtype=float32)
    >>> array += 1  # on the device: it stays this array
    >>> array.tolist()
    [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    """

    __slots__ = (
        "__weakref__", "_device", "_dimensions", "_elements", "_fence", "_keeper", "_owner", "_passed_as",
        "_view",
    )  # fmt: skip

    def __init__(self, view: BufferView, device: Device, fence: Fence | None = None) -> None:
        """``fence`` is reached when the elements are there; None: they are."""
        self._view: BufferView | None = view
        self._device = device
        self._fence = fence
        self._elements: tuple[npt.NDArray[Any], int] | None = None
        """What the host has seen of it, and after how many writes of programs."""
        self._owner: object | None = None
        """Owns a handle of the view (:mod:`jitree.api.calls.native.arrays`): of results of direct calls,
        which get a view when one is asked for, and of arrays that such calls were given."""
        self._keeper: Keeper | None = None
        """Keeps what ``_owner`` owns."""
        self._passed_as: object = None
        """The type of the last parameter that took the array as it is, without looking at it again."""
        self._dimensions: npt.NDArray[np.int64] | None = None
        """Those and the strides, where another library looks for them."""

    def _be_passed(self, keeper: Keeper, marker: object) -> bool:
        """Gives the array a handle for direct calls of a session. False if it has one in another, or another
        thread has just given it away. The lock of the session's context must be held."""
        view = self.buffer_view if self._owner is None else None
        owner = None if view is None else keeper.own(view)
        if owner is not None and self._owner is None and self._view is view:
            self._owner, self._keeper = owner, keeper
        if is_here := self._owner is not None and self._keeper is keeper:
            self._passed_as = marker
        return is_here

    # Other threads come where something is called: not between looks at attributes and their change, nor
    # between changes, as long as what was there is kept, whose end is a call.

    def _give_up(self) -> None:
        """Lets go of the elements, which belong to another owner from now on. FAILED_PRECONDITION if they are
        already: another thread may have donated them."""
        _kept = self._passed_as, self._view, self._owner, self._keeper, self._elements
        if self._view is None and self._owner is None:
            raise FailedPreconditionError(_DONATED)
        self._passed_as = self._view = self._owner = self._keeper = self._elements = None
        WRITES[0] += 1

    def _be_written(self) -> None:
        """A program or another library may write to the elements: what the host has seen of them, by whatever
        array, is old."""
        self._elements = None
        WRITES[0] += 1

    def _be_copied(self, copy: BufferView) -> BufferView:
        """Has other memory with its elements from now on, which programs may write to."""
        _kept = self._passed_as, self._view, self._owner, self._keeper, self._elements
        self._view = copy
        self._passed_as = self._owner = self._keeper = self._elements = None
        return copy

    @property
    def is_donated(self) -> bool:
        """Whether the elements have been given to a call for good, with :func:`jitree.donate`.

        Such an array has no shape and no elements any more: what asks for them fails with
        FAILED_PRECONDITION.
        """
        return self._view is None and self._owner is None

    def _require_elements(self) -> None:
        """FAILED_PRECONDITION for a donated array, which has none to be waited for."""
        if self.is_donated:
            raise FailedPreconditionError(_DONATED)

    @property
    def buffer_view(self) -> BufferView:
        """The ``BufferView`` of its shape and type, whose elements may still be computed.

        :meth:`Session.call_direct` takes it. FAILED_PRECONDITION for a donated array.
        """
        view = self._view
        if view is None:
            keeper, owner = self._keeper, self._owner
            if keeper is None or owner is None:
                raise FailedPreconditionError(_DONATED)
            # Machine code that runs may count references of the same entry, which making the object changes.
            with keeper.lock:
                view = cast(BufferView, keeper.owned(owner))
            if self._owner is not owner:  # given away meanwhile
                return self.buffer_view
            self._view = view
        return view

    @property
    def device(self) -> Device:
        """The device in whose memory it lies."""
        return self._device

    @property
    def fence(self) -> Fence | None:
        """Names what must be reached before the elements are there, None if nothing must."""
        return self._fence

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements it has along each axis; ``()`` for rank 0.

        It is known before the elements are. FAILED_PRECONDITION for a donated array.

        >>> session = jitree.Session("local-sync")
        >>> session.empty((2, 3)).shape
        (2, 3)
        """
        keeper, owner = self._keeper, self._owner
        known = keeper.shape(owner) if self._view is None and keeper and owner else None
        return self.buffer_view.shape if known is None else known

    @property
    def element_type(self) -> ElementType:
        """The type of its elements, as programs name it: ``i32``, ``bf16``."""
        keeper, owner = self._keeper, self._owner
        if self._view is None and keeper is not None and owner is not None:
            known = keeper.type_and_encoding(owner)
            if known is not None:
                return element_type(known[0])
        return element_type(self.buffer_view.element_type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy or ml_dtypes type of its elements on the host.

        Types below 8 bits have a byte for each element there. FAILED_PRECONDITION for a donated array.

        >>> session = jitree.Session("local-sync")
        >>> session.to_device([1.5, 2.5]).dtype
        dtype('float64')
        """
        return self.element_type.dtype

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of its elements, all axes together."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the device: elements below 8 bits are packed."""
        return self.element_type.byte_length(self.shape)

    def _compute_until(self, fence: Fence) -> None:
        """Computes the elements in memory that the host does not see: they are there when a fence is reached,
        or has failed, which is a matter of the results."""
        from jitree.hal.fence import OrderingFence

        self._passed_as = None
        self._fence = OrderingFence(fence.timepoints)

    def _is_there(self) -> bool:
        """Whether the elements are there, for all that can be told without waiting."""
        if self._fence is not None and self._fence.is_reached():
            self._fence = None
        return self._fence is None

    def _updates(self) -> list[Fence]:
        """Names what is reached, or fails, when no pending call writes to its memory."""
        if PENDING[0] != WRITING or self.is_donated:
            return []
        from jitree.hal.memory_order import before_both, extents

        return [end for use in before_both(extents((self.buffer_view,)), ()) for end in use.ends]

    def _await_updates(self) -> None:
        """Waits until no call writes to its memory that goes on without this thread."""
        from jitree.hal.memory_order import await_written, extents

        await_written(*(() if self.is_donated else extents((self.buffer_view,))))

    @property
    def ready(self) -> bool:
        """Whether the elements are there, or will never be because the call failed; it does not wait.

        FAILED_PRECONDITION for a donated array.
        """
        self._require_elements()
        is_computed = self._fence is None or self._fence.query() != StatusCode.DEFERRED
        return is_computed and not self._updates()

    def wait(self) -> Self:
        """Waits for the elements, and gives the array itself.

        Raises what the call that computes them failed with; FAILED_PRECONDITION for a donated array.
        """
        try:
            if self._view is None and self._owner is None:
                self._require_elements()
            if self._fence is not None:
                self._fence.wait()
                self._fence = None
            if PENDING[0]:
                self._await_updates()
        except BaseException as error:
            fold(error)
            raise
        return self

    def __await__(self) -> Generator[object, None, Self]:
        self._require_elements()
        if self._fence is not None:
            try:
                yield from self._fence.__await__()
            except StatusError as error:
                fold(error)
                raise
            self._fence = None
        for fence in self._updates():
            yield from fence.__await__()
        return self

    @folded
    def to_host(self) -> npt.NDArray[Any]:
        """Gives the elements as a numpy array of the same shape and ``dtype``.

        On the CPU drivers it shows the memory of the array, without a copy; of other devices the elements are
        copied. It waits for them and raises what the call that computes them failed with; FAILED_PRECONDITION
        for a donated array.

        >>> digits = jitree.load("examples/digits/digits.vmvx.vmfb")
        >>> probabilities = digits.classify(np.zeros((8, 8), np.float32)).to_host()
        >>> probabilities.shape, probabilities.dtype
        ((10,), dtype('float32'))
        """
        if PENDING[0]:
            self._await_updates()
        known = self._known_elements()
        if known is None:
            if self._owner is not None:
                found = _Others.find_elements(self)
                if found is not None:
                    return found
                found = self._fetch()
                if found is not None:
                    return found
            view = self.buffer_view
            elements = view.elements
            writes = WRITES[0]
            if elements is None or self._fence is not None:
                elements = to_numpy(view, self._device, self._fence)
                if self._fence is not None:
                    self._fence = None
                    self.wait()
            shown = elements.view()
            exchange = self._device.array_exchange
            if exchange is not None and exchange.is_shared(view):
                return shown  # other code may write to the memory
            self._elements = shown, writes
            return shown
        return known

    def _known_elements(self) -> npt.NDArray[Any] | None:
        """What the host has seen of them, if that is still so."""
        if self._elements is None:
            return None
        elements, writes = self._elements
        return elements if writes == WRITES[0] else None

    def _fetch(self) -> npt.NDArray[Any] | None:
        """The elements of an array that only machine code knows, copied from the device."""
        keeper = self._keeper
        if self._view is not None or keeper is None or keeper.pattern is None:
            return None
        writes = WRITES[0]
        fetched = _Others.fetch(keeper.pattern, self)
        exchange = self._device.array_exchange
        is_shared = exchange is None or exchange.shares  # for all that is known without a view
        self._elements = None if fetched is None or is_shared else (fetched, writes)
        return fetched

    def _implicitly(self) -> npt.NDArray[Any]:
        """As :meth:`to_host` where the program does not say so. FAILED_PRECONDITION if it has to."""
        self._require_implicit()
        return self.to_host()

    def _require_implicit(self) -> None:
        exchange = self._device.array_exchange
        if exchange is not None and exchange.explicit_transfers:
            raise FailedPreconditionError(
                f"the elements of an array on {self._device.uri} are needed on the host, and its device was "
                "created with host_transfers=explicit; call to_host()"
            )

    @folded
    def __buffer__(self, flags: int) -> memoryview:
        """``memoryview(array)``, from Python 3.12 on. BufferError for types that it does not know."""
        try:
            return self._implicitly().data
        except ValueError as error:
            pass_interruption(error)
            raise BufferError(f"memoryviews cannot hold {self.dtype} elements") from error
        except BaseException as error:
            keep_interrupt(error, sys._getframe(CALLER))
            raise

    @folded
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule over the array's memory. ``stream`` means nothing for host memory.

        BufferError for a copy, or for another device than the array's, of an array in device memory."""
        exchange = self._device.array_exchange
        if exchange is not None and dl_device in (None, exchange.dlpack_device):
            if copy:
                raise BufferError("an array in device memory cannot be exported as a copy")
            self._be_written()  # by the consumer, to memory that other arrays may have too
            return exchange.export_dlpack(self.buffer_view, self._fence, stream, max_version)
        from jitree.base.dlpack import export

        options = {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return export(self.to_host(), **{name: value for name, value in options.items() if value is not None})

    __dlpack_c_exchange_api__ = _ArrayExports()

    def __dlpack_device__(self) -> tuple[int, int]:
        exchange = self._device.array_exchange
        if exchange is not None:
            return exchange.dlpack_device
        from jitree.base.dlpack import CPU_DEVICE

        return CPU_DEVICE

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array's memory, where the host does not see it; other arrays do not have this attribute."""
        exchange = self._device.array_exchange
        if exchange is None:
            raise AttributeError(f"an array on {self._device.id} is not in the memory of a GPU")
        self._be_written()
        return exchange.array_interface(self.buffer_view, self._fence)

    def item(self, *index: int) -> Any:
        """One element as a Python number, without the others where that is possible.

        ``index``: a number for each axis, or one that counts all elements; none for an array of one element.
        IndexError outside the shape, ValueError for an array of more elements without an index.

        >>> session = jitree.Session("local-sync")
        >>> session.to_device([[1, 2], [3, 4]]).item(1, 0)
        3
        """
        if index and len(index) == self.ndim:
            return self[index].item()
        return self._implicitly().item(*index)

    @folded
    def __getitem__(self, index: Any) -> Any:
        """Elements as numpy gives them. Of an array in device memory a part is read by itself, unless machine
        code reads all of it sooner."""
        try:
            if self._device.array_exchange is not None and self._known_elements() is None:
                self._require_implicit()
                is_little = self._view is None and self.nbytes <= _LITTLE
                part = None if is_little else _Others.read(self, index)
                if part is not None:
                    return part
            return self._implicitly()[index]
        except StatusError:  # of the call that computes it
            raise
        except (IndexError, OverflowError) as error:
            pass_interruption(error)
            raise _Others.explained(error, self.shape, index) from None

    @folded
    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes elements by integers and slices, after all that this thread has submitted.

        ``value``: an array of the same element type, or numbers that the element type holds.
        INVALID_ARGUMENT for other types and for shapes that do not fit, OUT_OF_RANGE outside,
        PERMISSION_DENIED for memory that must stay as it is, FAILED_PRECONDITION for a donated array.
        """
        _Others.write(self, index, value)

    def copy(self) -> Array:
        """Copies the array on its device, with its shape and type.

        It waits for the elements. RESOURCE_EXHAUSTED without memory, FAILED_PRECONDITION for a donated array.

        >>> session = jitree.Session("local-sync")
        >>> first = session.to_device([1, 2, 3])
        >>> second = first.copy()
        >>> second[0] = 9
        >>> first.tolist(), second.tolist()
        ([1, 2, 3], [9, 2, 3])
        """
        self.wait()
        view, device = self.buffer_view, self._device
        if view.buffer.host_address is None:
            return Array(copy_view(view, device), device)
        return Array(copy_to_device(self.to_host(), self.element_type, device), device)

    __copy__ = copy

    def __deepcopy__(self, memo: object) -> Array:
        return self.copy()

    def to_device(self, device: Any, /, *, stream: None = None) -> Any:
        """Moves the array to another device, through the host; its shape and type stay.

        ``device``: a :class:`jitree.Device` (the same array if it is there), or "cpu" for a numpy array, as
        the standard of arrays has it. ``stream`` is None: copies are ordered by the host. INVALID_ARGUMENT
        for other devices and streams, FAILED_PRECONDITION for a donated array.

        >>> one, other = jitree.Session("local-sync"), jitree.Session("local-task")
        >>> one.to_device([1, 2]).to_device(other.device).device.id
        'local-task'
        """
        return _Others.moved(self, device, stream)

    def __reduce__(self) -> Any:
        """Pickles elements and the URI of a device: a process has one for arrays of each URI. Fails with what
        the driver says where there is no such device."""
        return _Others.unpickled, (self._own_copy(), self._device.uri)

    def __repr__(self) -> str:
        if self.is_donated:
            return "jitree.Array(donated to a call)"
        head = f"jitree.Array({'x'.join(map(str, self.shape)) or 'rank 0'} {self.dtype} on {self._device.id}"
        if not self.ready:
            return f"{head}, being computed)"
        if self._fence is not None and self._fence.failure is not None:
            return f"{head}, failed: {self._fence.failure})"
        try:
            elements = self.to_host()
        except StatusError as error:
            return f"{head}, cannot be shown: {error})"
        shown = np.array2string(elements, threshold=_REPR_ELEMENTS, separator=", ")
        return f"{head}:\n{shown})"


WRITES: Final = words("q", (0,))
"""How often programs may have written to arrays; machine code counts, too. Arrays over one memory do not know
each other: what the host has seen of any is old after the next."""


class _Others:
    """Holds what others do for arrays: those built on them, and machine code."""

    read: Callable[[Array, Any], Any]
    write: Callable[[Array, Any, Any], None]
    explained: Callable[[Exception, tuple[int, ...], Any], Exception]
    exchange_functions: Callable[[], object]
    moved: Callable[[Array, Any, None], Any]
    unpickled: Callable[[npt.NDArray[Any], str], Array]

    find_elements: Callable[[Array], npt.NDArray[Any] | None] = staticmethod(lambda array: None)
    """The elements of an array that has an owner, None where that takes more than a look at its handle."""
    fetch: Callable[[object, Array], npt.NDArray[Any] | None] = staticmethod(lambda pattern, array: None)
    """A copy of the elements of such an array in a device's memory, None where that takes Python."""
    converter: Callable[[type, Callable[[Array], Any]], Callable[[Array], Any] | None]
    converter = staticmethod(lambda kind, take: None)
    """See :func:`converter`."""


def converter(kind: type, take: Callable[[Array], Any]) -> Callable[[Array], Any] | None:
    """Tells what makes an array another library's type. It is None where that takes ``take``; None as long as
    there is no machine code of calls."""
    return _Others.converter(kind, take)


def use_parts(
    read: Callable[[Array, Any], Any],
    write: Callable[[Array, Any, Any], None],
    explained: Callable[[Exception, tuple[int, ...], Any], Exception],
    exchange_functions: Callable[[], object],
    moved: Callable[[Array, Any, None], Any],
    unpickled: Callable[[npt.NDArray[Any], str], Array],
) -> None:
    """From now on indices are understood, and other libraries find DLPack's C exchange interface."""
    _Others.read = staticmethod(read)
    _Others.write = staticmethod(write)
    _Others.explained = staticmethod(explained)
    _Others.exchange_functions = staticmethod(exchange_functions)
    _Others.moved = staticmethod(moved)
    _Others.unpickled = staticmethod(unpickled)


def show_elements(find_elements: Callable[[Array], npt.NDArray[Any] | None]) -> None:
    """From now on arrays with an owner are looked at by a function."""
    _Others.find_elements = staticmethod(find_elements)


def replace_methods(
    array_method: Any,
    buffer_method: Any,
    find_elements: Callable[[Array], npt.NDArray[Any] | None],
    fetch: Callable[[object, Array], npt.NDArray[Any] | None],
    converter: Callable[[type, Callable[[Array], Any]], Callable[[Array], Any] | None],
) -> None:
    """From now on arrays are looked at by machine code (:mod:`jitree.api.calls.native.arrays`)."""
    Array.__array__ = array_method  # type: ignore[method-assign]
    Array.__buffer__ = buffer_method  # type: ignore[method-assign]
    show_elements(find_elements)
    _Others.fetch = staticmethod(fetch)
    _Others.converter = staticmethod(converter)
