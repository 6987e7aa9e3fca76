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
