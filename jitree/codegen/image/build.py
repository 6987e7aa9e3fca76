"""Builds images here or in a builder, each used when ready.

The builder is started with a lock on the key's lock file that it inherits; the lock goes when it ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import processor
from jitree.base.platform.available_resources import available_processors
from jitree.base.records import NamedTuple
from jitree.codegen.image import cache, contents, estimates, shipped
from jitree.codegen.image.flat import KEY_SIZE, START_SECONDS, FlatImage, Recipe, from_json
from jitree.codegen.image.generated import Generated
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.shapes import MACHINE, TextShape, alike, shapes_of
from jitree.codegen.image.shipped import LEVELS
from jitree.codegen.image.worklist import IDLE, WorkList
from jitree.errors import UnimplementedError, not_installed

if TYPE_CHECKING:
    from jitree.codegen.image.compile import Target

_TOGETHER: Final = 3
"""How many images a process takes beside one, at most, because they are alike: to generate each takes a
quarter of the time of an image, and the first one waits for that."""


def generate(recipe: Recipe) -> Generated:
    """What the recipe's generator makes of its data."""
    function = recipe.generator.partition(":")[2]
    made: Generated = getattr(importlib.import_module(_module(recipe)), function)(*recipe.data)
    return made


def _module(recipe: Recipe) -> str:
    return recipe.generator.partition(":")[0]


def build(generated: Generated, target: Target) -> FlatImage:
    """Compiles, on all processors, and links. Imports llvmlite.

    Programs, which begin with a copy of a base, are written for this process's target, or the one it assumes:
    LLVM ends the process where a target lacks what they name.
    """
    from jitree.codegen.image.compile import compile_unit
    from jitree.codegen.image.link import link
    from jitree.codegen.image.worklist import spread

    assert generated.base is None or target == target_here(), f"programs are written for {target_here()}"
    objects = spread(partial(compile_unit, target=target), generated.units)
    base = None if generated.base is None else _base(generated.base, target)
    return link(objects, generated.entries, generated.notes, base)


def build_like(generated: Generated, target: Target, shapes: Iterable[TextShape]) -> FlatImage:
    """As :func:`build`, with machine code of its shape if that is there."""
    from jitree.codegen.image.link import link

    for shape in shapes if generated.base is not None else ():
        values = shape.values(generated)
        if values is not None:
            with suppress(UnimplementedError):  # a number that an instruction does not hold
                base = _base(generated.base, target)
                return link([shape.code(target)], generated.entries, generated.notes, base, values)
    return build(generated, target)


def target_here() -> Target:
    """What this process makes code for."""
    from jitree.codegen.image.compile import host_target

    level, target = processor.assumed(), host_target()
    if level or processor.machine() != "x86_64" or "avx512f" in processor.words("flags"):
        return level_target(level) if level else target
    # Nests are written for what the system says, also where the processor has more: their masks may be known.
    return target._replace(features=f"{target.features},-avx512f")


def level_target(level: str) -> Target:
    """Any processor of one of :data:`.LEVELS`."""
    from jitree.codegen.image.compile import target_of

    machine, _ = LEVELS[level]
    return target_of(machine, "generic" if level == machine else level)


@functools.cache
def _base(recipe: Recipe, target: Target) -> FlatImage:
    """The image that others begin with: shipped, or built once."""
    ready = shipped.load(recipe) if target == target_here() else None
    return ready or build(generate(recipe), target)


processor.kept.extend((_base,))


def main() -> None:
    """The builder process; what is not installed is the last line that it prints. It ends with the number of
    the system's error, if there is one."""
    try:
        _main()
    except ImportError as error:
        traceback.print_exc()
        sys.exit(not_installed(error))
    except OSError as error:
        with suppress(OSError):  # what it prints goes to the same disk
            traceback.print_exc()
        os._exit(error.errno or 1)


