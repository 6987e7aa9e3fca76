"""Taps, checks and profiles dispatches by flags.

Those are ``--tap``, ``--replace``, ``--check_finite``, ``--profile``, ``--device_profiling_*`` and
``--print_device_statistics``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitree import errors
from jitree.base.cancel_scopes import deadline
from jitree.hal.buffer import BufferView
from jitree.tools.flags import ParsedFlags
from jitree.tools.reporting import in_colours

if TYPE_CHECKING:
    from jitree.api.session import Session
    from jitree.base.elements import Bytes
    from jitree.hal.buffer import Buffer
    from jitree.hal.device import Device
    from jitree.hal.profiling import Measurement
    from jitree.hal.stepwise import Extent
    from jitree.observe.profile import Profile
    from jitree.observe.profile_rows import ProfileTable
    from jitree.observe.taps import Taps
    from jitree.tools.calling import ConfinedCall, PreparedCall
    from jitree.tools.values import HostValue

_STATS: Final = "stats"
_WHOLE: Final = ("npz", "safetensors")


@contextmanager
def looking_into(session: Session, flags: ParsedFlags) -> Iterator[None]:
    """Taps and checks as the flags want them; what taps found is printed at the end, also of a call that
    failed."""
    if wanted := check_finite(flags):
        session.check_finite(wanted)
    for text in flags.texts("replace"):
        _replace(session, text)
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


def check_finite(flags: ParsedFlags) -> list[str] | bool:
    """What ``--check_finite`` asks for: names, or True for the usual ones; False where it is not given."""
    check = flags.optional("check_finite")
    return check is not None and ([name for name in check.split(",") if name] or True)


def _replace(session: Session, text: str) -> None:
    """Replaces dispatches or imports as long as the session is there: ``NAME=FILE.py:FUNCTION``."""
    name, _, place = text.partition("=")
    path, _, function = place.rpartition(":")
    if not (name and path and function):
        raise errors.InvalidArgumentError(f"--replace: expected NAME=FILE.py:FUNCTION but got '{text}'")
    from runpy import run_path

    with errors.system_refusals(f"--replace: cannot read '{path}'"):
        defined = run_path(path)
    if function not in defined:
        raise errors.NotFoundError(f"--replace: '{path}' defines no '{function}'")
    session.replace(name, defined[function])


def _taps(session: Session, texts: Sequence[str], output: str) -> list[Taps]:
    """One of statistics and one of whole tensors, if any are asked for."""
    patterns: dict[str, list[str]] = {_STATS: [], "tensors": []}
    for text in texts:
        pattern, separator, keep = text.rpartition(":")
        if keep in _WHOLE and output and not output.endswith(f".{keep}"):
            raise errors.InvalidArgumentError(
                f"--tap: '{text}' goes to a file that ends with .{keep}, not to '{output}'"
            )
        if not separator or keep not in (_STATS, *_WHOLE):
            pattern, keep = text, output.rpartition(".")[2]
        patterns["tensors" if keep in _WHOLE else _STATS].append(pattern)
    taps = []
    if patterns["tensors"]:
        if not output:
            raise errors.InvalidArgumentError("--tap: whole tensors need a file: --tap_output=FILE.npz")
        taps.append(session.tap(patterns["tensors"], keep="tensors", path=output))
    if patterns[_STATS]:
        taps.append(session.tap(patterns[_STATS]))
    return taps


def _write(statistics: str, output: str) -> None:
    """Writes to the file, unless that is of tensors; ``-`` is the standard output."""
    if not statistics or output in ("", "-") or output.endswith(_WHOLE):
        sys.stdout.write(statistics)
    else:
        with errors.system_refusals(f"--tap_output: cannot write '{output}'"):
            Path(output).write_text(statistics, encoding="utf-8")


def require_finite(session: Session, results: Sequence[Any]) -> None:
    """What no dispatch made is said as well: NonFiniteError for a result that is not finite."""
    check = session.finite_check
    if check is None:
        return
    from jitree.observe.export_names import kind_of
    from jitree.observe.finite import fault_of_tensor, fill

    for number, result in enumerate(results):
        if not isinstance(result, BufferView):
            continue
        kind = kind_of(result.element_type, result.shape)
        extent = result.buffer.address, kind.byte_length
        fault = fault_of_tensor(extent, kind, partial(_read, session.device, result.buffer))
        if fault is not None:
            what = f"result {number} has {fault}, which no dispatch made"
            why = "it comes from arguments, constants, parameters, copies or fills"
            error = errors.NonFiniteError(
                f"{check.first_read}; {what}" if check.first_read else f"{what}: {why}"
            )
            fill(error, fault, f"result {number}")
            raise error


def _read(device: Device, buffer: Buffer, extent: Extent) -> Bytes:
    address, length = extent
    return device.read_buffer(buffer.subspan(address - buffer.address, length))


_MODES: Final = (
    "queue-events", "host-execution", "device-queue-events", "dispatch-events", "executable-metadata",
)  # fmt: skip
_OTHER_MODES: Final = (
    "memory-events", "device-metrics", "command-region-events", "counters", "counter-ranges",
    "executable-traces",
)  # fmt: skip
_COMMAND: Final = ("function", "command_index", "physical_device")
_UNKNOWN: Final = ("command_buffer", "queue")
_SHOWN: Final = 10


def wants_device_profile(flags: ParsedFlags) -> bool:
    return bool(flags.text("device_profiling_mode") or flags.boolean("print_device_statistics"))


def is_profiled(flags: ParsedFlags) -> bool:
    return bool(flags.text("profile")) or wants_device_profile(flags)


def check_flags(flags: ParsedFlags) -> None:
    """INVALID_ARGUMENT for flags that do not go together, UNIMPLEMENTED for what is not measured."""
    for name in ("profile", "device_profiling_output"):
        if flags.text(name) == "-":
            raise errors.InvalidArgumentError(f"--{name}: '-' is no file; results are on the standard output")
    output, wanted = flags.text("device_profiling_output"), flags.text("device_profiling_mode")
    for mode in filter(None, wanted.split(",")):
        if mode in _OTHER_MODES:
            raise errors.UnimplementedError(
                f"flag 'device_profiling_mode': '{mode}' is not measured; {', '.join(_MODES)} are"
            )
        if mode not in _MODES:
            raise errors.InvalidArgumentError(
                f"unsupported profiling data family '{mode}'; expected {', '.join(_MODES)}"
            )
    if wanted and not output:
        raise errors.InvalidArgumentError("--device_profiling_mode requires --device_profiling_output")
    if output and not wanted:
        raise errors.InvalidArgumentError("--device_profiling_output requires --device_profiling_mode")
    if _is_filtered(flags) and not is_profiled(flags):
        raise errors.InvalidArgumentError(
            "--device_profiling_filter_* requires --device_profiling_mode, --print_device_statistics or "
            "--profile"
        )
    if output and flags.boolean("print_device_statistics"):
        raise errors.InvalidArgumentError(
            "--print_device_statistics cannot be combined with --device_profiling_output; use --profile"
        )
    for name in _UNKNOWN:
        if flags.integer(f"device_profiling_filter_{name}") != -1:
            raise errors.UnimplementedError(
                f"flag 'device_profiling_filter_{name}': commands are chosen by {', '.join(_COMMAND)}"
            )


def _is_filtered(flags: ParsedFlags) -> bool:
    numbers = (flags.integer(f"device_profiling_filter_{name}") for name in (*_COMMAND[1:], *_UNKNOWN))
    return bool(flags.text("device_profiling_filter_function")) or any(number != -1 for number in numbers)


def refuse_profiles(flags: ParsedFlags) -> None:
    """UNIMPLEMENTED where each test has a session for itself."""
    check_flags(flags)
    if is_profiled(flags):
        raise errors.UnimplementedError(
            "tests are not profiled; profile one of them with `jitree run --function=`"
        )


def warm_up(
    session: Session, prepared: PreparedCall | ConfinedCall, flags: ParsedFlags
) -> list[HostValue] | None:
    """Makes the calls before the one that is profiled: the first imports, loads and packs what later ones
    find. The results of the first, since later ones are other calls of a program with state; None without
    one. What fails here fails once more where it is profiled."""
    calls = flags.integer("profile_warmup")
    if calls < 0:
        raise errors.InvalidArgumentError(f"flag 'profile_warmup': {calls} is less than 0")
    if not calls or not is_profiled(flags):
        return None
    wait_for_compiled_code(session)
    first = None
    try:
        for _ in range(calls):
            with deadline(flags.number("timeout")):
                called = prepared.call()
                first = prepared.to_host(called) if first is None else first
    except Exception as error:
        if errors.is_interruption(error):
            raise
    return first


def wait_for_compiled_code(session: Session) -> None:
    """Measurements are of compiled code, not of what runs until that is built.

    Without a compiler they are of what there is, which is said.
    """
    from jitree.api.load_order import wait_for_hal

    try:
        if session.tier == "auto":
            from jitree.api.calls.native import RECIPE
            from jitree.codegen import image
            from jitree.dispatch.fast import LOOP

            image.wait(LOOP)
            image.wait(RECIPE)
        wait_for_hal()
    except errors.UnavailableError as error:
        print(f"jitree: measuring without compiled code: {error}", file=sys.stderr)


@contextmanager
def profiling(session: Session, flags: ParsedFlags) -> Iterator[None]:
    """Profiles what is called inside as the flags want it; also a call that fails."""
    if not is_profiled(flags):
        yield
        return
    paths = [path for path in (flags.text("profile"), flags.text("device_profiling_output")) if path]
    profile = session.profile()
    try:
        yield
    finally:
        profile.stop()
        _show(profile, session.devices, paths, flags)


def _show(profile: Profile, devices: tuple[Device, ...], paths: list[str], flags: ParsedFlags) -> None:
    _filter(profile, devices, flags)
    for path in paths:
        profile.save(path)
    in_colours(sys.stderr)
    if flags.text("profile"):
        _write_rows(profile.rows.first(_SHOWN))
    if flags.boolean("print_device_statistics"):
        sys.stderr.write("\nDevice statistics:\n")
        _write_rows(profile.table())
        _write_rows(profile.table("device operation"))


def _write_rows(table: ProfileTable) -> None:
    from jitree.base.tables import text_table  # of those who look

    header, rows, note = table.parts()
    sys.stderr.write(text_table([header, *rows]))
    sys.stderr.write(f"\n{note}\n" if note else "\n")


def _filter(profile: Profile, devices: tuple[Device, ...], flags: ParsedFlags) -> None:
    pattern = flags.text("device_profiling_filter_function") or "*"
    index = flags.integer("device_profiling_filter_command_index")
    ordinal = flags.integer("device_profiling_filter_physical_device")

    names: set[str] = set()

    def is_chosen(device: Device, command: Measurement) -> bool:
        names.add(command.name)
        return (
            fnmatchcase(command.name, pattern)
            and index in (-1, command.row)
            and ordinal in (-1, devices.index(device))
        )

    profile.restrict(is_chosen)
    if names and not profile.rows:
        from jitree.observe.taps import near

        sys.stderr.write(
            f"--device_profiling_filter_*: no command is meant; names near it: {near(pattern, names)}\n"
        )
