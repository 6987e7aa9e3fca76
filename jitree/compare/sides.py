"""Describes and calls the two sides of a comparison.

One at a time, or both.

A side is a program on a device, a function of a session, a model of another runtime, or anything that can be
called.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.api.array import Array
from jitree.api.array_conversion import ConvertingFunction
from jitree.api.calls.declaration import without_twins
from jitree.api.calls.refusal import describe
from jitree.api.calls.tensor_packing import as_array
from jitree.api.function import Function
from jitree.base.arguments import items
from jitree.base.events import DISPATCH
from jitree.base.platform.threads import thread_refusals
from jitree.compare.peers import CallablePeer, Peer, TorchPeer, is_module
from jitree.errors import InvalidArgumentError, NotFoundError, StatusError, has_attribute, pass_interruption
from jitree.hal.stepwise import DeviceStep
from jitree.observe.export_names import TensorKind
from jitree.observe.fingerprints import digest
from jitree.observe.observation import Makers, Onlooker
from jitree.observe.origins import CallOrigin
from jitree.observe.tensors import VALUE, ObservedDispatch, ObservedTensor
from jitree.types import element_type_of

if TYPE_CHECKING:
    from jitree.api.session import Session
    from jitree.hal.stepwise import Extent

_SHOWN: Final = "shown"
"""The source of a type that a peer has shown."""
_NOWHERE: Final = CallOrigin(None, "", "")


_NO_NUMBERS: Final = "OSUMm"
"""Kinds of arrays: of objects, texts and dates."""

SideLike: TypeAlias = Any
"""A path or bytes of a module, (module, device), (module, device, options of the session), a Function, or
something that takes arrays and gives such."""

Results = list[np.ndarray[Any, Any]]


class ModuleSide:
    """Opens a module anew for each call, so that calls begin alike in state."""

    def __init__(self, source: Any, device: Any, options: Mapping[str, Any], function: str | None) -> None:
        self._source = source
        self._device = device
        self._options = options
        self._function = function

    @contextmanager
    def open(self) -> Iterator[Function]:
        from jitree.api.session import Session

        with Session(self._device, **self._options) as session:
            yield function_of(session.load(self._source), self._function)


class FunctionSide:
    """A function of a session that goes on afterwards."""

    def __init__(self, function: Function) -> None:
        self._function = function

    @contextmanager
    def open(self) -> Iterator[Function]:
        yield self._function


ProgramSide: TypeAlias = ModuleSide | FunctionSide
Side: TypeAlias = ProgramSide | Peer


def side_of(name: str, given: SideLike, function: str | None, options: Mapping[str, Any]) -> Side:
    """INVALID_ARGUMENT for what cannot be called; ``name`` is that of the argument."""
    if isinstance(given, ConvertingFunction):
        given = given.function
    if isinstance(given, Function):
        return FunctionSide(given)
    peer = _peer_of(given)
    if peer is not None:
        return peer
    if isinstance(given, (str, os.PathLike, bytes, bytearray, memoryview)):
        return ModuleSide(given, None, options, function)
    if isinstance(given, tuple) and 2 <= len(given) <= 3 and isinstance(given[-1], (str, Mapping)):
        source, device, *more = given
        return ModuleSide(source, device, {**options, **(more[0] if more else {})}, function)
    if callable(given):
        return CallablePeer(given)
    raise InvalidArgumentError(
        f"{name}: expected the path of a module, (path, device), a function of a session, an ONNX model or "
        f"something that can be called, but got {describe(given)}"
    )


def _peer_of(given: Any) -> Peer | None:
    """Models of other runtimes, which are not loaded for it."""
    from jitree.compare import peers

    if is_module(given):
        return TorchPeer(given)
    return peers.OnnxPeer(given) if peers.is_onnx(given) else None


def function_of(module: Any, name: str | None) -> Function:
    """The function of that name; without a name the only one.

    One that waits stands for its twin.
    """
    meant = without_twins(module.names)
    if name is None and len(meant) == 1:
        found: Function = module[meant[0]]
        return found
    local = (name or "").removeprefix(f"{module.name}.")
    if local not in module.names:
        kind = InvalidArgumentError if name is None else NotFoundError
        raise kind(
            f"function: the module '{module.name}' exports {', '.join(module.names) or 'nothing'}"
            + ("; say which one is meant" if name is None else f", no '{name}'")
        )
    chosen: Function = module[local]
    return chosen


def require_apart(one: Function | Peer, other: Function | Peer) -> None:
    """INVALID_ARGUMENT for calls that could not wait for each other."""
    if isinstance(one, Peer) or isinstance(other, Peer):
        return
    session: Session = one.session
    if session is other.session or set(session.devices) & set(other.session.devices):
        raise InvalidArgumentError(
            "two calls go on at the same time: give functions of two sessions with a device each, or paths"
        )


def arguments_of(inputs: Any) -> tuple[Any, ...]:
    """INVALID_ARGUMENT for what is no sequence of arguments."""
    return items("inputs", inputs)


def arrays_of(results: Any) -> list[np.ndarray[Any, Any]]:
    """What a call gives, as arrays of the host. INVALID_ARGUMENT for what is none."""
    return [_array(item) for item in _single(results)]


def extents_of(results: Any) -> list[Extent | None]:
    """Where the same lies in memory of the device; None for what is no array of one."""
    return [
        (item.buffer_view.buffer.address, item.nbytes) if isinstance(item, Array) else None
        for item in _single(results)
    ]


def shown_array(value: Any) -> np.ndarray[Any, Any] | None:
    """A value that something shows while it computes; None for what is no tensor."""
    try:
        found = _array(value)
    except InvalidArgumentError:
        return None
    return found if found.size > 1 else None


def _single(results: Any) -> list[Any]:
    if isinstance(results, Mapping):
        results = list(results.values())
    given: Sequence[Any] = results if isinstance(results, (tuple, list)) else [results]
    return [item for item in given if item is not None]


def _array(item: Any) -> np.ndarray[Any, Any]:
    for name in ("detach", "cpu", "to_host"):  # PyTorch's, and iree.runtime's
        if has_attribute(item, name):
            item = getattr(item, name)()
    try:
        found = as_array(item)  # also of element types that numpy has not
        array = np.asarray(item) if found is None else found
    except RecursionError:
        raise
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        pass_interruption(error)
        why = f"results are compared as arrays, and {describe(item)} is none: {error}"
        raise InvalidArgumentError(why) from error
    if array.dtype.kind in _NO_NUMBERS:
        raise InvalidArgumentError(f"results are compared as arrays, and {describe(item)} is none")
    return array


def observed(
    opened: Function | Peer,
    onlookers: Sequence[Onlooker],
    inputs: Sequence[Any],
    after: Callable[[], object] | None = None,
) -> Results:
    """Results of a call that onlookers look at; ``after`` is called at its end, however that is."""
    try:
        if isinstance(opened, Peer):
            return _observed_peer(opened, onlookers, inputs)
        with opened.session.looked_at(*onlookers):
            given = opened(*inputs)
            results = arrays_of(given)
        for onlooker in onlookers:
            if isinstance(onlooker, Makers):
                onlooker.results = [extent and onlooker.of(extent) for extent in extents_of(given)]
        return results
    finally:
        if after is not None:
            after()


def _observed_peer(peer: Peer, onlookers: Sequence[Onlooker], inputs: Sequence[Any]) -> Results:
    """What no dispatch makes has no makers."""
    others = [onlooker for onlooker in onlookers if not isinstance(onlooker, Makers)]
    if not others:
        return arrays_of(peer.call(inputs, None))
    shower = Shower(others)

    def show(name: str, value: Any) -> None:
        array = shown_array(value)
        if array is not None:
            shower(name, array)

    return arrays_of(peer.call(inputs, show))


Call = tuple[str, Callable[[], Results]]
"""With the name of what is called, for messages."""


def both(here: Call, elsewhere: Call) -> tuple[Results, Results]:
    """Makes two calls at the same time, one of them on another thread.

    What the first fails with comes first.
    """
    outcome: list[Results | BaseException] = []

    def work() -> None:
        try:
            outcome.append(elsewhere[1]())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="jitree-diff")
    with thread_refusals("comparing at one time"):
        thread.start()
    try:
        first = here[1]()
    except StatusError as error:
        raise error.with_context(f"of {here[0]}") from error.__cause__
    finally:
        thread.join()
    second = outcome[0]
    if isinstance(second, StatusError):
        raise second.with_context(f"of {elsewhere[0]}")
    if isinstance(second, BaseException):
        raise second
    return first, second


class ShownValue(ObservedDispatch):
    """One tensor, with the name that its runtime gives it.

    What it was computed from is not known.
    """

    what = VALUE

    def __init__(self, name: str, ordinal: int, array: np.ndarray[Any, Any]) -> None:
        super().__init__(DeviceStep(DISPATCH, (), name=name), _NOWHERE, ordinal)
        element = element_type_of(array.dtype)
        kind = None if element is None else TensorKind(element, array.shape)
        extent = array.ctypes.data, array.nbytes
        self.show((), (ObservedTensor(0, extent, kind, _SHOWN, self.label),))
        self._array = array  # the memory at the extent


class Shower:
    """Tells onlookers of the values of one call. They come in the order of the computation, each once, under
    the name that it has first."""

    def __init__(self, onlookers: Sequence[Onlooker]) -> None:
        self._onlookers = onlookers
        self._count = 0
        self._seen = set[tuple[tuple[int, ...], bytes]]()

    def __call__(self, name: str, array: np.ndarray[Any, Any]) -> None:
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        key = array.shape, digest(array)
        if key in self._seen:
            return
        self._seen.add(key)
        value = ShownValue(name, self._count, array)
        self._count += 1
        try:
            for onlooker in self._onlookers:
                onlooker.looks_at(value)
        finally:
            for tensor in value.outputs:
                tensor.end()
