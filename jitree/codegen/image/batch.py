"""Lets one builder make several images, on all processors. Each is published when it is ready."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import ref

from jitree.base.cancel_scopes import require_going_on
from jitree.base.finalizers import guard
from jitree.codegen.image import (
    BACKGROUND_NICENESS,
    Provider,
    begin,
    builders_at_work,
    packs,
    prepare_builder,
    processors,
    start_builder,
    warn,
)
from jitree.codegen.image.flat import ASIDE, NEXT, START_SECONDS, hashed

if TYPE_CHECKING:
    from jitree.codegen.image.builder import BuilderThread
    from jitree.codegen.image.estimates import Bar
    from jitree.codegen.image.flat import Recipe
    from jitree.codegen.image.worklist import WorkList


class ImageBatch:
    """The images of one program. Those that others have, too, are the same."""

    def __init__(self, title: str, providers: Sequence[Provider]) -> None:
        """``title``: what they are together, to people."""
        self.title = title
        self.providers: Final = providers
        self.gives_way = False
        """Whether a builder in the background has only what the program leaves: its call ends sooner."""
        self.is_announced = False
        self._bar: Bar | None = None
        self._is_told = False
        self._order: Sequence[Provider] = providers
        self._aside: Sequence[Provider] = ()
        self._starting = guard()
        self._prepared: BuilderThread | None = None
        """A builder that waits."""
        self._started: float | None = None
        """When the last builder has started."""
        self._begun: float | None = None
        self._estimated: tuple[object, tuple[float, list[float]]] = None, (0.0, [])
        """What estimates were made for, and those."""
        self._done = 0.0
        """The most seconds stated of what a builder of this process has done."""
        for item in providers:
            item.batch = ref(self)

    @property
    def estimate(self) -> float:
        """Seconds in which what was not there is built, where nothing else runs."""
        return self._estimates[0]

    @property
    def _estimates(self) -> tuple[float, list[float]]:
        """That, and what each adds to it: made anew when other numbers are missing, or the pace changes."""
        missing = self._missing
        now = len(missing), processors(), self._pace
        at, found = self._estimated
        if now != at:
            from jitree.codegen.image.estimates import estimated, shares

            count, workers, pace = now
            recipes = [item.recipe for item in self.providers]
            whole = estimated(missing, workers, pace) if count else 0.0
            found = whole, shares(recipes, min(workers, count), pace)
            self._estimated = now, found
        return found

    @property
    def _missing(self) -> list[Recipe]:
        """Those that were not there before a builder was wanted."""
        left = set(self._left)
        return [item.recipe for item in self.providers if item.begun is not None or item in left]

    @property
    def _left(self) -> list[Provider]:
        """Those that are not settled: without a call for each, since decisions ask often."""
        return [item for item in self.providers if item.image is None and item.failure is None]

    @property
    def _pace(self) -> float | None:
        """How many times the stated seconds its builder takes so far; None: as the last ones have."""
        return next((pace for work in self._work() if (pace := work.pace)), None)

    @property
    def stated(self) -> float:
        """Estimates processor seconds of a batch, as its recipes state."""
        return sum(recipe.seconds - START_SECONDS for recipe in self._missing)

    @property
    def shares(self) -> list[float]:
        """Seconds that each adds to building all, if this machine does nothing else."""
        return self._estimates[1]

    @property
    def progress(self) -> tuple[int, float]:
        """Grows whenever its builder gets on, as far as this process knows: of another process's builder it
        knows images alone, whoever takes the place of its own in turn."""
        self._done = max(self._done, *(work.stated for work in self._work()), 0.0)
        return len(self.providers) - len(self._left), self._done

    @property
    def settled(self) -> bool:
        return not self._left

    @property
    def begun(self) -> float | None:
        """When a builder was first wanted, by ``time.monotonic``."""
        if self._begun is None:  # it stays, and decisions ask often
            begun = (item.begun for item in self.providers if item.begun is not None)
            self._begun = min(begun, default=None)
        return self._begun

    def order(self, gaining: Collection[int], following: Iterable[int]) -> None:
        """In which order a builder that is started from now on makes them: numbers of those by which a call
        ends sooner, then, giving way to the program, those that follow and all others."""
        numbers = dict.fromkeys((*gaining, *following, *range(len(self.providers))))
        self._order = [self.providers[number] for number in numbers]
        self._aside = self._order[len(gaining) :]

    def bring(self, numbers: Iterable[int]) -> None:
        """Moves to the next those by which a call ends sooner after all."""
        for number in numbers:
            self.providers[number].put(NEXT)

    def hold(self) -> None:
        """Has builders leave all processors to the program for a moment."""
        for work in self._work():
            work.hold()

    def release(self) -> None:
        """Ends that moment."""
        for work in self._work():
            work.release()

    def _work(self) -> list[WorkList]:
        """That of its builder, if there is one."""
        found = next((item.builder for item in self.providers if item.builder is not None), None)
        return [] if found is None else [found.work]

    def find(self) -> bool:
        """Whether all have been built; never starts a builder."""
        from jitree.codegen.image import cache

        if list(packs) or cache.has_any(self.providers[0].recipe):
            for item in self.providers:
                item.find()
        return all(item.image is not None for item in self.providers)

    def get(self) -> None:
        """Has what is not there built in the background."""
        for item in self.providers:
            item.get()

    def start(self) -> None:
        """Has what is not there built at once: it is going to be waited for."""
        for item in self.providers:
            if item.is_wanting:
                item.start()

    def wait(self, look: Callable[[], object] = require_going_on) -> None:
        """Waits for all of them, as :meth:`Provider.wait` does."""
        self.start()
        told = sys.modules.get("jitree.base.logs")  # who wants to be told has imported it
        for count, item in enumerate(self.providers, 1):
            item.wait(look)
            if told is not None:
                told.report(f"building {self.title}", count, len(self.providers), "images")

    def prepare(self) -> None:
        """Starts a builder that waits until it is to begin: its start takes as long as several kernels. Not
        where there is less to do than that, where nothing can go on meanwhile, on one processor or beside
        another builder, and where images are not kept in the folder that is stated: to say so is for the call
        that wants them."""
        from jitree.codegen.image.cache import place

        is_small = self.stated < START_SECONDS
        if is_small or processors() == 1 or builders_at_work() or place().refusal:
            return
        with self._starting:
            wanted = [item for item in self._wanted() if item.builder is None]
            if wanted:
                self._started = time.monotonic()
                self._prepared = prepare_builder(wanted, self._key, BACKGROUND_NICENESS)

    @property
    def start_seconds(self) -> float:
        """Estimates the seconds until a builder has imported what it needs. One starts if there is none."""
        prepared = self._prepared
        if any(work.pace for work in self._work()):
            return 0.0
        if self._started is None or (prepared is not None and prepared.has_ended()):
            return START_SECONDS
        return max(START_SECONDS - (time.monotonic() - self._started), 0.0)

    def begin(self, niceness: int) -> None:
        """Has a builder make missing images, a waiting one if possible."""
        with self._starting:
            wanted, prepared = self._wanted(), self._prepared
            if not wanted:
                return
            if prepared is None or prepared.has_ended():
                self._started = time.monotonic()
                start_builder(wanted, self._key, niceness)
            else:
                begin(prepared, [item for item in wanted if item.builder is prepared], niceness)
            self._prepared = None
            for item in self._aside:
                item.put(ASIDE)

    def _wanted(self) -> list[Provider]:
        return [item for item in self._order if item.is_wanting]

    @property
    def _key(self) -> bytes:
        """The builder's."""
        return hashed(sorted(item.key for item in self.providers))

    def tell_silence(self, seconds: float) -> None:
        """Warns of a builder that has not got on for so long.

        Nothing is wrong where another one's images are there by now."""
        before = self.progress
        if not (self._is_told or self.find()) and self.progress == before:
            self.warn(f"it has not been built within {seconds:.0f} s", "late")

    def warn(self, reason: str, told: str = "") -> None:
        """Says, once for all, that an image is not there."""
        if not self._is_told:
            self._is_told = True
            warn(self.title, reason, told)

    def shown(self) -> Bar | None:
        """What a terminal shows of waiting, for one thread at a time; None for others."""
        if self._bar is None and not self.is_announced:
            from jitree.codegen.image.estimates import Bar

            self.is_announced = True
            self._bar = Bar(self.title, self.estimate)
        return None if self._bar is None or self._bar.is_open else self._bar
