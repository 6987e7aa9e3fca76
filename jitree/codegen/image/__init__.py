"""Gives images of machine code. They are shipped, or built once in the background and cached, and mapped in a
millisecond.

:func:`get` never blocks, :func:`wait` says on stderr when it does. See the README beside this file.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock  # threading takes 0.6 ms to import
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from jitree.base.cancel_scopes import require_going_on
from jitree.base.finalizers import Finalizer, SharedWeakSet, SharedWeakValues, guard, start_thread
from jitree.base.memory import NAMES_CODE, name_code
from jitree.codegen.image import shipped
from jitree.codegen.image.flat import OUTPUT, FlatImage, Image, Recipe, map_image
from jitree.errors import StatusError, UnavailableError, pass_interruption, printable, tell

if TYPE_CHECKING:
    from jitree.codegen.image.builder import BuilderLimits, BuilderThread
    from jitree.codegen.image.contents import Pack

__all__ = ["Image", "Provider", "Recipe", "get", "processors", "provider", "start", "wait"]

_POLL_SECONDS: Final = 0.002
_POLL_SECONDS_FOR_OTHERS: Final = 0.05
"""Where another process builds: each look starts a thread."""
_PATIENCE_SECONDS: Final = 300.0
BACKGROUND_NICENESS: Final = 2
"""Gives way to the program's own work, and still gets a good share of a busy machine: until the image is
there the program takes many times as long."""
_NICENESS_ON_ONE_PROCESSOR: Final = 10
"""For builders on a machine with one processor, where the program would be slower than an interpreter."""
_NICENESS_ASIDE: Final = 5
"""For builders beside a call that ends sooner than they do: its threads keep their processors, and they get
those that are left."""


class Together(Protocol):
    """Several images that one builder makes (:class:`jitree.codegen.image.batch.ImageBatch`)."""

    gives_way: bool
    """Whether a builder in the background has only what the program leaves: its call ends sooner."""
    is_announced: bool

    @property
    def title(self) -> str: ...
    @property
    def estimate(self) -> float: ...

    def begin(self, niceness: int) -> None:
        """Starts a builder of those for which there is none."""

    def warn(self, reason: str) -> None:
        """Says, once for all, that an image is not there."""


class Provider:
    """The state of one image in this process: mapped, being built, or failed. It keeps the mapped image."""

    def __init__(self, recipe: Recipe, builds: BuilderLimits | None = None) -> None:
        self.recipe = recipe
        self._builds = builds
        self.image: Image | None = None
        self.failure: str | None = None
        self._lock = allocate_lock()
        self._builder: BuilderThread | None = None
        self._was_lost = False
        """Whether an image that was built was gone when it was looked for (``jitree cache clear``)."""
        self._next_look = 0.0
        self._is_explained = False
        """Whether it has been said why nothing can be built."""
        self.is_announced = False
        """Whether somebody has said that the program waits."""
        self.batch: Callable[[], Together | None] = _nothing
        """Which other images one builder makes with this one: a weak reference."""
        self.begun: float | None = None
        """When a builder was first wanted, by ``time.monotonic``."""
        ready = shipped.load(recipe)
        if ready is not None:
            self._map(ready)

    @cached_property
    def key(self) -> bytes:
        """The key of the file in the cache."""
        from jitree.codegen.image.keys import environment, key_for

        return key_for(self._source, environment(self.recipe.processor))

    @cached_property
    def _source(self) -> bytes:
        from jitree.codegen.image.keys import forget, source_key

        self._ending = Finalizer(forget)
        return source_key(self.recipe)

    def _load(self) -> FlatImage | None:
        """The image of the file in a pack or in the cache."""
        if self._builds is None:
            for pack in packs:
                packed = pack.load(self._source)
                if packed is not None:
                    return packed
        from jitree.codegen.image import cache

        return cache.load(self.recipe, self.key)

    @cached_property
    def estimate(self) -> float:
        """Seconds until it is built, if this machine does nothing else."""
        from jitree.codegen.image.estimates import estimated

        return estimated([self.recipe], processors())

    @property
    def title(self) -> str:
        """What it is, to people."""
        return self.recipe.title

    @property
    def settled(self) -> bool:
        return self.image is not None or self.failure is not None

    @property
    def builder(self) -> BuilderThread | None:
        """The builder that this process started for it, until the image is there."""
        return self._builder

    @property
    def is_building(self) -> bool:
        """Whether a builder that this process started is at work."""
        return self._builder is not None and not self._builder.has_ended()

    def get(self) -> Image | None:
        """The image if it is ready, else None; sees to it that a process of low priority builds it.

        A build that failed is reported once as a RuntimeWarning; after that the answer stays None.
        """
        if not self.settled:
            self._look(self._background_niceness)
            if self.failure is not None and not self._is_explained:
                self._warn(self.failure)
        return self.image

    def _warn(self, reason: str) -> None:
        batch = self.batch()
        if batch is None:
            warn(self.title, reason)
        else:
            batch.warn(reason)

    def may_be_there(self) -> bool:
        """Whether a look may tell more than that a builder is at work. It costs less than that look."""
        builder = self._builder
        return builder is None or not builder.is_at_work_on(self.recipe, self.key)

    def find(self) -> Image | None:
        """The image if it has been built; never starts a builder."""
        self._look(_nothing)
        return self.image

    def start(self) -> None:
        """Has a missing image built at once, beside others: it is going to be waited for."""
        self._next_look = 0.0
        self._look(_full_priority)

    def put(self, kind: int) -> None:
        """Says to a builder of several images when to make this one."""
        if self._builder is not None:
            self._builder.work.put(self._builder.number(self.key), kind)

    def wait(self, look: Callable[[], object] = require_going_on) -> Image:
        """The image, waiting (and saying so on stderr) if it has to be built. UNAVAILABLE if that fails.

        ``look`` raises why the thread is to end before; the builder goes on.
        """
        self._look(_full_priority)
        if not self.settled:
            whole = self.batch() or self
            if not whole.is_announced:
                seconds = max(1, round(whole.estimate))
                tell(f"jitree: building {whole.title} (about {seconds} s, once) …\n")
            whole.is_announced = True
            deadline = time.monotonic() + _PATIENCE_SECONDS
            while not self.settled:
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"{self.recipe.title} was not built within {_PATIENCE_SECONDS:.0f} s"
                    )
                time.sleep(_POLL_SECONDS)
                look()
                self._look(_full_priority)
        if self.image is None:
            raise UnavailableError(f"building {self.recipe.title} failed: {self.failure}")
        return self.image

    def _look(self, niceness: Callable[[], int | None]) -> None:
        """Maps the file, or sees to it that it is built; at most every 2 ms.

        ``niceness`` gives the builder's, None for a builder that must not start yet.
        """
        taken: list[bool] = []  # by functions in C: no interrupt comes before it is known
        try:
            next(map(taken.append, map(self._lock.acquire, (False,))))
            now = time.monotonic()
            if True not in taken or self.settled or now < self._next_look:  # or another thread looks
                return
            self._next_look = now + _POLL_SECONDS
            look_for_ended_builders()
            has_ended = self._builder is not None and self._builder.has_ended()
            flat = self._load()
            if flat is not None:
                if self._builder is not None:
                    seconds = time.monotonic() - (self.begun or now)
                    note("built", f"{self.title} is built", seconds=seconds)
                elif "logging" in sys.modules or "JITREE_LOG" in os.environ:
                    _note_found(self.title)
                self._map(flat)
            elif self._builder is None or self._builder.is_waiting:
                self._start(niceness())
            elif has_ended and (self._builder.is_ended or self._builder.is_elsewhere):
                self._builder = None  # the next call that wants the image starts another builder
                reason = "has ended early, or for a folder that is no longer used"
                note("builder", f"the builder of {self.title} {reason}; the next call starts another")
            elif has_ended:
                if self._was_lost or not self._builder.has_built():
                    self.failure = self._builder.failure()
                    self._next_look = now + _POLL_SECONDS_FOR_OTHERS
                self._was_lost = self._builder.has_built()
                self._builder = None
        finally:
            if True in taken:
                self._lock.release()

    def _background_niceness(self) -> int | None:
        """Gives a builder's niceness, None where enough are at work. The image is that of a program.

        The package's own images, which have no data, are few, and everything is slow without them."""
        count = processors()
        if self.recipe.data and self._builder is None and builders_at_work() >= max(1, count // 2):
            return None
        if count == 1:
            return _NICENESS_ON_ONE_PROCESSOR
        batch = self.batch()
        return _NICENESS_ASIDE if batch is not None and batch.gives_way else BACKGROUND_NICENESS

    def _map(self, flat: FlatImage) -> None:
        self._builder = None
        try:
            if shipped.CHECKED:
                from jitree.codegen.checked.memory import install

                install(wait)
            self.image = map_image(flat)
            if NAMES_CODE and not self.recipe.data:
                self._name(self.image)
        except StatusError as error:
            self.failure = str(error)

    def _name(self, ready: Image) -> None:
        """An entry's name stands for the functions after it, too: those that read the clock are short."""
        entries = ((name, address) for name, address in ready.addresses.items() if name != "clock")
        name_code({f"jitree.{self.recipe.name}.{name}": address for name, address in entries}, ready.end)

    def _start(self, niceness: int | None) -> None:
        if niceness is None:
            return
        batch = self.batch()
        if batch is None:
            start_builder([self], self.key, niceness)
        else:
            batch.begin(niceness)

    @property
    def is_wanting(self) -> bool:
        """Whether a builder is to be started for it."""
        return not self.settled and (self._builder is None or self._builder.is_waiting)


def start_builder(wanted: Sequence[Provider], key: bytes, niceness: int) -> None:
    """Has a builder begin to build images; ``key`` is its own, of which there is one at a time."""
    builder = prepare_builder(wanted, key, niceness)
    if builder is not None:
        begin(builder, wanted, niceness)


def begin(builder: BuilderThread, wanted: Sequence[Provider], niceness: int) -> None:
    """Has a builder that waits build images."""
    now = time.monotonic()
    for item in wanted:
        item.begun = item.begun or now
    builder.begin([item.key for item in wanted], niceness)
    for item in wanted:
        note("building", f"{item.title} is being built")


def prepare_builder(wanted: Sequence[Provider], key: bytes, niceness: int) -> BuilderThread | None:
    """Starts a builder that waits until it is to build some of these images; None if that fails."""
    from jitree.codegen.image.builder import BuilderThread  # now: builders start in the middle of calls
    from jitree.codegen.image.cache import settle

    is_explained = bool(settle().obstacle)  # here, where the caller of the program sees the warning
    builds = wanted[0]._builds
    recipes, keys = [item.recipe for item in wanted], [item.key for item in wanted]
    for item in wanted:
        item._is_explained = is_explained
    try:
        builder = BuilderThread(recipes, keys, key, niceness, builds)
        if builds is not None:
            builds.add(builder)
        start_thread(builder)
    except (OSError, RuntimeError) as error:  # it gets no file for its list, or no thread
        pass_interruption(error)
        for item in wanted:
            item.failure = f"the builder process cannot be started: {error}"
        return None
    for item in wanted:
        item._builder = builder
    return builder


def look_for_ended_builders() -> None:
    """The system keeps a process that has ended until its parent looks. Nobody else asks for the builder of
    an image that is there."""
    builder = sys.modules.get(f"{__name__}.builder")  # there once a builder has been started
    look = getattr(builder, "look_for_ended", None)  # it may be half imported
    if look is not None:
        look()


def warn(title: str, reason: str, told: str = "") -> None:
    """Says that there is no image, once for each reason (``told``: what it is without figures): what keeps
    one image away often keeps all away, in turn."""
    told = told or reason.partition(OUTPUT)[0]
    if told in _told:
        return
    _told.add(told)
    text = printable(
        f"jitree: goes without {title}: {reason}; what it is for is interpreted, which takes longer:"
        " `jitree cache warm` with the program's file tries again"
    )
    note("missing", text.removeprefix("jitree: "), "warning")
    from jitree.base import folding

    try:
        folding.warn(text)
    except RuntimeWarning:  # where warnings are errors: the call goes on without
        tell(f"{text}\n")


def note(topic: str, text: str, level: str = "info", seconds: float = 0.0) -> None:
    """As :func:`jitree.base.logs.note`, which few processes need for a first result."""
    from jitree.base import logs

    logs.note(topic, text, level, seconds)


def _note_found(title: str) -> None:
    """Notes an image from the cache, unless the logger leaves such notes out.

    It takes no lock of ``logging``: Python 3.11 loses one for good where a signal's handler raises in it."""
    logging = sys.modules.get("logging")
    if logging is not None:
        known = logging.root.manager.loggerDict.get("jitree")
        logger = known if isinstance(known, logging.Logger) else logging.root
        if logger.getEffectiveLevel() > logging.DEBUG:
            return
    note("found", f"{title} is taken from where machine code is kept", "debug")


def processors() -> int:
    """Counts the process's processors, not those of a bound thread."""
    from jitree.base.platform.available_resources import available_processors  # not for a first result

    return available_processors(os.getpid())


def _full_priority() -> int:
    return 0


def _nothing() -> None:
    """Stands for a batch, or for a builder not to start."""


def builders_at_work() -> int:
    """Those of programs."""
    return len({item._builder for item in list(_providers.values()) if item.recipe.data and item.is_building})


_told: Final[set[str]] = set()
"""Why images are missing, as warnings have said."""
packs: Final[SharedWeakSet[Pack]] = SharedWeakSet()
"""Where images are looked for first, except those of sandboxes; sessions hold those that they were given."""
_providers: Final[SharedWeakValues[tuple[object, ...], Provider]] = SharedWeakValues()
_static: Final[dict[str, Provider]] = {}
_providers_lock: Final = guard()


def provider(recipe: Recipe, builds: BuilderLimits | None = None) -> Provider:
    """The provider of an image. All callers that want the image at the same time, with the same limits on
    building (``builds``), share it."""
    identity = recipe.name, recipe.generator, recipe.data, builds
    with _providers_lock:
        found = _providers.get(identity)
        if found is None:
            found = _providers[identity] = Provider(recipe, builds)
        return found


def _static_provider(recipe: Recipe) -> Provider:
    """The provider of an image that the process keeps: one of its name."""
    with _providers_lock:
        found = _static.get(recipe.name)
        if found is None:
            found = _static[recipe.name] = Provider(recipe)
        return found


def get(recipe: Recipe) -> Image | None:
    """As :meth:`Provider.get`, for an image that the process keeps."""
    found = _static.get(recipe.name) or _static_provider(recipe)
    return found.image or found.get()


def start(recipe: Recipe) -> None:
    """As :meth:`Provider.start`, for an image that the process keeps."""
    _static_provider(recipe).start()


def notes(recipe: Recipe) -> bytes:
    """Those of an image that the process keeps; waits for it. Builders need no more of those that are
    shipped: neither their machine code nor numpy, which maps it."""
    flat = None if recipe.name in _static else shipped.load(recipe)
    return wait(recipe).notes if flat is None else flat.notes


def wait(recipe: Recipe) -> Image:
    """As :meth:`Provider.wait`, for an image that the process keeps."""
    return _static_provider(recipe).wait()
