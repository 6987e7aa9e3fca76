"""Lists, empties, fills and packs the folder of machine code: ``jitree cache``."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import jitree
from jitree.api.packed_code import identity
from jitree.base import private_files
from jitree.base.private_files import LARGEST
from jitree.codegen.image import Provider, Recipe, cache, contents, shipped
from jitree.codegen.image.batch import ImageBatch
from jitree.codegen.image.builder import UNLIMITED, BuilderThread
from jitree.codegen.image.cache import kept_in, place
from jitree.codegen.image.contents import packed
from jitree.codegen.image.flat import OUTPUT, key_of
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError, UnavailableError
from jitree.tools.flags import ParsedFlags, command, flag_set, run_subcommand
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.words import FUSED

WARM_FLAGS: Final = flag_set(
    "cache warm",
    "builds the machine code that running modules takes, so that no run waits or starts slowly",
    "warm",
    positional="module",
)


@command(WARM_FLAGS)
def warm(flags: ParsedFlags) -> int:
    """Builds what is missing and prints a line per image.

    UNAVAILABLE if something cannot be built.
    """
    for images in batches(flags.texts("module")):
        start = time.perf_counter()
        ready = images.find()
        images.wait()
        taken = "ready" if ready else f"built in {time.perf_counter() - start:.1f} s"
        print(f"{images.title}: {taken}", flush=True)
    return 0


def batches(paths: Sequence[str]) -> Iterator[Provider | ImageBatch]:
    """What every program uses, then what each module does; statuses as of loading a module."""
    from jitree.codegen.image import provider
    from jitree.dispatch.native import tiering
    from jitree.hal.local import executor
    from jitree.loaders.vmvx import kernels as vmvx_kernels

    own = (item for item in own_recipes() if item != executor.RECIPE or executor.SUPPORTED)
    yield from map(provider, own)
    for path in paths:
        module = BytecodeModule.load(path)
        yield provider(tiering.recipe(module.program, module.name))
        yield from map(vmvx_kernels.batch, vmvx_kernels.executables(module.module))


def recipes_of(module: BytecodeModule, arithmetic: str = FUSED) -> Iterator[Recipe]:
    """What a module and its executables run as, in sessions of an arithmetic."""
    from jitree.dispatch.native import tiering
    from jitree.loaders.vmvx import kernels as vmvx_kernels

    yield tiering.recipe(module.program, module.name)
    for executable in vmvx_kernels.executables(module.module, arithmetic):
        yield from vmvx_kernels.recipes(executable)


def own_recipes() -> tuple[Recipe, ...]:
    """The images of the package itself, for any program."""
    from jitree.api.calls.native import RECIPE as CALLS
    from jitree.cuda.stream_share import RECIPE as STREAMS
    from jitree.dispatch.fast import LOOP
    from jitree.dispatch.native.prelude import BASE
    from jitree.hal.local import executor
    from jitree.loaders.instruction_tables import RECIPE as NEEDS
    from jitree.loaders.vmvx.kernels import SPANS
    from jitree.modules.hal import native as hal
    from jitree.modules.vmvx import kernels as vmvx
    from jitree.vmfb.native import RECIPE as LOAD

    return LOOP, executor.RECIPE, hal.RECIPE, STREAMS, CALLS, vmvx.RECIPE, SPANS, NEEDS, LOAD, BASE


LIST_FLAGS: Final = flag_set("cache list", "shows what the folder of machine code holds", "")
CLEAR_FLAGS: Final = flag_set("cache clear", "removes all machine code but what is being built", "")
_DAMAGED: Final = "(damaged, of another version of jitree, or others can write it)"

_POLL_SECONDS: Final = 0.005

PACK_FLAGS: Final = flag_set(
    "cache pack",
    "writes the machine code of modules to a file that travels with them",
    "pack",
    positional="module",
)


@command(LIST_FLAGS)
def list_main(flags: ParsedFlags) -> int:
    """Prints a line per image, the most recently used first.

    INVALID_ARGUMENT for a bad JITREE_CACHE_SIZE.
    """
    limit, found = contents.maximum_size(), place()
    if found.refusal:
        print(found.reason)
    entries = contents.entries()
    for folder in found.folders:
        here = [entry for entry in entries if str(entry.path.parent) == folder]
        sys.stdout.writelines(line + "\n" for line in listing(folder, here, limit))
    return 0


@command(CLEAR_FLAGS)
def clear_main(flags: ParsedFlags) -> int:
    """Empties the folder and says how much that was."""
    count, size = contents.clear()
    print(f"removed {_images(count)}, {size_text(size)}, from {place().folder}")
    return 0


def listing(folder: str, entries: Sequence[contents.CacheFile], limit: int) -> Iterator[str]:
    total = size_text(sum(entry.size for entry in entries))
    yield f"{folder}: {_images(len(entries))}, {total} of {size_text(limit)}"
    if not entries:
        return
    width = max(len("NAME"), *(len(entry.name) for entry in entries))
    yield ""
    yield f"{'NAME':{width}}  {'SIZE':>9}  {'LAST USED':16}  WHAT"
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        yield f"{entry.name:{width}}  {size_text(entry.size):>9}  {used}  {entry.title or _DAMAGED}"


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def size_text(size: int) -> str:
    """Bytes in the largest unit that gives a number of at least one."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"


