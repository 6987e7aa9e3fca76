"""Handles of the driver: made, owned and given back in one place, whatever interrupts the caller.

Python looks for signals after each call, so that a handler's exception (Ctrl-C) may come when the driver has
made something and nothing refers to it yet. Here an owner exists before what it will own: functions in C take
the handle from the driver's result to the owner, and from there back to the driver, in a single step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, filterfalse, repeat, starmap
from operator import add, call, itemgetter, methodcaller
from typing import Any, Final

from jitree.base.endings import Ending
from jitree.cuda.api import Api, Handle

_RESULT: Final = itemgetter(0)
_GIVEN_BACK: Final = itemgetter(-1)
Action = Callable[[], object]


class Owned:
    """A handle, which is given back by :meth:`close`, or when nothing refers to the owner any more."""

    __slots__ = ("_api", "_ending", "_give_back", "_made")

    def __init__(self, api: Api, give_back: str, forget: Callable[[Iterator[Action]], Action]) -> None:
        """``give_back``: a call of the driver. ``forget`` makes of these calls, of which there is one at the
        most, what happens when the owner dies: a function in C, or what ``carefully`` makes."""
        self._api = api
        self._give_back = give_back
        self._made: list[tuple[Any, ...]] = []
        self._ending = Ending(forget(self._calls(filterfalse(_RESULT, self._made))))

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


class Discarded:
    """What waits to be given back: things end anywhere, also in the middle of another device's calls, and
    must not touch the driver there."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: deque[Action] = deque()

    def leave(self, after: Iterable[Action], calls: Iterator[Action]) -> Action:
        """What leaves calls here, and ``after`` each of them what is to be called, and to live, until
        then."""
        steps = zip(calls, *map(repeat, after), strict=False)
        return partial(self._left.extend, chain.from_iterable(steps))

    def release(self) -> None:
        """Makes all calls. For any thread."""
        made = map(call, iter(self._left.popleft, None))
        while self._left:
            try:
                next(made)
            except IndexError:  # another thread was quicker
                return
