"""Arguments that callers give to programs: storage of results (``out=``) and arrays that they donate.

A compiler marks them: ``iree.abi.output = n`` on the argument that result ``n`` is put into,
``iree.abi.consume`` on a tensor whose memory the program uses for something else when it has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.declaration import OUT
from jitree.api.calls.refusal import describe
from jitree.api.calls.tensor_packing import Donation
from jitree.api.calls.transfers import wrap_in_place
from jitree.base.arguments import is_masked
from jitree.errors import InvalidArgumentError, has_attribute
from jitree.hal.command_layout import BINDING_ALIGNMENT
from jitree.hal.device import Device

if TYPE_CHECKING:
    import numpy.typing as npt


def storage_of(names: Sequence[str], out: Any, device: Device) -> dict[str, Array]:
    """The arguments that ``out`` stands for: an array, or a tuple with one for each result that the program
    puts into storage of its caller. ``names``: of those, in that order.

    Arrays of the host, also of other libraries, are written in place. INVALID_ARGUMENT for a program that has
    no such results, for another number of arrays, and for arrays that cannot be written in place.
    """
    if not names:
        raise InvalidArgumentError(
            f"{OUT}: the program puts no result into storage of its caller; compile it with an argument that "
            "has `iree.abi.output`, or copy its results"
        )
    arrays = out if isinstance(out, (tuple, list)) else (out,)
    if len(arrays) != len(names):
        raise InvalidArgumentError(f"{OUT}: expected {len(names)} arrays but got {len(arrays)}")
    return {name: _in_place(name, array, device) for name, array in zip(names, arrays, strict=True)}


def _in_place(name: str, value: Any, device: Device) -> Array:
    if isinstance(value, Array):
        return value
    array = _over_memory(value)
    view = None if array is None else wrap_in_place(array, device)
    if view is not None:
        return Array(view, device)
    raise InvalidArgumentError(
        f"{OUT}: {name}: {describe(value)} cannot be written in place{_obstacle(array)}; it takes device "
        "arrays (session.empty), and arrays of numpy and others in host memory, contiguous, writable and "
        "aligned to 64 bytes (as session.empty(shape, dtype).to_host() is), where the device uses that"
    )


def _obstacle(array: npt.NDArray[Any] | None) -> str:
    """Why an array of the host cannot be written in place, as far as it is the array's."""
    if array is None:
        return ""
    beyond = array.__array_interface__["data"][0] % BINDING_ALIGNMENT
    if not array.flags.c_contiguous:
        return ": its elements do not lie one after the other"
    if not array.flags.writeable:
        return ": it is read-only"
    return f": it begins {beyond} bytes after a multiple of {BINDING_ALIGNMENT}" if beyond else ""


def _over_memory(value: Any) -> npt.NDArray[Any] | None:
    """A numpy array over the memory of an array of the host, None for anything else. Of a subclass, which may
    say anything of itself, it is one of numpy's own class."""
    if isinstance(value, np.ndarray):
        return None if is_masked(value) else np.asarray(value)
    if not has_attribute(value, "__dlpack__"):
        return None
    from jitree.base.dlpack import import_array, is_importable  # few programs use other libraries

    return import_array(value) if is_importable(value) else None


def donate(array: Array) -> Donation:
    """Marks an argument of one call: the array is the program's from then on, which may use its memory for
    something else if it was compiled so (``iree.abi.consume``). The caller cannot use it any more.

    INVALID_ARGUMENT for anything but a :class:`jitree.Array`.
    """
    if not isinstance(array, Array):
        raise InvalidArgumentError(f"donate: expected a jitree.Array but got {describe(array)}")
    return Donation(array)
