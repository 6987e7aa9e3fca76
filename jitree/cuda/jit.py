"""PTX to machine code by the driver's compiler: kernels side by side in threads, results kept on disk."""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Final

from jitree.cuda import cubin_cache, ptx
from jitree.errors import IncompatibleError, InvalidArgumentError, StatusError

if TYPE_CHECKING:
    from jitree.cuda.context import CudaContext

_TARGET: Final = re.compile(rb"^\s*\.target\s+sm_(\d+)", re.MULTILINE)
_LOG_SIZE: Final = 8192
"""Bytes of the compiler's messages that are kept."""
_MAXIMUM_THREADS: Final = 8
"""Beyond them compiling gets no faster: the largest kernel decides."""


def compile_image(context: CudaContext, image: bytes) -> list[bytes]:
    """Cubins that together have the image's kernels: from the cache, else compiled now.

    A cubin is returned as it is. INCOMPATIBLE for PTX of a newer architecture than the device's,
    INVALID_ARGUMENT with the compiler's log for PTX that it refuses.
    """
    if ptx.is_cubin(image):
        return [image]
    _check_target(context, image)
    key = cubin_cache.key_of(image, context.info.compute_capability, context.info.driver_version)
    cubins = cubin_cache.load(key)
    if cubins is None:
        cubins = _compile_all(context, ptx.split(image))
        cubin_cache.store(key, cubins)
    return cubins


def _check_target(context: CudaContext, text: bytes) -> None:
    match = _TARGET.search(text)
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

    threads = min(len(texts), _MAXIMUM_THREADS, len(os.sched_getaffinity(0)))
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
    link = api.call("cuLinkCreate", len(names), names, values)
    try:
        kind = api.driver.CUjitInputType.CU_JIT_INPUT_PTX
        # The text's terminator counts.
        api.call("cuLinkAddData", link, kind, text + b"\0", len(text) + 1, b"executable", 0, [], [])
        address, size = api.call("cuLinkComplete", link)
        return ctypes.string_at(int(address), int(size))
    except StatusError as error:
        if api.lost is not None:
            raise
        message = log.split(b"\0")[0].decode(errors="replace").strip()
        raise InvalidArgumentError(
            f"the driver's compiler refuses the executable's PTX: {error.message}; its log: "
            f"{message or 'empty'}; if it does not know the PTX version, a newer driver does"
        ) from error
    finally:
        api.call("cuLinkDestroy", link)
