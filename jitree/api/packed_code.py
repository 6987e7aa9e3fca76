"""Loads machine code that ``jitree cache pack`` has made (``compiled=``).

It is run on the word of who names the file, like a shared library. A file that does not fit is a warning, and
the modules run as they do without it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree import errors
from jitree.api.calls.refusal import describe
from jitree.codegen.image import packs
from jitree.codegen.image.contents import Mismatch, Pack, warn
from jitree.codegen.image.flat import hashed
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.vmfb.decode import BytecodeModule

if TYPE_CHECKING:
    from jitree.dispatch.context import ModuleLike


def open_pack(
    compiled: object, modules: Sequence[ModuleLike], arithmetic: str, sandbox: object
) -> tuple[Pack, ...]:
    """The pack that a path names, in use as long as it is held; none, with a warning, if it does not fit.

    PERMISSION_DENIED in a sandbox, NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE where it cannot be opened.
    """
    if not isinstance(compiled, (str, os.PathLike)):
        what = "the path of a file that `jitree cache pack` has made"
        raise errors.InvalidArgumentError(f"compiled: expected {what} but got {describe(compiled)}")
    if sandbox:
        from jitree.api.sandbox import refuse_machine_code

        refuse_machine_code(compiled)
    path = os.fspath(compiled)
    try:
        pack = Pack(path)
        programs = [module for module in modules if isinstance(module, BytecodeModule)]
        others = [module.name for module in programs if identity(module, arithmetic) not in pack.programs]
        names = ", ".join(f"'{name}'" for name in others)
        missing = f"it has none of module {names} with arithmetic '{arithmetic}'"
        if len(others) == len(programs):
            raise Mismatch(missing)
    except FileNotFoundError:
        raise errors.NotFoundError(f"compiled: no such file: '{path}'") from None
    except PermissionError as error:
        raise errors.PermissionDeniedError(f"compiled: '{path}' cannot be read: {error.strerror}") from None
    except OSError as error:
        errors.pass_interruption(error)
        raise errors.UnavailableError(f"compiled: '{path}' cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise errors.InvalidArgumentError(f"compiled: '{path}': {error}") from None
    except Mismatch as mismatch:
        warn(path, str(mismatch))
        return ()
    if others:
        warn(path, missing)
    packs.add(pack)
    return (pack,)


def identity(module: BytecodeModule, arithmetic: str) -> bytes:
    """Tells the code of a program apart, whatever its weights are."""
    return hashed((arithmetic.encode(), module.module.bytecode, *vmvx_kernels.archives(module.module)))
