"""Values between Python and registers, where a plain store was refused."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from jitree.base.arguments import described, items, shown
from jitree.dispatch.host_export import results
from jitree.errors import InternalError, InvalidArgumentError, pass_interruption
from jitree.vmfb.cconv import TYPE_NAMES, CallingConvention, Span
from jitree.vmfb.words import signed

_BITS = {"i": 32, "I": 64}


def argument(value: object, character: str, index: int) -> object:
    """An argument of the host as the register of that character takes it.

    Integers are truncated or sign extended to the width, floats converted, integers accepted for floats.
    INVALID_ARGUMENT for anything else. References are passed through.
    """
    if character == "r":
        return value
    try:
        if character in _BITS:
            integer = operator.index(value)  # type: ignore[arg-type]
            if -(1 << 63) <= integer < 1 << 64:
                return signed(integer, _BITS[character])
            raise InvalidArgumentError(f"argument {index}: {shown(integer)} does not fit 64 bits")
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        pass_interruption(error)
        pass  # the message below says it better
    raise InvalidArgumentError(
        f"argument {index}: expected {TYPE_NAMES[character]} but got {described(value)}"
    )


def arguments(convention: CallingConvention, values: Sequence[object]) -> list[object]:
    """All arguments of a call by the host, converted. Spans are sequences of values or tuples."""
    require_count(convention, values)
    converted: list[object] = []
    for index, (item, value) in enumerate(zip(convention.arguments, values, strict=True)):
        if isinstance(item, Span):
            converted.append([_row(item, row, index) for row in _sequence(value, index)])
        else:
            converted.append(argument(value, item, index))
    return converted


def _row(span: Span, row: object, index: int) -> object:
    if len(span.characters) == 1:
        return argument(row, span.characters, index)
    values = _sequence(row, index)
    if len(values) != len(span.characters):
        raise InvalidArgumentError(
            f"argument {index}: expected tuples of {len(span.characters)} but got {shown(row)}"
        )
    return tuple(
        argument(value, character, index) for character, value in zip(span.characters, values, strict=True)
    )


def _sequence(value: object, index: int) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise InvalidArgumentError(f"argument {index}: expected a list or tuple but got {shown(value)}")


def require_count(convention: CallingConvention, values: Sequence[object]) -> None:
    """INVALID_ARGUMENT unless there are as many values as arguments."""
    count = len(items("arguments", values))
    if count != len(convention.arguments):
        raise InvalidArgumentError(
            f"expected {len(convention.arguments)} arguments but passed {count}",
            f"signature {convention}",
        )


def result(value: object, character: str, index: int) -> int | float:
    """Converts a result of a host function that does not fit its register: unsigned integers are read as
    signed. INTERNAL if it is of another type or too large."""
    try:
        if character in _BITS:
            integer = operator.index(value)  # type: ignore[arg-type]
            bits = _BITS[character]
            if -(1 << (bits - 1)) <= integer < 1 << bits:
                return signed(integer, bits)
        else:
            return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        pass_interruption(error)
        pass  # the message below says it better
    raise InternalError(
        f"result {index}: expected {TYPE_NAMES[character]} but the function returned {shown(value)}"
    )


def host_results(convention: CallingConvention, value: object) -> list[object]:
    """Gives results of a host function to the host as registers would. INTERNAL if number or types differ."""
    return [
        item if character == "r" else result(item, character, index)
        for index, (character, item) in enumerate(
            zip(convention.results, results(convention, value), strict=True)
        )
    ]
