"""Reads PTX, compiles its parts by the driver, keeps the results on disk."""

from __future__ import annotations

import ctypes
import hashlib
import re
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from jitree.base.events import BUILT
from jitree.base.logs import note
from jitree.base.platform.available_resources import available_processors
from jitree.codegen.image import cache
from jitree.codegen.image.flat import FlatImage, Recipe
from jitree.errors import IncompatibleError, InvalidArgumentError, StatusError, ignored

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext


_ENTRY: Final = re.compile(rb"^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.entry[ \t]+([\w$%]+)", re.MULTILINE)
_PARAMETER: Final = re.compile(rb"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\b[^,\[]*(\[)?")
_FUNCTION: Final = re.compile(rb"^[ \t]*(?:\.visible[ \t]+|\.weak[ \t]+)?\.func\b", re.MULTILINE)
_COMMENT: Final = re.compile(rb"//[^\n]*|/\*.*?\*/", re.DOTALL)
_POINTER_BITS: Final = 64
_WORD_BITS: Final = 32
_BODY: Final = re.compile(_ENTRY.pattern + rb"[^{;]*\{", re.MULTILINE)
_VERSION: Final = re.compile(rb"(^\s*\.version\s+)(\d+)\.(\d+)", re.MULTILINE)
_TARGET: Final = re.compile(rb"(^\s*\.target\s+sm_)(\d+)", re.MULTILINE)
_WAIT: Final = b"\n\tgriddepcontrol.wait;"
_WAIT_VERSION: Final = (7, 8)
_WAIT_TARGET: Final = 90
"""The lowest target of texts that may have that instruction."""
_ELF_MAGIC: Final = b"\x7fELF"


class KernelSignature(NamedTuple):
    """Says what a kernel takes: pointers first, then 32-bit words."""

    binding_count: int
    constant_count: int


def is_cubin(image: bytes) -> bool:
    """Whether an image is machine code instead of PTX."""
    return image.startswith(_ELF_MAGIC)


def signatures(text: bytes) -> dict[str, KernelSignature | None]:
    """Reads the kernels of a PTX text by name. None stands for one whose parameters are no pointers followed
    by words."""
    found: dict[str, KernelSignature | None] = {}
    for match in _ENTRY.finditer(text):
        opening = text.find(b"(", match.end())
        body = text.find(b"{", match.end())
        if opening < 0 or (body >= 0 and body < opening):  # a kernel without a parameter list
            found[match[1].decode()] = KernelSignature(0, 0)
            continue
        closing = text.find(b")", opening)
        parameters = _COMMENT.sub(b"", text[opening : closing if closing >= 0 else len(text)])
        found[match[1].decode()] = _signature(parameters)
    return found


def _signature(parameters: bytes) -> KernelSignature | None:
    widths = []
    for kind, bits, array in _PARAMETER.findall(parameters):
        if array or kind not in (b"u", b"b", b"s", b"f"):
            return None
        widths.append(int(bits))
    if len(widths) != parameters.count(b".param"):
        return None
    pointers = sum(width == _POINTER_BITS for width in widths)
    words = len(widths) - pointers
    if widths != [_POINTER_BITS] * pointers + [_WORD_BITS] * words:
        return None
    return KernelSignature(pointers, words)


def with_waits(text: bytes) -> bytes | None:
    """Makes kernels wait first for what they depend on, to be launched earlier. None where that cannot be
    done to all of them."""
    waiting, count = _BODY.subn(lambda found: found[0] + _WAIT, text)
    if not count or count != len(_ENTRY.findall(text)):
        return None
    waiting = _VERSION.sub(_at_least_version, waiting)
    return _TARGET.sub(lambda found: found[1] + b"%d" % max(_WAIT_TARGET, int(found[2])), waiting)


def _at_least_version(found: re.Match[bytes]) -> bytes:
    return found[1] + b"%d.%d" % max(_WAIT_VERSION, (int(found[2]), int(found[3])))


def split(text: bytes) -> list[bytes]:
    """Splits a text into one per kernel, each with the head of all.

    The whole text when functions that kernels share stand between them.
    """
    starts = [match.start() for match in _ENTRY.finditer(text)]
    if len(starts) < 2 or _FUNCTION.search(text, starts[0]):
        return [text]
    header = text[: starts[0]]
    ends = [*starts[1:], len(text)]
    return [header + text[start:end] for start, end in zip(starts, ends, strict=True)]


