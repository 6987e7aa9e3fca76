"""What an image is made from."""

from __future__ import annotations

from jitree.base.records import NamedTuple


class Recipe(NamedTuple):
    """One image: a few functions made from LLVM IR, kept in one file.

    ``generator`` is ``"package.module:function"``; the builder process calls it with ``data`` for what to
    compile (:class:`jitree.codegen.image.generated.Generated`). ``name`` begins the file's name. ``title``
    and ``seconds`` (to build it) are for messages. An image without ``data`` is the package's own.
    """

    name: str
    title: str
    generator: str
    seconds: float
    data: tuple[bytes, ...] = ()


def to_json(recipe: Recipe) -> str:
    """All of a recipe but the bytes of its data."""
    import json  # 2 ms: most processes build nothing

    return json.dumps([*recipe[:-1], list(map(len, recipe.data))])


def from_json(text: str, descriptor: int) -> Recipe:
    """The recipe of :func:`to_json`, with its data read from the start of a file."""
    import json

    name, title, generator, seconds, sizes = json.loads(text)
    with open(descriptor, "rb") as file:
        file.seek(0)
        data = tuple(file.read(size) for size in sizes)
    return Recipe(name, title, generator, seconds, data)
