"""Generators of small images, called by builder processes too."""

from __future__ import annotations

import os
import time

ENTRY = "twice"

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


def texts() -> list[str]:
    """``twice(x)`` is 2x for even and -2x for odd numbers, through a table of addresses."""
    return [_MAIN, _LIBRARY]


def slow_texts() -> list[str]:
    """As :func:`texts`; notes that it was called."""
    with open(os.environ["JITREE_TEST_BUILDS"], "a", encoding="ascii") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(0.5)
    return texts()


def failing_texts() -> list[str]:
    raise ValueError("no text today")


def external_texts() -> list[str]:
    """Refers to a function that is not there."""
    return [_MAIN]


def writable_texts() -> list[str]:
    return ["@count = global i64 7\ndefine ptr @twice() { ret ptr @count }"]