_NAMED_TARGET: Final = re.compile(rb"^\s*\.target\s+sm_(\d+)", re.MULTILINE)
_FORMAT: Final = 3
"""The version of the format in which code is kept."""
_LOG_SIZE: Final = 8192
"""Bytes of the compiler's messages that are kept."""
_MAXIMUM_THREADS: Final = 8
"""Beyond them compiling gets no faster: the largest kernel decides."""


def compile_image(context: CudaContext, image: bytes) -> list[bytes]:
    """Cubins that together have the image's kernels: from the cache, else compiled now.

    A cubin is returned as it is. INCOMPATIBLE for PTX of a newer architecture than the device's,
    INVALID_ARGUMENT with the compiler's log for PTX that it refuses.
    """
    if is_cubin(image):
        return [image]
    _check_target(context, image)
    capability, driver = context.info.compute_capability, context.info.driver_version
    key = hashlib.sha256(repr((_FORMAT, capability, driver)).encode() + image).digest()
    recipe = Recipe("cubins", f"{len(image)} bytes of PTX for sm_{capability[0]}{capability[1]}", "", 0.0)
    cubins = load_cubins(recipe, key)
    if cubins is None:
        begun = time.perf_counter()
        cubins = _compile_all(context, split(image))
        note(BUILT, f"{recipe.title} is compiled by the driver", seconds=time.perf_counter() - begun)
        store_cubins(recipe, key, cubins)
    return cubins


def load_cubins(recipe: Recipe, key: bytes) -> list[bytes] | None:
    """The cubins of a key from the folder of machine code, or None."""
    found = cache.load(recipe, key)
    if found is None:
        return None
    return [bytes(found.code[start:end]) for start, end in pairwise((0, *found.entries.values()))]


def store_cubins(recipe: Recipe, key: bytes, cubins: Sequence[bytes]) -> None:
    """Keeps cubins for later processes as an image, whose entries are their ends. A folder that refuses is no
    error: they are compiled again."""
    from jitree.codegen.image import contents

    ends = {str(number): end for number, end in enumerate(accumulate(map(len, cubins)))}
    limit = contents.maximum_size()
    with ignored(OSError):
        contents.shrink(limit, (cache.store(recipe, key, FlatImage(b"".join(cubins), b"", ends)),))


def _check_target(context: CudaContext, text: bytes) -> None:
    match = _NAMED_TARGET.search(text)
    major, minor = context.info.compute_capability
    if match is not None and int(match[1]) > 10 * major + minor:
        raise IncompatibleError(
            f"the executable was compiled for sm_{int(match[1])}, but {context.info.name} is "
            f"sm_{major}{minor}; compile "
            "it for an architecture that the device has, such as --iree-cuda-target=sm_80"
        )


def _compile_all(context: CudaContext, texts: list[bytes]) -> list[bytes]:
    if len(texts) == 1:
        return [_compile(context, texts[0])]
    from concurrent.futures import ThreadPoolExecutor  # not needed to start a process

    threads = min(len(texts), _MAXIMUM_THREADS, available_processors())
    with ThreadPoolExecutor(threads, "jitree-ptx") as pool:
        return list(pool.map(lambda text: _compile(context, text), texts))


def _compile(context: CudaContext, text: bytes) -> bytes:
    """One PTX text to a cubin. The compiler takes about a millisecond per KB."""
    context.enter()
    api = context.api
    options = api.driver.CUjit_option
    log = bytearray(_LOG_SIZE)
    names = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    values = [log, len(log)]
    owned = context.make("cuLinkCreate", (len(names), names, values), "cuLinkDestroy")
    try:
        link = owned.handle
        kind = api.driver.CUjitInputType.CU_JIT_INPUT_PTX
        # The text's terminator counts.
        api.call("cuLinkAddData", link, kind, text + b"\0", len(text) + 1, b"executable", 0, [], [])
        address, size = api.call("cuLinkComplete", link)
        return ctypes.string_at(int(address), int(size))
    except StatusError as error:
        if api.lost is not None:
            raise
        message = log.split(b"\0")[0].decode(errors="backslashreplace").strip()
        raise InvalidArgumentError(
            f"the driver's compiler refuses the executable's PTX: {error.message}; its log: "
            f"{message or 'empty'}; if it does not know the PTX version, a newer driver does"
        ) from error
    finally:
        owned.close()
