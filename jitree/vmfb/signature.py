"""What a function's descriptor and calling convention say, checked before its body is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, StatusError
from jitree.vmfb.cconv import (
    CallingConvention,
    EntryRule,
    RegisterSlot,
    ascending_slots,
    first_fit_slots,
    parse,
    register_counts,
)
from jitree.vmfb.module import known_features
from jitree.vmfb.schema import MAXIMUM_REFS, MAXIMUM_VALUE_SLOTS, FunctionRow, ModuleTables, Rows

if TYPE_CHECKING:
    import numpy.typing as npt

_FIRST_ASCENDING_VERSION: Final = 16
"""Bytecode version whose compilers all number upwards."""
_LAST_FIRST_FIT_HAL: Final = 5
"""Releases that demand at most this version of the hal module (none later than 3.3.0) use first fit."""
_FIRST_ASCENDING_HAL: Final = 7
_DECISIVE: Final = ("requirements", "value_count", "ref_count")
"""What decides on the signature of a function, beside its convention."""


class FunctionSignature(NamedTuple):
    """How an internal function is called, and the registers it may use."""

    cconv: CallingConvention
    argument_tags: tuple[int, ...]
    argument_slots: tuple[RegisterSlot, ...]
    value_count: int
    """Value slots that instructions may name: as recorded."""
    ref_count: int


class Signatures(Rows[FunctionSignature]):
    """The signatures of all functions, of which many are alike."""

    __slots__ = ("distinct", "kinds")

    def __init__(self, distinct: Sequence[FunctionSignature], kinds: npt.NDArray[np.int64]) -> None:
        self.distinct = distinct
        self.kinds = kinds
        """Of each function the place of its signature in ``distinct``."""

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, ordinal: int) -> FunctionSignature:  # type: ignore[override]  # no slices
        return self.distinct[int(self.kinds[ordinal])]

    def column(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """For each function what ``values`` has for its signature in ``distinct``."""
        column: npt.NDArray[np.int64] = np.array(values, np.int64)[self.kinds]
        return column


def read_signatures(module: ModuleTables) -> Signatures:
    """Checks descriptors and conventions of all functions and finds where arguments lie at entry.

    INVALID_ARGUMENT, UNIMPLEMENTED (another convention version) or RESOURCE_EXHAUSTED (register counts), with
    the function as context.
    """
    numbers = [module.functions.columns[name].tolist() for name in _DECISIVE]
    keys = list(zip(module.functions.conventions, *numbers, strict=True))
    first = dict(zip(reversed(keys), reversed(range(len(keys))), strict=True))
    found = {key: kind for kind, key in enumerate(dict.fromkeys(keys))}
    functions = [module.functions[first[key]] for key in found]
    for function in functions:
        try:
            _check_descriptor(module, function)
        except StatusError as error:
            raise error.with_context(f"function '{module.function_name(function.ordinal)}'") from None
    rule = choose_entry_rule(module)
    return Signatures(
        [_signature(module, function, rule) for function in functions],
        np.array([found[key] for key in keys], np.int64),
    )


def _signature(module: ModuleTables, function: FunctionRow, rule: EntryRule) -> FunctionSignature:
    cconv = parse(function.cconv)
    tags = cconv.argument_tags or ()
    slots = rule(tags)
    needed_values, needed_refs = register_counts(slots)
    value_count, ref_count = max(function.value_count, 0), max(function.ref_count, 0)
    if needed_values > value_count or needed_refs > ref_count:
        raise InvalidArgumentError(
            f"insufficient register storage: the arguments of {function.cconv!r} need {needed_values} "
            f"value slots and {needed_refs} refs, the function has {value_count} and {ref_count}",
            f"function '{module.function_name(function.ordinal)}'",
        )
    return FunctionSignature(cconv, tags, slots, value_count, ref_count)


def choose_entry_rule(module: ModuleTables) -> EntryRule:
    """The rule for all functions of a module, which one compiler wrote."""
    if module.bytecode_version[0] >= _FIRST_ASCENDING_VERSION:
        return ascending_slots
    for dependency in module.dependencies:
        if dependency.name == "hal" and 1 <= dependency.minimum_version <= _LAST_FIRST_FIT_HAL:
            return first_fit_slots
        if dependency.name == "hal" and dependency.minimum_version >= _FIRST_ASCENDING_HAL:
            return ascending_slots
    from jitree.vmfb.entry import rule_of_code  # old programs without devices only

    return rule_of_code(module)


def _check_descriptor(module: ModuleTables, function: FunctionRow) -> None:
    unknown = function.requirements & ~known_features(module.bytecode_version[0])
    if unknown:
        raise InvalidArgumentError(f"requires unknown features 0x{unknown:08X}")
    if _rounded(function.value_count) > MAXIMUM_VALUE_SLOTS or _rounded(function.ref_count) > MAXIMUM_REFS:
        raise ResourceExhaustedError(
            f"register count overflow: {function.value_count} value slots and {function.ref_count} refs; "
            f"rounded up to powers of two the most are {MAXIMUM_VALUE_SLOTS} and {MAXIMUM_REFS}"
        )
    if parse(function.cconv).has_spans:
        raise InvalidArgumentError(
            f"calling convention {function.cconv!r} has a variadic span; only imports can"
        )


def _rounded(count: int) -> int:
    """The smallest power of two that is at least ``count`` and 1."""
    return 1 << max(count - 1, 0).bit_length()
