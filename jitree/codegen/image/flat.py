"""Describes flat images: what they are made from, their file, how they are mapped.

A flat image is position-free machine code with the few facts needed to map it. It is written while its memory
is writable, and executable only after it is not.

File: digest of all that follows, magic, key, sizes of the parts; title, entry table (offset, name length,
name), offsets of the 64-bit words that hold image-relative addresses, notes, the image itself. The digest
tells damage by disks, copies and bugs. It is no signature: a user who may write the file can write a digest
that fits, so its owner and mode are checked where files are read (:mod:`jitree.base.private_files`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingOf
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, BinaryIO, Final

from jitree.base.platform import EXECUTE, READ, WRITE, CodeMapping, Mapping, processor
from jitree.base.records import NamedTuple

OUTPUT: Final = " (whole output: "
"""What comes after the reason why a builder has failed."""
PUT_OFF, ASIDE, NEXT, FIRST = range(1, 5)
"""When a builder of several images makes one: last, giving way to the program, since no call ends sooner by
it, in its order, or before all others, since a call waits for it."""
MOST: Final = 1000.0
"""No machine takes so many times as long as another."""
START_SECONDS: Final = 0.18
"""Seconds of a processor until a builder has imported what it needs: by one process."""


class Recipe(NamedTuple):
    """One image: a few functions made from LLVM IR, kept in one file.

    ``generator`` is ``"package.module:function"``; the builder process calls it with ``data`` for what to
    compile (:class:`jitree.codegen.image.generated.Generated`). ``name`` begins the file's name. ``title`` is
    for messages; ``seconds``: of a processor, to build it (:mod:`jitree.codegen.image.estimates`). An image
    without ``data`` is the package's own. ``processor`` is the kind of processors that it is for
    (:data:`jitree.codegen.image.shipped.LEVELS`), empty for the one that is here.
    """

    name: str
    title: str
    generator: str
    seconds: float
    data: tuple[bytes, ...] = ()
    processor: str = ""


def parts_of(recipes: Iterable[Recipe]) -> list[bytes]:
    """The data of recipes, each part once: all kernels of an executable may depend on the same one."""
    return list(dict.fromkeys(part for recipe in recipes for part in recipe.data))


def to_json(recipes: Sequence[Recipe], parts: Sequence[bytes]) -> bytes:
    """Writes what a builder needs of recipes, but the bytes of their :func:`parts_of`."""
    import json  # 2 ms: most processes build nothing

    numbers = {part: number for number, part in enumerate(parts)}
    rows = [
        [*recipe[:4], recipe.processor or processor.assumed(), [numbers[part] for part in recipe.data]]
        for recipe in recipes
    ]
    return json.dumps([list(map(len, parts)), rows]).encode()


def from_json(text: bytes, file: BinaryIO) -> list[Recipe]:
    """Reads recipes of :func:`to_json` in order, data from a file."""
    import json

    sizes, rows = json.loads(text)
    parts = list(map(file.read, sizes))
    return [
        Recipe(name, title, generator, seconds, tuple([parts[number] for number in numbers]), level)
        for name, title, generator, seconds, level, numbers in rows
    ]


if TYPE_CHECKING:
    from hashlib import blake2b

DIGEST_SIZE: Final = 32


def begin_digest() -> blake2b:
    """A digest of nothing. What comes with the package is used without one."""
    try:
        from _blake2 import blake2b  # hashlib loads OpenSSL first: 2 ms
    except ImportError:
        from hashlib import blake2b
    return blake2b(digest_size=DIGEST_SIZE)


def hashed(parts: Iterable[bytes | memoryview]) -> bytes:
    """Bytes that tell sequences of parts apart."""
    return absorbed(begin_digest(), parts).digest()


def absorbed(state: blake2b, parts: Iterable[bytes | memoryview]) -> blake2b:
    """The same digest with more parts."""
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state


MAGIC: Final = b"jitree\x00\x04"
"""Ends in the number of the format."""
SUFFIX: Final = ".image"
KEY_SIZE: Final = 32
_HEADER: Final = struct.Struct(f"<8s{KEY_SIZE}s5I")
_ENTRY: Final = struct.Struct("<IH")
_WORD: Final = 4
"""Bytes of an offset in :attr:`FlatImage.rebase`."""
_KEY: Final = DIGEST_SIZE + len(MAGIC)
_START: Final = DIGEST_SIZE + _HEADER.size


class FlatImage(NamedTuple):
    code: bytes | memoryview
    """Instructions and constants; to be placed at any multiple of the page size. Of a file it is the part
    there: the only copy is that of :func:`map_image`."""
    rebase: bytes
    """Little-endian u32 offsets of words to which the load address must be added."""
    entries: dict[str, int]
    """Offsets of the functions that may be called from outside."""
    notes: bytes = b""
    """What the generator wants kept with the code."""


def encode(image: FlatImage, key: bytes, title: str) -> bytes:
    """The file form of an image made for ``key``; ``title`` says what it is to people who list files."""
    names = b"".join(
        _ENTRY.pack(offset, len(name.encode())) + name.encode() for name, offset in image.entries.items()
    )
    parts = (title.encode(), names, image.rebase, image.notes, image.code)
    data = b"".join((_HEADER.pack(MAGIC, key, *map(len, parts)), *parts))
    return hashed((data,)) + data


def decode(data: bytes | memoryview, key: bytes) -> FlatImage | None:
    """The image of a file made for ``key``; None for any other, damaged or short file, and for one whose
    parts name places outside of them."""
    parts = _parts(data)
    if parts is None or parts[0] != key or not _is_whole(data):
        return None
    try:
        image = _image(*parts[2:])
    except (struct.error, UnicodeDecodeError):
        return None
    return image if _stays_inside(image) else None


def decode_trusted(data: bytes | memoryview) -> FlatImage | None:
    """The image of a file for any key, which is not searched for damage; None for one of another format."""
    parts = _parts(data)
    return None if parts is None else _image(*parts[2:])


def key_of(data: bytes | memoryview) -> bytes | None:
    """The key that a file was made for; None for one that is damaged, short or of another format."""
    parts = _parts(data)
    return bytes(parts[0]) if parts is not None and _is_whole(data) else None


def title_of(data: bytes | memoryview) -> str | None:
    """What a file says it is; None for one that is damaged, short or of another format."""
    parts = _parts(data)
    return str(parts[1], errors="backslashreplace") if parts is not None and _is_whole(data) else None


def _parts(data: bytes | memoryview) -> list[memoryview] | None:
    """Key, title, names, rebase, notes and code."""
    if len(data) < _START:
        return None
    magic, _, *sizes = _HEADER.unpack_from(data, DIGEST_SIZE)
    ends = list(accumulate(sizes, initial=_START))
    if magic != MAGIC or ends[-1] != len(data):
        return None
    return [memoryview(data)[start:end] for start, end in ((_KEY, _KEY + KEY_SIZE), *pairwise(ends))]


def _image(names: memoryview, rebase: memoryview, notes: memoryview, code: memoryview) -> FlatImage:
    entries: dict[str, int] = {}
    position = 0
    while position < len(names):
        offset, length = _ENTRY.unpack_from(names, position)
        position += _ENTRY.size + length
        entries[str(names[position - length : position], "utf-8")] = offset
    return FlatImage._make((code, bytes(rebase), entries, bytes(notes)))


def _stays_inside(image: FlatImage) -> bool:
    """Whether all places of an image are in its code or at its end."""
    size = len(image.code)
    if len(image.rebase) % _WORD or max(image.entries.values(), default=0) > size:
        return False
    return not image.rebase or max(memoryview(image.rebase).cast("I")) < size & ~7


def _is_whole(data: bytes | memoryview) -> bool:
    return hashed((memoryview(data)[DIGEST_SIZE:],)) == data[:DIGEST_SIZE]


class Image:
    """Executable code. ``addresses`` of its entries are valid while this object lives; ``notes`` are what its
    generator kept with it."""

    def __init__(self, addresses: MappingOf[str, int], memory: Mapping, notes: bytes = b"") -> None:
        self.addresses: Final = addresses
        self.notes: Final = notes
        self.end: Final = memory.address + memory.size
        self._memory: Final = memory


def map_image(image: FlatImage) -> Image:
    """Copies, rebases and protects an image (read and execute).

    RESOURCE_EXHAUSTED without memory, PERMISSION_DENIED where the system refuses executable memory.
    """
    import numpy as np  # not what builders import

    size = len(image.code)
    memory = CodeMapping(size, access=READ | WRITE)
    view = memory.view()
    view[:size] = image.code
    words = np.frombuffer(view[: size & ~7], np.uint64)
    words[np.frombuffer(image.rebase, np.uint32) >> 3] += np.uint64(memory.address)
    memory.protect(0, size, READ | EXECUTE)
    memory.publish()
    return Image(
        {name: memory.address + offset for name, offset in image.entries.items()}, memory, image.notes
    )
