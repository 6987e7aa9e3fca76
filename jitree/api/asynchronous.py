"""Functions compiled to be asynchronous (the ``coarse-fences`` model).

They take two fences after their arguments: they wait for the first before touching any array, and reach the
second when all results are there. They return at once.
"""

from __future__ import annotations

import time
from types import FunctionType
from typing import Any

from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX
from jitree.api.calls.memory_order import are_ordered, awaited_use, calls_before, uses_of
from jitree.api.calls.overlaps import arrays_of
from jitree.api.calls.tensor_packing import ArrayTransfer, pending_view
from jitree.api.calls.waiting import await_work, await_work_async, give_up
from jitree.api.function import Function
from jitree.base.events import telling
from jitree.dispatch.invocation import SUBMITTED
from jitree.dispatch.session_lock import CANCELS
from jitree.errors import StatusError, folded
from jitree.hal.fence import COMES_AFTER, Fence
from jitree.hal.memory_order import Earlier, begin


class AsynchronousFunction(Function):
    """Called plainly it waits for its results; :meth:`async_` awaits them, :meth:`submit` waits for nothing.

    Results of one call that are still computed can be arguments of the next: nothing waits on the host. Numpy
    arguments are copied, so they may be changed as soon as the call returns. Later calls that write what a
    submitted one reads or writes, or read what it writes, come after it, by whatever arrays they have that
    memory. If it fails its results raise that, and the arguments that it updates stay usable as they are.
    """

    __slots__ = ()

    def transfer(self) -> ArrayTransfer:
        return ArrayTransfer(self._device, pending_view)

    def _call_once(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        begun = self.invoker.gate[CANCELS]
        wait, signal, packed, _ = self._begin(arguments, named)
        try:
            try:
                results = self._context.invoke(self._vm_function, [*packed, wait, signal])
            except StatusError as error:
                self._fail(error)
            try:
                await_work(self.invoker, begun, signal, wait)
            except StatusError as error:
                self._fail(error.with_context(f"invoking function '{self.name}'"))
            return self.unpack(results)
        except BaseException as error:
            give_up(error, signal, wait)
            raise

    async def _invoke_async(self, /, *arguments: Any, **named: Any) -> Any:
        begun = self.invoker.gate[CANCELS]
        wait, signal, packed, earlier = self._begin(arguments, named)
        call, outer = self._context.invoke_async, COMES_AFTER.get()
        try:
            COMES_AFTER.set(wait)
            try:
                with awaited_use(self._device, self.arguments, packed, signal, earlier) as use:
                    try:
                        await use.take_turn_here()
                        results = await use.whenever_it_waits(
                            call(self._vm_function, [*packed, wait, signal])
                        )
                    except BaseException as error:  # the use fails the fence at its end
                        give_up(error, signal, wait)
                        raise
                if not signal.is_reached():
                    self._announce(signal, arguments, named, packed, earlier)
                    await await_work_async(self.invoker, begun, signal, wait)
            except StatusError as error:
                self._fail(error)
            return self.unpack(results)
        except BaseException as error:
            give_up(error, signal, wait)
            raise
        finally:
            COMES_AFTER.set(outer)

    @folded
    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Submits the call and returns its results, which may still be computed."""
        cls = type(self)
        if self._direct is not None and not isinstance(cls.submit, FunctionType):
            return cls.submit(self, *arguments, **named)  # a caller has kept this one from before
        return self.submit_slowly(*arguments, **named)

    @folded
    def submit_slowly(self, *arguments: Any, **named: Any) -> Any:
        """As :meth:`submit`, by Python."""
        if named and self.order.limits(named):
            with self._limit(named):
                return self.submit(*arguments, **named)
        if not self.readers:
            return self._submit_once(arguments, named)[0]
        assert self._event is not None
        call = self._event(arguments, named)
        with telling([reader for reader in self.readers if reader.reads_awaited], call):
            call.results, call.fence = self._submit_once(arguments, named)
            call.failed = False
        return call.results

    def _submit_once(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Fence | None]:
        """Results, and what is reached when they are computed, if they are not yet."""
        begun = time.thread_time()
        wait, signal, packed, earlier = self._begin(arguments, named)
        try:
            try:
                results = self._context.invoke(self._vm_function, [*packed, wait, signal], SUBMITTED)
            except StatusError as error:
                self._fail(error)
            if not self._is_settled:
                self._have_called(begun)
            if signal.is_reached():
                return self.unpack(results), None
            self._announce(signal, arguments, named, packed, earlier)
            self.invoker.submitted.add(signal)
            return self.unpack(results, signal), signal
        except BaseException as error:
            give_up(error, signal, wait)
            raise

    def _begin(
        self, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Fence | None, Fence, list[object], Earlier]:
        """(wait fence, signal fence, packed arguments, what it comes after because of memory)"""
        arrays = arrays_of((*arguments, *named.values()))
        pending = [None if array._is_there() else array.fence for array in arrays]
        packed = self._pack(arguments, named)
        earlier = calls_before(self._device, self.arguments, packed)
        pending.append(earlier.turn)
        return Fence.join(pending), Fence.create(self._device), packed, earlier

    def _announce(
        self,
        signal: Fence,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        packed: list[object],
        earlier: Earlier,
    ) -> None:
        """Orders a call by its memory. Users of what it writes wait for it, and it waits for who writes what
        it reads."""
        if are_ordered(self._device):
            begin(signal, *uses_of(self.arguments, packed), earlier)
            return
        values = self.order(*arguments, **named) if named else arguments
        for parameter, value in zip(self.arguments, values, strict=True):
            if parameter.written:
                for array in arrays_of((value,)):
                    array._compute_until(signal)


class PairedFunction(Function):
    """Calls a function that waits, or its twin ``f$async``. Torch's front end exports both, and asynchronous
    calls go to the other one."""

    __slots__ = ()

    async def async_(self, *arguments: Any, **named: Any) -> Any:
        """Submits the call and awaits its results."""
        return await self._counterpart.async_(*arguments, **named)

    @folded
    def submit(self, *arguments: Any, **named: Any) -> Any:
        """Submits the call and returns its results, which may still be computed."""
        return self._counterpart.submit(*arguments, **named)

    @property
    def _counterpart(self) -> Function:
        name = self.name + TORCH_ASYNC_SUFFIX
        return self._session._found(lambda context: context.function_of(self._vm_function.module, name))