def _main() -> None:
    """Argument 1 is the number of images, 2 the descriptor of a file: a :class:`WorkList`, their keys, a line
    of ``to_json``, the recipes' data; 3 the builder's own key, as hexadecimal number; 4 the program's
    process. The descriptor after 2 is of the lock. What does not depend on which images are wanted is done
    before that is known."""
    from jitree.codegen.image.compile import target_machine
    from jitree.codegen.image.worklist import spread

    count, descriptor = map(int, sys.argv[1:3])
    images = WorkList(OwnedDescriptor(int, descriptor), count, int(sys.argv[4]))
    with open(descriptor, "rb", closefd=False) as file:
        file.seek(images.size)
        keys = [file.read(KEY_SIZE) for _ in range(count)]
        recipes = from_json(file.readline(), file)
    if list(map(key_of, recipes)) != keys:
        sys.exit("jitree has changed since this program was started; start it again")
    level = recipes[0].processor
    if level:
        processor.assume(level, processor.described(*LEVELS[level]))
    target = target_here()
    for recipe in recipes:
        importlib.import_module(_module(recipe))  # before there are copies, which would do so again
    target_machine(target)
    worker = _ImageWorker(recipes, keys, target)
    images.note(time.process_time(), START_SECONDS)
    is_wanted = images.wait()
    try:
        fcntl.flock(descriptor + 1, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # the files are another builder's
        sys.exit(IDLE)
    copies = [images] * min(count, available_processors()) if is_wanted else []
    outcomes = [outcome for done in spread(worker.run, copies) for outcome in done]
    built = [recipes[outcome.number] for outcome in outcomes if not outcome.failure]
    if built:
        estimates.note(built)
    own = cache.path_of(recipes[0], bytes.fromhex(sys.argv[3]))
    contents.shrink(contents.maximum_size(), set(map(cache.path_of, recipes, keys)))
    for outcome in outcomes:
        if outcome.code:
            os._exit(outcome.code)
        if outcome.failure:
            sys.exit(outcome.failure)
    for suffix in (cache.LOCK_SUFFIX, cache.LOG_SUFFIX):
        own.with_suffix(suffix).unlink(missing_ok=True)
    if not is_wanted:
        sys.exit(IDLE)


class _Outcome(NamedTuple):
    """Of building an image."""

    number: int
    failure: str = ""
    """Empty if it is there."""
    code: int = 0
    """The number of the system's error, if there is one."""


class _ImageWorker:
    """Builds images in turn and publishes each when it is ready.

    One that fails does not keep others from being built, unless the system refuses something: a full disk
    refuses all of them, and the program is to know it at once.
    """

    def __init__(self, recipes: Sequence[Recipe], keys: Sequence[bytes], target: Target) -> None:
        self._recipes = recipes
        self._keys = keys
        self._target = target
        is_alike = target.triple.startswith(MACHINE)
        self._alike = alike([recipe.data if is_alike else () for recipe in recipes])
        self._shapes = [list[TextShape]() for _ in recipes]
        """What those that are alike have in common, by the first of them."""
        self._outcomes = list[_Outcome]()

    def run(self, work: WorkList) -> list[_Outcome]:
        """What came of those that this process has taken from the list."""
        for number in work:
            like, processes = self._alike[number], available_processors()
            others = [] if self._shapes[like[0]] else work.also(like, _TOGETHER, processes)
            # Others may have been made by another builder, for another module: they say nothing of this one.
            missing = [one for one in (number, *others) if self._load(one) is None]
            begun = time.process_time()
            self._build(missing)
            if missing:
                stated = sum(self._recipes[one].seconds - START_SECONDS for one in missing)
                work.note(time.process_time() - begun, stated)
            if self._is_refused:
                break
        return self._outcomes

    def _load(self, number: int) -> FlatImage | None:
        return cache.load(self._recipes[number], self._keys[number])

    @property
    def _is_refused(self) -> bool:
        """Whether the system refuses something."""
        return any(outcome.code for outcome in self._outcomes)

    def _build(self, numbers: Sequence[int]) -> None:
        """Builds some that are alike."""
        made = dict[int, Generated]()
        for number in numbers:
            with self._noted_failure(number):
                made[number] = generate(self._recipes[number])
        shapes = self._shapes[self._alike[numbers[0]][0]] if numbers else []
        shapes += shapes_of(list(made.values()))
        for number, generated in made.items():
            with self._noted_failure(number):
                built = build_like(generated, self._target, shapes)
                cache.store_here(self._recipes[number], self._keys[number], built)
                self._outcomes.append(_Outcome(number))
            if self._is_refused:
                break

    @contextmanager
    def _noted_failure(self, number: int) -> Iterator[None]:
        """A block in which an image may fail: others are built all the same."""
        try:
            yield
        except Exception as error:
            with suppress(OSError):  # what it prints goes to the same disk
                traceback.print_exc()
            failure = traceback.format_exception_only(error)[-1].strip()
            self._outcomes.append(_Outcome(number, failure, getattr(error, "errno", None) or 0))
