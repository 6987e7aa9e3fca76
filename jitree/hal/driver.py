"""Finds drivers by name and devices by URI: ``local-sync``, ``local-task://?threads=4``, ``cuda://0``."""

from __future__ import annotations

import abc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from jitree import errors
from jitree.base.arguments import number_of, object_of
from jitree.base.finalizers import Unique, guard
from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError, NotFoundError
from jitree.hal.device import Device
from jitree.hal.executable import ExecutableLoader


class DeviceInfo(NamedTuple):
    """Describes a device that a driver could create."""

    id: int
    """The number that ``Driver.create_device_by_id`` takes."""
    path: str
    """For ``Driver.create_device_by_path``; empty for a driver's only device."""
    name: str
    """For people."""


class DeviceOptions(NamedTuple):
    """Holds what a device is created with besides its id."""

    parameters: Mapping[str, str] = MappingProxyType({})
    """``k=v`` of the URI; INVALID_ARGUMENT for names and values that the driver does not know."""
    loaders: Sequence[ExecutableLoader] = ()
    """Makers of executables, asked in this order; drivers with other formats use theirs."""


DEFAULT_OPTIONS: Final = DeviceOptions()


class Driver(Unique, abc.ABC):
    """Makes devices of one kind."""

    DEFAULT_ID = -1

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def query_available_devices(self) -> list[DeviceInfo]: ...

    @abc.abstractmethod
    def dump_device_info(self, device_id: int) -> str:
        """Details for people, in lines. NOT_FOUND for an unknown id."""

    @abc.abstractmethod
    def create_device_by_id(self, device_id: int, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        """DEFAULT_ID = the driver's default device. NOT_FOUND for an unknown id."""

    def create_device_by_path(self, path: str, options: DeviceOptions = DEFAULT_OPTIONS) -> Device:
        """A device by ordinal or path, the default one by the empty path. NOT_FOUND names those there are."""
        if not path:
            return self.create_device_by_id(self.DEFAULT_ID, options)
        infos = self.query_available_devices()
        for info in infos:
            if info.path == path:
                return self.create_device_by_id(info.id, options)
        if path.isdecimal() and number_of(path) < len(infos):
            return self.create_device_by_id(infos[int(path)].id, options)
        known = ", ".join(f"{self.name}://{info.path}" for info in infos) or "none"
        raise NotFoundError(f"driver '{self.name}' has no device '{path}'; there are: {known}")


class DeviceUri(NamedTuple):
    driver: str
    path: str
    parameters: dict[str, str]


def parse_uri(uri: str) -> DeviceUri:
    """``driver``, ``driver://path?key=value&key=value``. INVALID_ARGUMENT when it is neither."""
    if not issubclass(type(uri), str):  # whatever it says
        raise InvalidArgumentError(f"expected the URI of a device but got a {type(uri).__name__}")
    head, _, query = uri.strip().partition("?")
    driver, separator, path = head.partition("://")
    if not driver or ":" in driver or (not separator and "/" in driver):
        raise InvalidArgumentError(
            f"'{uri}' is not a device URI; expected <driver> or <driver>://<ordinal or path>?<key>=<value>"
            f"{_as_uri(head)}"
        )
    parameters: dict[str, str] = {}
    for pair in query.split("&") if query else ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidArgumentError(f"device URI '{uri}': '{pair}' is not of the form <key>=<value>")
        if _unquote(key) in parameters:
            raise InvalidArgumentError(f"device URI '{uri}': '{_unquote(key)}' is given twice; give it once")
        parameters[_unquote(key)] = _unquote(value)
    return DeviceUri(driver, _unquote(path).strip("/"), parameters)


def _as_uri(text: str) -> str:
    driver, _, path = re.sub("[:/]+", " ", text).partition(" ")
    return f"; did you mean '{driver}://{path}'?" if driver and path else ""


def _unquote(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # takes longer to import than all of this module

    return unquote(text)


DriverFactory = Callable[[], Driver]
DriverRow = tuple[str, DriverFactory]
"""A description for people, and what makes the driver."""


class DriverRegistry(Unique):
    """Makes drivers by name when first asked for, and keeps them."""

    def __init__(self, declared: Iterable[tuple[str, DriverRow]] = ()) -> None:
        """``declared``: rows by name, which are asked for as long as a name is not among those that came."""
        self._lock = guard()
        self._declared = iter(declared)
        self._factories: dict[str, DriverRow] = {}
        self._drivers: dict[str, Driver] = {}

    def register(self, name: str, description: str, factory: DriverFactory) -> None:
        """ALREADY_EXISTS when the name is taken. A factory whose driver cannot start raises UNAVAILABLE."""
        with self._lock:
            if self._row(name) is not None:
                raise errors.AlreadyExistsError(f"a driver '{name}' is registered already")
            self._factories[name] = (description, factory)

    def unregister(self, name: str) -> None:
        """NOT_FOUND for an unknown name. Devices made by the driver live on."""
        with self._lock:
            if self._row(object_of("name", name, str)) is None:
                raise NotFoundError(f"no driver '{name}' registered")
            del self._factories[name]
            self._drivers.pop(name, None)

    def enumerate(self) -> list[tuple[str, str]]:
        """(name, description) of every driver, in order of registration."""
        with self._lock:
            self._factories.update(self._declared)
            return [(name, description) for name, (description, _) in self._factories.items()]

    def driver(self, name: str) -> Driver:
        """NOT_FOUND for an unknown name; UNAVAILABLE when the driver cannot start."""
        with self._lock:
            driver = self._drivers.get(object_of("name", name, str))
            row = self._row(name)
        if driver is not None:
            return driver
        if row is None:
            raise NotFoundError(f"no driver '{name}' registered; {self._known(name)}")
        driver = row[1]()
        with self._lock:
            return self._drivers.setdefault(name, driver)

    def _known(self, name: str) -> str:
        """The drivers, and which of them a name means: one that is spelled or described so."""
        from jitree.base.near_names import did_you_mean

        rows = self.enumerate()
        described = [known for known, text in rows if name and name.casefold() in text.casefold()]
        hint = (
            f"; did you mean '{described[0]}'?" if described else did_you_mean(name, [row[0] for row in rows])
        )
        return f"there are: {', '.join(known for known, _ in rows) or 'none'}{hint}"

    def _row(self, name: str) -> DriverRow | None:
        while name not in self._factories and (declared := next(self._declared, None)) is not None:
            self._factories[declared[0]] = declared[1]
        return self._factories.get(name)

    def create_device(
        self, uri: str, loaders: Sequence[ExecutableLoader] = (), parameters: Mapping[str, str] | None = None
    ) -> Device:
        """A new device by URI. ``parameters`` are defaults for those that the URI does not state."""
        parsed = parse_uri(uri)
        options = DeviceOptions({**(parameters or {}), **parsed.parameters}, tuple(loaders))
        return self.driver(parsed.driver).create_device_by_path(parsed.path, options)


DECLARATION: Final = "drivers"
"""The file of a folder whose ``DRIVERS`` has a row for each driver; a row imports it when it is needed."""


@cache
def all_drivers() -> DriverRegistry:
    """Returns the process's registry, which imports drivers when first asked for."""
    return DriverRegistry(declared_drivers())


def declared_drivers() -> Iterator[tuple[str, DriverRow]]:
    """The rows of all folders of drivers, those of :mod:`jitree.hal` first."""
    inner = os.path.dirname(__file__)
    for package, folder in (("jitree.hal", inner), ("jitree", os.path.dirname(inner))):
        for name in sorted(os.listdir(folder)):
            if "." not in name and os.path.isfile(f"{folder}/{name}/{DECLARATION}.py"):
                yield from import_module(f"{package}.{name}.{DECLARATION}").DRIVERS.items()
