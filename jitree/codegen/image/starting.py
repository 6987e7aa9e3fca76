"""Starting the builder process beside the calls of this one, which are not to wait for it, and before it is
known what it is to build.
"""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from jitree.codegen.image.worklist import WorkList

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jitree.codegen.image import background
    from jitree.codegen.image.builds import Builds
    from jitree.codegen.image.flat import Recipe


class Starting(Thread):
    """Starts a builder process, and is then that: no call waits for it. The process imports what it needs,
    and builds nothing before :meth:`begin`."""

    def __init__(
        self,
        recipes: Sequence[Recipe],
        keys: Sequence[bytes],
        key: bytes,
        niceness: int,
        builds: Builds | None,
    ) -> None:
        """``key`` is that of the builder, of which there is one at a time; ``niceness`` is what it has until
        it begins; ``builds`` limits the process."""
        super().__init__(name=f"jitree-builder-{recipes[0].name}")
        self.work = WorkList.create(len(recipes))
        self._numbers = {key: number for number, key in enumerate(keys)}
        self._arguments = recipes, keys, key, niceness, self.work
        self._builds = builds
        self._niceness = niceness
        self.is_waiting = True
        """Whether it has not been said yet what to build."""
        self.is_ended = False
        """Whether :meth:`end` was called."""
        self._builder: background.Builder | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            from jitree.codegen.image import background  # here: it takes a call half a millisecond

            background.give_way()
            self._builder = background.start_builder(*self._arguments)
            if self._builder is not None and self._builds is not None and self._builds.is_limit:
                self._builder.limit(self._builds.limit)
            if self._niceness != self._arguments[3]:  # it has begun meanwhile
                self._go_after()
            if self.is_ended:
                self.end()
        except BaseException as error:
            self._error = error
        finally:
            self.work.close()

    def begin(self, keys: Iterable[bytes], niceness: int) -> None:
        """Has these images built, in this order."""
        self.work.order(map(self._numbers.__getitem__, keys))
        self.is_waiting = False
        if niceness != self._niceness:
            self._niceness = niceness
            self._go_after()

    def _go_after(self) -> None:
        if self._builder is not None:
            self._builder.go_after(self._niceness)

    def want(self, key: bytes) -> None:
        """An image is waited for."""
        self.work.want(self._numbers[key])

    def put_aside(self, key: bytes) -> None:
        """No call ends sooner by an image."""
        self.work.put_aside(self._numbers[key])

    def put_off(self, key: bytes) -> None:
        """An image can come after all others."""
        self.work.put_off(self._numbers[key])

    def end(self) -> None:
        """Ends the builder, also one that is not there yet; its image is not built."""
        self.is_ended = True
        if self._builder is not None:
            self._builder.end()

    def has_ended(self) -> bool:
        return not self.is_alive() and (self._builder is None or self._builder.has_ended())

    def has_built(self) -> bool:
        """As :meth:`Builder.has_built`; False if another process is building."""
        return self._builder is not None and self._builder.has_built()

    def failure(self) -> str | None:
        """As :meth:`Builder.failure`; None if another process is building, or none was wanted in time."""
        if self._error is not None:
            return f"the builder process cannot be started: {self._error}"
        if self._builder is None or self._builder.has_built_nothing():
            return None
        return self._builder.failure()
