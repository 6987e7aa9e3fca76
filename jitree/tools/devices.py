"""Lists drivers, devices and worker topologies: ``jitree devices`` and the flags for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jitree.errors import StatusError
from jitree.tools.flags import ParsedFlags, command, flag_set
from jitree.tools.program import task_parameters

if TYPE_CHECKING:
    from jitree.hal.driver import Driver, DriverRegistry

FLAGS: Final = flag_set("devices", "lists the drivers and devices of this machine", "device refused")
_RULE: Final = "# " + "=" * 76
_THIN_RULE: Final = "# ===" + "-" * 70 + "==="


@command(FLAGS)
def main(flags: ParsedFlags) -> int:
    """Runs the command: what the flags ask for, without any the drivers and the devices."""
    if not answer_queries(flags):
        registry = _registry()
        sys.stdout.write(list_drivers(registry) + "\n" + list_devices(registry, ""))
    return 0


def answer_queries(flags: ParsedFlags) -> bool:
    """Prints what listing flags ask for; returns whether there were any."""
    listed = flags.optional("list_devices")
    dumped = flags.optional("dump_devices")
    texts = []
    if flags.optional("list_drivers") is not None:
        texts.append(list_drivers(_registry()))
    if listed is not None:
        texts.append(list_devices(_registry(), listed))
    if dumped is not None:
        texts.append(dump_devices(_registry(), dumped))
    if flags.optional("dump_task_topologies") is not None:
        texts.append(dump_topologies(flags))
    sys.stdout.write("".join(texts))
    return bool(texts)


def _registry() -> DriverRegistry:
    from jitree.hal.driver import all_drivers

    return all_drivers()


def list_drivers(registry: DriverRegistry) -> str:
    lines = [_RULE, "# Available HAL drivers", _RULE]
    lines += ["# Use --list_devices={driver name} to enumerate available devices.", ""]
    lines += [f"{name:>16}: {description}" for name, description in sorted(registry.enumerate())]
    return "\n".join(lines) + "\n"


def list_devices(registry: DriverRegistry, name: str) -> str:
    """One URI a line, of one driver or (empty name) all of them."""
    return "".join(
        f"{driver.name}://{info.path}\n"
        for driver in _drivers(registry, name)
        for info in driver.query_available_devices()
    )


def dump_devices(registry: DriverRegistry, name: str) -> str:
    """Details of the devices of one driver or (empty name) all of them."""
    lines = []
    for driver in _drivers(registry, name):
        lines += [_RULE, f"# Enumerated devices for driver '{driver.name}'", _RULE, ""]
        for info in driver.query_available_devices():
            lines += [_THIN_RULE, f"# --device={driver.name}://{info.path}", f"#   {info.name}", _THIN_RULE]
            lines += [driver.dump_device_info(info.id).rstrip("\n"), ""]
    return "\n".join(lines) + "\n"


def _drivers(registry: DriverRegistry, name: str) -> Iterator[Driver]:
    """The named driver, or every one that starts; the others are named on stderr with the reason."""
    if name:
        yield registry.driver(name)
        return
    for candidate, _ in sorted(registry.enumerate()):
        try:
            yield registry.driver(candidate)
        except StatusError as error:
            print(f"# {candidate}: unavailable: {error}", file=sys.stderr)


def dump_topologies(flags: ParsedFlags) -> str:
    """The workers that a local-task device made by these flags has."""
    from jitree.hal.local.topology import parse_parameters

    topologies = parse_parameters(task_parameters(flags)).topologies
    return "".join(topology.format(index) for index, topology in enumerate(topologies))
