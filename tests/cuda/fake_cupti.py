"""A stand-in for CUPTI: its records are those that a test puts there."""

from __future__ import annotations

import ctypes
from time import perf_counter_ns
from typing import Any

from jitree.cuda.timings import RECORDS

CLOCK = 5_000_000_000
"""Nanoseconds that it is before ``perf_counter_ns``."""
_MOST = 12
"""CUPTI_ERROR_MAX_LIMIT_REACHED"""


class FakeCupti:
    """Has the functions of the library."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.enabled: set[int] = set()
        self.refuses = False
        self.dropped = 0
        self.ticks = 1.0
        """Of its clock a nanosecond."""
        self._names: dict[str, ctypes.Array[ctypes.c_char]] = {}
        self._functions: tuple[Any, Any] = (None, None)
        self._next: dict[int, int] = {}

    def add(self, kind: int, *fields: int, name: str = "") -> None:
        """Times in ``fields`` are CUPTI's."""
        if name:
            text = self._names.setdefault(name, ctypes.create_string_buffer(name.encode()))
            fields = (*fields, ctypes.addressof(text))
        self.records.append(kind.to_bytes(4, "little") + RECORDS[kind].pack(*fields)[4:])

    def cuptiActivityRegisterCallbacks(self, request: Any, completed: Any) -> int:
        self._functions = request, completed
        return int(self.refuses)

    def cuptiActivityEnable(self, kind: int) -> int:
        self.enabled.add(kind)
        return 0

    def cuptiActivityDisable(self, kind: int) -> int:
        self.enabled.discard(kind)
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context: object, stream: int, place: Any) -> int:
        place._obj.value = self.dropped
        return 0

    def cuptiGetTimestamp(self, place: Any) -> int:
        place._obj.value = int(perf_counter_ns() * self.ticks) + CLOCK
        return 0

    def cuptiActivityFlushAll(self, flag: int) -> int:
        request, completed = self._functions
        records, self.records = self.records, []
        while records:
            buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
            request(ctypes.pointer(buffer), ctypes.pointer(size), ctypes.pointer(most))
            part, records = records[:2], records[2:]  # several buffers
            data = b"".join(record.ljust(128, b"\0") for record in part)
            ctypes.memmove(buffer.value or 0, data, len(data))
            completed(None, 0, buffer, size, len(data))
        return 0

    def cuptiActivityGetNextRecord(self, address: Any, length: Any, record: Any) -> int:
        place = record._obj.value
        following = address.value if place is None else place + 128
        if following >= address.value + length.value:
            return _MOST
        record._obj.value = following
        return 0
