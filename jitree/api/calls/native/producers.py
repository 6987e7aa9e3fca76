"""Types of other libraries' arrays that machine code of calls looks at itself
(:mod:`jitree.api.calls.native.exchange`).

A type is learned when Python has taken one of its arrays, and forgotten when it dies. Its own functions in C
(``__dlpack_c_exchange_api__``) count as long as no class between overrides ``__dlpack__``.
"""

from __future__ import annotations

import sys
from array import array
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import ref

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.native.layout import EXCHANGE, MAXIMUM_EXCHANGES
from jitree.api.calls.tensor_packing import is_object
from jitree.base.dlpack_names import LAZY_ATTRIBUTE, LAZY_COMPLEX, LAZY_METHOD
from jitree.base.weak_sets import SharedWeakSet
from jitree.errors import has_attribute, is_interruption

if TYPE_CHECKING:
    from collections.abc import Sequence

DLPACK: Final = sys.intern("__dlpack__")
DLPACK_DEVICE: Final = sys.intern("__dlpack_device__")
NAMES: Final = ("max_version",)
STREAM_NAMES: Final = ("stream", "max_version")
OLD_STREAM_NAMES: Final = ("stream",)
VERSION: Final = (1, 0)
"""What machine code passes by these names."""
_LAZY_NAMES: Final = {
    "lazy_attribute": sys.intern(LAZY_ATTRIBUTE), "lazy_method": sys.intern(LAZY_METHOD),
    "lazy_complex": sys.intern(LAZY_COMPLEX),
}  # fmt: skip
_WORDS: Final = EXCHANGE.size // 8
_KNOWN: Final = (np.ndarray, np.generic, Array)
_LONG: Final = 64


class Producers:
    """The EXCHANGE records of the process."""

    def __init__(self) -> None:
        self._words = array("q", bytes(EXCHANGE.size * MAXIMUM_EXCHANGES))
        self.address: int = self._words.buffer_info()[0]
        self._kept: dict[int, tuple[object, ...]] = {}
        self._seen: SharedWeakSet[type] = SharedWeakSet()
        self._next = 0

    def learn(self, value: object) -> None:
        """Has machine code take arrays like one that Python takes."""
        cls = type(value)
        if cls in self._seen:
            return
        self._seen.add(cls)
        if issubclass(cls, _KNOWN) or not has_attribute(cls, DLPACK):
            return
        from jitree.base.dlpack import exchange_capsule, exchange_interface

        capsule = exchange_capsule(cls)
        interface = exchange_interface(capsule)
        if interface is not None and interface.tensor_of_object:
            row = {field: id(name) for field, name in _LAZY_NAMES.items() if has_attribute(cls, name)}
            row["describe"] = interface.tensor_of_object
            row["find_stream"] = interface.current_work_stream or 0
        else:
            row = {"names": id(NAMES) if _takes_version(value) else 0}
        number, self._next = self._next, (self._next + 1) % MAXIMUM_EXCHANGES
        # As the class dies, in C, where no signal's handler runs: Python would lose what one raises.
        forget = map(self._words.__setitem__, (number * _WORDS + EXCHANGE.word("type"),), (0,))
        self._kept[number] = ref(cls, partial(next, forget)), capsule
        self._words[number * _WORDS : (number + 1) * _WORDS] = array("q", bytes(EXCHANGE.size))
        for field, word in {**row, "type": id(cls)}.items():
            self._words[number * _WORDS + EXCHANGE.word(field)] = word


def _takes_version(value: Any) -> bool:
    """Whether ``__dlpack__`` takes what it takes from DLPack 1.0 on."""
    try:
        value.__dlpack__(max_version=VERSION)
    except Exception as error:  # whatever its code raises
        if is_interruption(error):
            raise
        return False
    return True


def runs_code(value: object) -> bool:
    """Whether code of others makes an array of a value, by ``__array__`` or as a list. Long lists, which take
    long to look at, count as such."""
    cls = type(value)
    if cls is list or cls is tuple:
        items = cast("Sequence[object]", value)
        return len(items) > _LONG or any(map(runs_code, items))
    if issubclass(cls, (list, tuple)):
        return True
    is_known = issubclass(cls, _KNOWN) or has_attribute(cls, DLPACK) or is_object(value)
    return not is_known and has_attribute(cls, "__array__")
