"""``jitree cache pack``: the machine code of modules in one file, which travels with them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import jitree
from jitree.api.packed_code import identity
from jitree.base import whole_files
from jitree.base.private_files import LARGEST
from jitree.codegen.image import Provider, Recipe, cache, contents, shipped
from jitree.codegen.image.batch import ImageBatch
from jitree.codegen.image.builder import UNLIMITED
from jitree.codegen.image.cache import kept_in, place
from jitree.codegen.image.flat import key_of
from jitree.codegen.image.pack import packed
from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, UnavailableError
from jitree.tools.cache_contents import size_text
from jitree.tools.cache_warm import recipes_of
from jitree.tools.flag_table import flag_set
from jitree.tools.flags import ParsedFlags, command

_POLL_SECONDS: Final = 0.005

FLAGS: Final = flag_set(
    "cache pack",
    "writes the machine code of modules to a file that travels with them",
    "pack",
    positional="module",
)


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Builds for each kind of processors, writes the file and says what it holds. INVALID_ARGUMENT without
    modules, a file or for an unknown processor, UNAVAILABLE if something cannot be built or written."""
    paths, output = flags.texts("module"), flags.text("output") or flags.text("o")
    if not paths or not output:
        raise InvalidArgumentError("name modules and a file: jitree cache pack model.vmfb -o model.jit")
    levels = list(_levels(flags.text("processor")))
    arithmetic = flags.text("arithmetic")
    modules = [BytecodeModule.load(path) for path in paths]
    recipes = [recipe for module in modules for recipe in recipes_of(module, arithmetic)]
    made = {level: _built(recipes, level) for level in levels}
    data = packed(jitree.__version__, [identity(module, arithmetic) for module in modules], made)
    if len(data) > LARGEST:
        raise ResourceExhaustedError(
            f"'{output}' would have {size_text(len(data))}, and packs have {size_text(LARGEST)} at most; "
            "write one for each module, or for fewer processors"
        )
    whole_files.write(output, data)
    count = sum(map(len, made.values()))
    kinds = ", ".join(level or "this processor" for level in levels)
    print(f"{output}: {count} image{'s' * (count != 1)}, {size_text(len(data))}, for {kinds}")
    return 0


def _levels(text: str) -> Iterator[str]:
    """Names of kinds of processors; an empty name stands for this machine's processor."""
    for name in dict.fromkeys(text.split(",")):
        if name and name not in shipped.LEVELS:
            raise InvalidArgumentError(
                f"flag '--processor': there is no '{name}'; there are {', '.join(shipped.LEVELS)}, and "
                "without the flag the processor that is here"
            )
        yield name


def _built(recipes: Sequence[Recipe], level: str) -> Mapping[bytes, bytes]:
    """The files that a cache with nothing else has when all of them are built, by key."""
    with tempfile.TemporaryDirectory(prefix="jitree-pack-") as folder, kept_in(folder):
        if place().refusal:
            raise UnavailableError(f"{place().reason}; TMPDIR may name another place")
        files: dict[str, bytes] = {}
        for name in dict.fromkeys(recipe.name for recipe in recipes):
            own = [recipe._replace(processor=level) for recipe in recipes if recipe.name == name]
            made = [Provider(recipe, UNLIMITED) for recipe in own]  # which no other pack has a say in
            together = ImageBatch(made[0].title if len(made) == 1 else f"{len(made)} kernels", made)
            together.start()
            builders = {item.builder for item in made} - {None}
            together.wait()
            while not all(builder.has_ended() for builder in builders if builder):  # they write what it took
                time.sleep(_POLL_SECONDS)
            names = {entry.path.name for entry in contents.entries()} - files.keys()
            files |= {name: cache.read(name) or b"" for name in names}  # now: later ones may push them out
    found = {key_of(files[name]): files[name] for name in sorted(files)}
    return {key: data for key, data in found.items() if key is not None}
