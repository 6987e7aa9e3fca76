"""Generators of small images, called by builder processes too."""

from __future__ import annotations

import atexit
import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from jitree.codegen.image import worklist
from jitree.codegen.image.generated import Generated, Unit, one_unit

ENTRY = "twice"
vars(worklist)["_PATIENCE"] = float(os.environ.get("JITREE_TEST_PATIENCE", worklist._PATIENCE))

_MAIN = """
@table = internal constant [2 x ptr] [ptr @even, ptr @odd]
declare i64 @doubled(i64)
define internal i64 @even(i64 %x) noinline {
  %y = call i64 @doubled(i64 %x)
  ret i64 %y
}
define internal i64 @odd(i64 %x) noinline {
  %y = call i64 @doubled(i64 %x)
  %z = sub i64 0, %y
  ret i64 %z
}
define i64 @twice(i64 %x) {
  %index = and i64 %x, 1
  %slot = getelementptr ptr, ptr @table, i64 %index
  %function = load ptr, ptr %slot
  %y = call i64 %function(i64 %x)
  ret i64 %y
}
"""
_LIBRARY = "define i64 @doubled(i64 %x) { %y = mul i64 %x, 2\n ret i64 %y }"


def texts() -> Generated:
    """``twice(x)`` is 2x for even and -2x for odd numbers, through a table of addresses."""
    return one_unit([_MAIN, _LIBRARY], [ENTRY])


def slow_texts(*data: bytes) -> Generated:
    """As :func:`texts`, whatever the data; notes that it was called."""
    with open(os.environ["JITREE_TEST_BUILDS"], "a", encoding="ascii") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(0.5)
    return texts()


def late_texts(data: bytes) -> Generated:
    """As :func:`texts`; the builder ends late, and writes a file then."""
    place = Path(os.environ["JITREE_TEST_BUILDS"])

    @atexit.register
    def write() -> None:
        time.sleep(0.3)
        place.write_bytes(data)

    return texts()


def waiting_texts() -> Generated:
    """As :func:`texts`, as soon as a file is there."""
    while not os.path.exists(os.environ["JITREE_TEST_GO"]):
        time.sleep(0.01)
    return texts()


def named_texts(data: bytes) -> Generated:
    """As :func:`texts`; notes that it was called. The name says what comes of it: it waits for a file, takes
    long, fails, finds the disk full, or its process dies."""
    name = data.decode()
    with open(os.environ["JITREE_TEST_BUILDS"], "a", encoding="ascii") as log:
        log.write(f"{name}\n")
    if "waits" in name:
        return waiting_texts()
    if "slow" in name:
        time.sleep(0.5)
    if "fails" in name:
        return failing_texts()
    if "disk-full" in name:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "loses a copy" in name:
        return texts_without_a_copy()
    if "dies" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return texts()


def texts_without_a_copy() -> Generated:
    """The first copy of the builder that comes here dies; the builder itself goes on after that."""
    if os.getppid() == int(os.environ["JITREE_TEST_PROCESS"]):
        return waiting_texts()
    with suppress(FileExistsError):
        Path(os.environ["JITREE_TEST_GO"]).touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return texts()


def failing_texts() -> Generated:
    raise ValueError("no text today")


def external_texts() -> Generated:
    """Refers to a function that is not there."""
    return one_unit([_MAIN], [ENTRY])


def writable_texts() -> Generated:
    return one_unit(["@count = global i64 7\ndefine ptr @twice() { ret ptr @count }"], [ENTRY])


def missing_entry() -> Generated:
    return Generated((Unit([_MAIN, _LIBRARY], (ENTRY,)),), (ENTRY, "thrice"))


def sum_of_constants(*numbers: bytes) -> Generated:
    """Two units: ``first`` gives the first number, ``total`` calls it and adds the others."""
    first, *others = map(int, numbers)
    total = (
        f"declare i64 @first()\ndefine i64 @total() {{\n %x = call i64 @first()\n"
        f" %y = add i64 %x, {sum(others)}\n ret i64 %y\n}}"
    )
    return Generated(
        (Unit([f"define i64 @first() {{ ret i64 {first} }}"], ("first",)), Unit([total], ("total",))),
        ("total", "first"),
        b"2 units",
    )


def same_name_twice() -> Generated:
    unit = Unit(["define i64 @first() { ret i64 1 }"], ("first",))
    return Generated((unit, unit), ("first",))


def bad_second_unit() -> Generated:
    good = Unit(["define i64 @first() { ret i64 1 }"], ("first",))
    return Generated((good, Unit(["define i64 @second() { ret nonsense }"], ("second",))), ("first",))
