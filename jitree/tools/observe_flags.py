"""Taps and checks dispatches by the flags ``--tap`` and ``--check_finite``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitree.errors import InvalidArgumentError, NonFiniteError, UnavailableError, pass_interruption
from jitree.hal.buffer import BufferView
from jitree.tools.flags import ParsedFlags

if TYPE_CHECKING:
    from jitree.api.session import Session
    from jitree.base.elements import Bytes
    from jitree.hal.buffer import Buffer
    from jitree.hal.device import Device
    from jitree.hal.stepwise import Extent
    from jitree.observe.taps import Taps

_STATS: Final = "stats"
_WHOLE: Final = ("npz", "safetensors")


@contextmanager
def looking_into(session: Session, flags: ParsedFlags) -> Iterator[None]:
    """Taps and checks as the flags want them; what taps found is printed at the end, also of a call that
    failed."""
    check = flags.optional("check_finite")
    if check is not None:
        session.check_finite([name for name in check.split(",") if name] or True)
    taps = _taps(session, flags.texts("tap"), flags.text("tap_output"))
    try:
        yield
        for tap in taps:
            tap.require_some()
    finally:
        for tap in taps:
            tap.stop()
        text = "".join(f"{tap}\n" for tap in taps if tap.has_statistics and len(tap))
        _write(text, flags.text("tap_output"))


def _taps(session: Session, texts: Sequence[str], output: str) -> list[Taps]:
    """One of statistics and one of whole tensors, if any are asked for."""
    patterns: dict[str, list[str]] = {_STATS: [], "tensors": []}
    for text in texts:
        pattern, separator, keep = text.rpartition(":")
        if keep in _WHOLE and output and not output.endswith(f".{keep}"):
            raise InvalidArgumentError(
                f"--tap: '{text}' goes to a file that ends with .{keep}, not to '{output}'"
            )
        if not separator or keep not in (_STATS, *_WHOLE):
            pattern, keep = text, output.rpartition(".")[2]
        patterns["tensors" if keep in _WHOLE else _STATS].append(pattern)
    taps = []
    if patterns["tensors"]:
        if not output:
            raise InvalidArgumentError("--tap: whole tensors need a file: --tap_output=FILE.npz")
        taps.append(session.tap(patterns["tensors"], keep="tensors", path=output))
    if patterns[_STATS]:
        taps.append(session.tap(patterns[_STATS]))
    return taps


def _write(statistics: str, output: str) -> None:
    """Writes to the file, unless that is of tensors."""
    if not statistics or not output or output.endswith(_WHOLE):
        sys.stdout.write(statistics)
    else:
        try:
            Path(output).write_text(statistics, encoding="utf-8")
        except OSError as error:
            pass_interruption(error)
            raise UnavailableError(f"--tap_output: cannot write '{output}': {error.strerror}") from None


def require_finite(session: Session, results: Sequence[Any]) -> None:
    """What no dispatch made is said as well: NonFiniteError for a result that is not finite."""
    check = session.finite_check
    if check is None:
        return
    from jitree.observe.finite import fault_of_view, fill

    for number, result in enumerate(results):
        if not isinstance(result, BufferView):
            continue
        fault = fault_of_view(result, partial(_read, session.device, result.buffer))
        if fault is not None:
            what = f"result {number} has {fault}, which no dispatch made"
            why = "it comes from arguments, constants, parameters, copies or fills"
            error = NonFiniteError(f"{check.first_read}; {what}" if check.first_read else f"{what}: {why}")
            fill(error, fault, f"result {number}")
            raise error


def _read(device: Device, buffer: Buffer, extent: Extent) -> Bytes:
    address, length = extent
    return device.read_buffer(buffer.subspan(address - buffer.address, length))