@command(PACK_FLAGS)
def pack_main(flags: ParsedFlags) -> int:
    """Builds for each kind of processors, writes the file and says what it holds.

    INVALID_ARGUMENT without modules, a file or for an unknown processor, UNAVAILABLE if something cannot be
    built or written.
    """
    paths, output = flags.texts("module"), flags.text("output") or flags.text("o")
    if not paths or not output:
        raise InvalidArgumentError("name modules and a file: jitree cache pack model.vmfb -o model.jit")
    levels = list(_levels(flags.text("processor")))
    arithmetic = flags.text("arithmetic")
    modules = [BytecodeModule.load(path) for path in paths]
    recipes = [recipe for module in modules for recipe in recipes_of(module, arithmetic)]
    with private_files.written(output) as temporary:  # what cannot be written is not built
        made = {level: _built(recipes, level, f"{output}.log") for level in levels}
        data = packed(jitree.__version__, [identity(module, arithmetic) for module in modules], made)
        if len(data) > LARGEST:
            raise ResourceExhaustedError(
                f"'{output}' would have {size_text(len(data))}, and packs have {size_text(LARGEST)} at most; "
                "write one for each module, or for fewer processors"
            )
        private_files.fill(temporary, data, output)
    count = sum(map(len, made.values()))
    kinds = ", ".join(level or "this processor" for level in levels)
    print(f"{output}: {count} image{'s' * (count != 1)}, {size_text(len(data))}, for {kinds}")
    return 0


@contextmanager
def _keeping(log: str) -> Iterator[None]:
    """A block in a folder that goes away: the output of a builder that fails there is written to ``log``."""
    try:
        yield
    except UnavailableError as error:
        reason, output, path = error.message.partition(OUTPUT)
        if output:
            error.message = reason
            with suppress(StatusError):  # its folder is not there, or full
                private_files.write_file(log, cache.read(os.path.basename(path).removesuffix(")")) or b"")
                error.message = f"{reason}{OUTPUT}{log})"
        raise


@contextmanager
def _ending(builders: Collection[BuilderThread]) -> Iterator[None]:
    """A block whose builders have ended when it has: they write what it took, or, where it is interrupted,
    would make their folder again when that has gone."""
    try:
        yield
    except BaseException:
        for builder in builders:
            builder.end()
        raise
    finally:
        while not all(builder.has_ended() for builder in builders):
            time.sleep(_POLL_SECONDS)


def _levels(text: str) -> Iterator[str]:
    """Names of kinds of processors; an empty name stands for this machine's processor."""
    for name in dict.fromkeys(text.split(",")):
        if name and name not in shipped.LEVELS:
            raise InvalidArgumentError(
                f"flag '--processor': there is no '{name}'; there are {', '.join(shipped.LEVELS)}, and "
                "without the flag the processor that is here"
            )
        yield name


def _built(recipes: Sequence[Recipe], level: str, log: str) -> Mapping[bytes, bytes]:
    """Builds the files of a cache with these alone, by key. ``log``: see :func:`_keeping`."""
    with tempfile.TemporaryDirectory(prefix="jitree-pack-") as folder, kept_in(folder), _keeping(log):
        if place().refusal:
            raise UnavailableError(f"{place().reason}; TMPDIR may name another place")
        files: dict[str, bytes] = {}
        for name in dict.fromkeys(recipe.name for recipe in recipes):
            own = [recipe._replace(processor=level) for recipe in recipes if recipe.name == name]
            made = [Provider(recipe, UNLIMITED) for recipe in own]  # which no other pack has a say in
            together = ImageBatch(made[0].title if len(made) == 1 else f"{len(made)} kernels", made)
            together.start()
            with _ending({item.builder for item in made if item.builder is not None}):
                together.wait()
            names = {entry.path.name for entry in contents.entries()} - files.keys()
            files |= {name: cache.read(name) or b"" for name in names}  # now: later ones may push them out
    found = {key_of(files[name]): files[name] for name in sorted(files)}
    return {key: data for key, data in found.items() if key is not None}


COMMANDS: Final = {
    "list": (list_main, "show what the folder holds"),
    "clear": (clear_main, "remove everything in it"),
    "warm": (warm, "build what running modules takes, before they are run"),
    "pack": (pack_main, "write that to a file, which travels with the modules"),
}
_HELP: Final = """\
jitree cache: lists, empties and fills the folder of machine code
The folder is JITREE_CACHE_DIR, else ~/.cache/jitree; JITREE_CACHE_SIZE bounds it.
Of one that cannot be used `list` says why, and which is taken instead.
"""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns the exit code."""
    return run_subcommand("cache", COMMANDS, _HELP, arguments)
