"""Images of machine code: built once in the background, kept in the cache, mapped in a millisecond.

:func:`get` never blocks, :func:`wait` says on stderr when it does. See the README beside this file.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from typing import TYPE_CHECKING, Final

from jitree.dispatch.image import cache
from jitree.dispatch.image.flat import FlatImage
from jitree.dispatch.image.mapping import Image, map_image
from jitree.dispatch.image.recipe import Recipe, key_of
from jitree.errors import StatusError, UnavailableError

if TYPE_CHECKING:
    from jitree.dispatch.image.background import Builder

__all__ = ["Image", "Recipe", "get", "wait"]

_POLL_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 300.0


class _Provider:
    """The state of one image in this process: mapped, being built, or failed."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.key = key_of(recipe)
        self.image: Image | None = None
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._builder: Builder | None = None
        self._next_look = 0.0

    @property
    def settled(self) -> bool:
        return self.image is not None or self.failure is not None

    def look(self, niceness: int | None = None) -> None:
        """Maps the file if it is there, else sees to it that somebody builds it; at most every 20 ms."""
        with self._lock:
            now = time.monotonic()
            if self.settled or now < self._next_look:
                return
            self._next_look = now + _POLL_SECONDS
            has_ended = self._builder is not None and self._builder.has_ended()
            flat = cache.load(self.recipe, self.key)
            if flat is not None:
                self._map(flat)
            elif self._builder is None:
                self._start(niceness)
            elif has_ended:
                self.failure = self._builder.failure()

    def _map(self, flat: FlatImage) -> None:
        self._builder = None
        try:
            self.image = map_image(flat)
        except StatusError as error:
            self.failure = str(error)

    def _start(self, niceness: int | None) -> None:
        from jitree.dispatch.image import background

        if niceness is None:
            niceness = background.BACKGROUND_NICENESS
        try:
            self._builder = background.start_builder(self.recipe, self.key, niceness)
        except OSError as error:
            self.failure = f"the builder process cannot be started: {error}"


_providers: Final[dict[str, _Provider]] = {}
_providers_lock: Final = threading.Lock()


def _provider(recipe: Recipe) -> _Provider:
    with _providers_lock:
        provider = _providers.get(recipe.name)
        if provider is None:
            provider = _providers[recipe.name] = _Provider(recipe)
        return provider


def get(recipe: Recipe) -> Image | None:
    """The image if it is ready, else None; the first call starts its building in a process of low priority.

    A build that failed is reported once as a RuntimeWarning; after that the answer stays None.
    """
    provider = _provider(recipe)
    if not provider.settled:
        provider.look()
        if provider.failure is not None:
            warnings.warn(f"jitree: no {recipe.title}: {provider.failure}", RuntimeWarning, stacklevel=2)
    return provider.image


def wait(recipe: Recipe) -> Image:
    """The image, waiting for its building if need be, which is said on stderr. UNAVAILABLE if that fails."""
    provider = _provider(recipe)
    provider.look(niceness=0)
    if not provider.settled:
        print(f"jitree: building {recipe.title} (about {recipe.seconds:.0f} s, once) …", file=sys.stderr)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not provider.settled:
            if time.monotonic() > deadline:
                raise UnavailableError(f"{recipe.title} was not built within {_PATIENCE_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
            provider.look(niceness=0)
    if provider.image is None:
        raise UnavailableError(f"building {recipe.title} failed: {provider.failure}")
    return provider.image
